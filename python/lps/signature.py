"""The kind of inputs that a task was learnt with: names, dtypes, shapes. It is recorded with the task in the file.

From it trial inputs are made, for cutting a task out, for exporting it and for checking inputs from files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from lps.batch import assembled, named
from lps.errors import DataError
from lps.options import one_line
from lps_kernels.calls import Inputs

Size = Annotated[int, Meta(ge=1, lt=2**31)]
Axis = Annotated[int, Meta(ge=0, lt=16)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

MOST_INPUTS = 64
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}


@dataclass(frozen=True)
class Input:
    """One input of a network, without the batch; ``name`` is None for one that is given by position.

    ``shape`` has the largest sizes that were seen, ``dynamic`` the axes of it whose size was not always the same.
    Whole numbers were from ``low`` to ``high``.
    """

    dtype: Annotated[str, Meta(pattern=f"^({'|'.join(DTYPES)})\\Z")]
    shape: Annotated[list[Size], Meta(max_length=16)]
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    dynamic: Annotated[list[Axis], Meta(max_length=16)] = field(default_factory=list)
    low: Whole = 0
    high: Whole = 0

    @property
    def is_float(self) -> bool:
        """Whether it holds floats, whose dtype is that of the network's weights."""
        return DTYPES[self.dtype].is_floating_point

    def sizes(self) -> tuple[int | None, ...]:
        """The shape, with None for any size."""
        return tuple(None if axis in self.dynamic else size for axis, size in enumerate(self.shape))

    def __str__(self) -> str:
        """As in ``input_ids int64 [any]``."""
        sizes = ", ".join("any" if size is None else str(size) for size in self.sizes())
        return f"{'' if self.name is None else f'{one_line(self.name)} '}{self.dtype} [{sizes}]"


Signature = list[Input]


def dtype_name(tensor: Tensor) -> str:
    """As in ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def problem_with(signature: Signature) -> str | None:
    """What contradicts itself in a signature that a file tells."""
    names = [each.name for each in signature]
    if len(set(names)) < len(names) and set(names) != {None}:
        return "expected names that differ, or none"
    if None in names and set(names) != {None}:
        return "expected names for all of them, or for none"
    if any(axis >= len(each.shape) for each in signature for axis in each.dynamic):
        return "dynamic: expected axes of its shape"
    return None


def text_of(signature: Sequence[Input]) -> str:
    """For a sentence."""
    return ", ".join(map(str, signature))


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


def numbers_of(signature: Sequence[Input]) -> int:
    """How many numbers one example has."""
    return sum(prod(each.shape) for each in signature)


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
    if DTYPES[kind.dtype].is_complex:
        return torch.randn(shape, generator=generator, dtype=DTYPES[kind.dtype]).to(like.device)
    low, high = (0, 1) if kind.dtype == "bool" else (kind.low, max(kind.low, kind.high))
    values = torch.randint(low, min(high + 1, 2**63 - 1), shape, generator=generator)
    rows = values.reshape(examples, -1)
    rows[:, 0] = high
    return rows.reshape(shape).to(like.device, DTYPES[kind.dtype])
