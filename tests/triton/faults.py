"""Kernels with one fault each, to show that guarded memory and permuted orders expose it.

TRITON_INTERPRET=1 python -m tests.triton.faults FAULT      none, too-far, too-early, allocated, promise, order
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.triton.guard import (
    GuardedAllocation,
    Order,
    forward,
    guarded,
    hold_to_promises,
    ordered,
    reverse,
    shuffled,
)


@triton.jit
def _copy(x, out, count, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """A copy; ``SHIFT`` moves what is read."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tl.store(out + index, tl.load(x + index + SHIFT, mask=inside), mask=inside)


@triton.jit
def _promise(x, out):
    """Takes an address for a multiple of 16 bytes."""
    tl.store(out, tl.load(tl.multiple_of(x, 16)))


@triton.jit
def _last_wins(out):
    """Every program writes its number to the same place."""
    tl.store(out, tl.program_id(0))


def copy(x: Tensor, shift: int = 0) -> Tensor:
    """A copy by a kernel that reads ``shift`` elements beside what it should."""
    out = torch.empty_like(x)
    _copy[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), SHIFT=shift, BLOCK=8)
    return out


def last_winner(order: Order) -> int:
    """Which of eight programs wrote last."""
    out = torch.zeros(1, dtype=torch.int32)
    with ordered(order):
        _last_wins[(8,)](out)
    return int(out)


def main() -> None:
    fault, x = sys.argv[1], torch.arange(13.0)
    if fault == "none":
        for at_end in (True, False):
            with GuardedAllocation(at_end) as allocation:
                same = torch.equal(copy(guarded(x, at_end)), x)
            print(same, allocation.allocated)
    elif fault == "too-far":
        copy(guarded(x, at_end=True), shift=1)
    elif fault == "too-early":
        copy(guarded(x, at_end=False), shift=-1)
    elif fault == "allocated":
        with GuardedAllocation(at_end=True):
            copy(torch.empty(13), shift=1)
    elif fault == "promise":
        hold_to_promises()
        for start in (4, 0, 1):
            _promise[(1,)](x[start:], torch.empty(1))
            print(start, flush=True)
    else:
        print(*(last_winner(order) for order in (forward, reverse, shuffled(1), shuffled(2))))


if __name__ == "__main__":
    main()
