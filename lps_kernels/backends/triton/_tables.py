"""Tables of layers inside kernels: one launch works on any number of layers of unequal size.

A table is int64 in device memory, one row per layer. Pointers are in it as numbers.

A program works on one chunk of one layer. Kernels call what they do with a chunk twice: for whole chunks with a mask
that is known to be true, which allows 128-bit accesses, and for the last of a layer.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def entry(row, FIELD: tl.constexpr):
    """One number of a row."""
    return tl.load(row + FIELD)


@triton.jit
def pointer(row, FIELD: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """One array of a row. ``ALIGNED`` promises a multiple of 16 bytes, which allows 128-bit accesses."""
    found = tl.load(row + FIELD).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        found = tl.multiple_of(found, 16)
    return found


@triton.jit
def row_of(table, rows, program, FIELD: tl.constexpr, FIELDS: tl.constexpr, ROWS: tl.constexpr):
    """The number of the row that a program works on: ``FIELD`` is the first program of each, ``ROWS`` a power of 2."""
    row = tl.arange(0, ROWS)
    first = tl.load(table + row * FIELDS + FIELD, mask=row < rows, other=0x7FFFFFFFFFFFFFFF)
    return tl.sum((first <= program).to(tl.int32)) - 1


@triton.jit
def everywhere(BLOCK: tl.constexpr):
    """The mask of a whole chunk."""
    return tl.full((BLOCK,), 1, tl.int1)


@triton.jit
def runs_ended(place, run, index):
    """How many runs of this length end in the ``index`` positions from ``place`` of a run on.

    Places inside a chunk are few, so nothing but scalars is divided in 64 bits, which takes a GPU ten times longer.
    """
    left = tl.minimum(run - place, 0x40000000).to(tl.int32)
    length = tl.minimum(run, 0x40000000).to(tl.int32)
    return tl.where(index < left, 0, 1 + (index - left) // length)
