"""What batches show of the kind of a network's inputs, and random batches of a kind.

Trial inputs are needed for cutting a task out, for exporting it and for checking inputs from files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lps.batch import assembled, named
from lps.errors import DataError
from lps.signature import DTYPES, Input, Signature, text_of
from lps_kernels.calls import Inputs


def dtype_name(tensor: Tensor) -> str:
    """As in ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_of(kind: Input) -> torch.dtype:
    """Torch's dtype of an input."""
    dtype = getattr(torch, kind.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def seen(inputs: Inputs) -> Signature:
    """The signature of one batch."""
    return [_seen(name, tensor) for name, tensor in named(inputs)]


def _seen(name: str | None, tensor: Tensor) -> Input:
    dtype = dtype_name(tensor)
    if dtype not in DTYPES:
        raise DataError(f"inputs: expected one of {', '.join(DTYPES)}, got {dtype}; convert them")
    low = high = 0
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if whole and tensor.numel():
        low, high = int(tensor.min()), int(tensor.max())
    return Input(dtype, list(tensor.shape[1:]), name, [], low, high)


def joined(before: Signature, inputs: Inputs) -> Signature:
    """The signature of all batches so far and this one; refuses a batch of another structure."""
    now = seen(inputs)
    if now == before:
        return before
    alike = len(now) == len(before) and all(
        (a.name, a.dtype, len(a.shape)) == (b.name, b.dtype, len(b.shape)) for a, b in zip(before, now, strict=True)
    )
    if not alike:
        raise DataError(
            f"expected batches of one structure, {text_of(before)} without the batch, got {text_of(now)}; "
            "make them alike"
        )
    return [_both(a, b) for a, b in zip(before, now, strict=True)]


def _both(a: Input, b: Input) -> Input:
    differing = {axis for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n}
    return replace(
        a,
        shape=[max(m, n) for m, n in zip(a.shape, b.shape, strict=True)],
        dynamic=sorted(differing | set(a.dynamic)),
        low=min(a.low, b.low),
        high=max(a.high, b.high),
    )


def random_batch(signature: Sequence[Input], examples: int, like: Tensor) -> Inputs:
    """Random inputs of this kind, always the same, on the device of a weight and of its dtype where they are floats.

    Whole numbers are among those that were seen. The first of each row is the largest: a row of an attention mask that
    is 0 everywhere has no answer.
    """
    generator = torch.Generator().manual_seed(0)
    return assembled(
        [each.name for each in signature], [_random(each, examples, like, generator) for each in signature]
    )


def _random(kind: Input, examples: int, like: Tensor, generator: torch.Generator) -> Tensor:
    shape = (examples, *kind.shape)
    if kind.is_float:
        return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)
    if dtype_of(kind).is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype_of(kind)).to(like.device)
    low, high = (0, 1) if kind.dtype == "bool" else (kind.low, max(kind.low, kind.high))
    values = torch.randint(low, min(high + 1, 2**63 - 1), shape, generator=generator)
    rows = values.reshape(examples, -1)
    rows[:, 0] = high
    return rows.reshape(shape).to(like.device, dtype_of(kind))
