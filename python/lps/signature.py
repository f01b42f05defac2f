"""The kind of inputs that a task was learnt with: names, dtypes, shapes. It is recorded with the task in the file.

Settings and metadata are read without torch, so this file does not import it; :mod:`lps.observed` makes signatures from
batches, and batches from signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated

from msgspec import Meta

from lps.options import one_line

Size = Annotated[int, Meta(ge=1, lt=2**31)]
Axis = Annotated[int, Meta(ge=0, lt=16)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

MOST_INPUTS = 64
FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "complex128", "complex64", "bool", "int64", "int32", "int16", "int8", "uint8")


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
        return self.dtype in FLOATS

    def sizes(self) -> tuple[int | None, ...]:
        """The shape, with None for any size."""
        return tuple(None if axis in self.dynamic else size for axis, size in enumerate(self.shape))

    def __str__(self) -> str:
        """As in ``input_ids int64 [any]``."""
        sizes = ", ".join("any" if size is None else str(size) for size in self.sizes())
        return f"{'' if self.name is None else f'{one_line(self.name)} '}{self.dtype} [{sizes}]"


Signature = list[Input]


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


def numbers_of(signature: Sequence[Input]) -> int:
    """How many numbers one example has."""
    return sum(prod(each.shape) for each in signature)
