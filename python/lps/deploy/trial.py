"""Trial inputs for a task, and the check that another form of its network gives the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lps.errors import ConfigError, LPSError
from lps.lifelong import Lifelong
from lps.observed import dtype_name, random_batch
from lps.signature import Input, Signature, numbers_of, text_of
from lps_kernels.calls import Inputs

# Largest difference to the network in the file, as a share of its largest logit, in steps (eps) of the dtype. Other
# kernels sum in another order: sums of some thousand products in dozens of layers then differ by some tens of steps,
# and a real error by far more than a thousand (1.2e-4 in float32).
TOLERANCE = 1000

SIZE_LIMIT = 2**31  # of one dimension of an input: more than any memory holds
# Of one input, unless the user says so: a colour image of 591 x 591. Layers need far more memory than their inputs.
MOST_NUMBERS = 2**20


def parse_shape(text: str) -> list[int]:
    """The shape of one example from the text of ``--input-shape``, as in 3,32,32."""
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [0]
    if not all(0 < size < SIZE_LIMIT for size in sizes):
        raise ConfigError(f"--input-shape: expected whole numbers above 0, as in 3,32,32, got {text}")
    return sizes


def use_signature(net: Lifelong, task: int, file: str | Path, given: str | None) -> Signature:
    """The kind of inputs that the file tells; of one tensor with the shape that the user gives, which extraction then
    uses too.

    A shape that the network cannot read is refused.
    """
    dtype = dtype_name(net.like)
    signature = net.metadata.signature(task, dtype)
    if given is not None:
        own = [Input(dtype, [])] if signature is None else signature
        if len(own) > 1 or own[0].name is not None:
            raise ConfigError(f"--input-shape: the file tells what task {task} reads, {text_of(own)}; leave it out")
        signature = [replace(own[0], shape=parse_shape(given), dynamic=[])]
        net.metadata.use(task, signature, dtype)
    if signature is None:
        raise ConfigError(f"{file}: does not tell the shape of its inputs; pass --input-shape, as in 3,32,32")
    if given is None and numbers_of(signature) > MOST_NUMBERS:
        shapes = signature[0].shape if len(signature) == 1 else text_of(signature)
        raise ConfigError(
            f"{file}: shape of its inputs: expected at most {MOST_NUMBERS:,} numbers on a file's word, got {shapes}; "
            "if that is right, pass it as --input-shape"
        )
    random_inputs(net, task, signature, 1, given=given is not None)
    return signature


@torch.no_grad()
def random_inputs(net: Lifelong, task: int, signature: Signature, batch: int, *, given: bool = False) -> Inputs:
    """Random inputs that the network can read, always the same; a kind that does not fit is refused.

    ``given`` says that their shape is the user's and not what was recorded in learning.
    """
    try:
        inputs = random_batch(signature, batch, net.like)
        net(inputs, task=task)
    except (LPSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the network's own code raises
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if given:
            raise ConfigError(
                f"--input-shape: the network cannot read inputs of shape {signature[0].shape}: {reason}"
            ) from None
        raise ConfigError(
            f"task {task}: the network cannot read random inputs of the kind that the file tells, "
            f"{text_of(signature)}: {reason}"
        ) from None
    return inputs


def checked_difference(what: str, got: Tensor, expected: Tensor) -> float:
    """Largest difference of logits to those of the network in the file, as a share of the largest logit.

    A difference that rounding does not explain is refused.
    """
    tiny = torch.finfo(expected.dtype).tiny
    difference = float((got - expected).abs().max() / expected.abs().max().clamp(min=tiny))
    if not difference <= TOLERANCE * torch.finfo(expected.dtype).eps:
        raise LPSError(
            f"{what} differs from the one in the file by {difference:.1e} of its largest logit on {len(expected)} "
            "inputs, which rounding does not explain; it is not used; please report it"
        )
    return difference
