"""Trial inputs for a task, and the check that another form of its network gives the same answers."""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from torch import Tensor

from lps.errors import ConfigError, LPSError
from lps.lifelong import Lifelong

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


def use_input_shape(net: Lifelong, task: int, file: str | Path, given: str | None) -> list[int]:
    """The shape of one example: the one that the user gives, which extraction then uses too, else that of the file.

    A shape that the network cannot read is refused.
    """
    if given is not None:
        net.metadata.input_shape = parse_shape(given)
    shape = net.metadata.input_shape
    if shape is None:
        raise ConfigError(f"{file}: does not tell the shape of its inputs; pass --input-shape, as in 3,32,32")
    if given is None and prod(shape) > MOST_NUMBERS:
        raise ConfigError(
            f"{file}: shape of its inputs: expected at most {MOST_NUMBERS:,} numbers on a file's word, got {shape}; if "
            "that is right, pass it as --input-shape"
        )
    random_inputs(net, task, shape, 1)
    return shape


@torch.no_grad()
def random_inputs(net: Lifelong, task: int, shape: list[int], batch: int) -> Tensor:
    """Random inputs that the network can read, always the same; a shape that does not fit is refused."""
    weight = net.like
    try:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(batch, *shape, generator=generator, dtype=weight.dtype).to(weight.device)
        net(inputs, task=task)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--input-shape: the network cannot read inputs of shape {shape}: {reason}") from None
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
