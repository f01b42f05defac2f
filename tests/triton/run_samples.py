"""Runs an operator's samples through its interpreted Triton kernels, on guarded memory and in several orders.

    TRITON_INTERPRET=1 python -m tests.triton.run_samples

Reads one task per line, ``operator dtype``, and answers with one line of JSON each. What a call reads or writes beside
its tensors ends the process. Tensors that end at a guard page begin at any address.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lps_kernels._registry import REGISTRY, Args, Op, Sample
from lps_kernels.backends.triton import KERNELS, _launch
from lps_kernels.backends.triton._launch import Sizes
from tests.helpers import CorrectSqrt, assert_same_bits, copy_of, map_tensors, results_of, weights_in
from tests.triton.guard import (
    GuardedAllocation,
    Order,
    forward,
    guarded,
    hold_to_promises,
    ordered,
    reverse,
    shuffled,
    spare_repetition,
)

# Samples up to this many elements are cut into many tiny programs.
SMALL = 700
SMALL_CUT = Sizes(
    step=16,
    chunk=32,
    search=32,
    sample=16,
    digit=8,
    few=2,
    columns=(2, 8),
    runs=(2, 16),
    depth=2,
    fold=8,
)
# The interpreter takes about as long for a large tile as for a small one: a sample of 70001 weights is five programs.
LARGE_CUT = Sizes(
    step=16384,
    chunk=16384,
    search=16384,
    sample=4096,
    digit=11,
    few=2,
    columns=(64, 1024),
    runs=(16, 4096),
    depth=4,
    fold=2048,
)


@dataclass(frozen=True)
class Way:
    """How a sample is run: cut, order of the programs, and on which side tensors touch a guard page."""

    cut: Sizes
    order: Order
    at_end: bool


def ways(op: Op, sample: Sample, dtype: torch.dtype, number: int) -> Iterator[Way]:
    """Small samples in four orders, in other dtypes than the first in one, by turns.

    Large ones in one, on the other side and in the other order in the next dtype, and in only one of the two 16-bit
    dtypes, by turns.
    """
    if weights_in(sample) > SMALL:
        turn = (number + op.dtypes.index(dtype)) % 2
        if dtype.itemsize != 2 or turn == 0:
            at_end = (number // 2 + op.dtypes.index(dtype)) % 2 == 0
            yield Way(LARGE_CUT, reverse if at_end else shuffled(number), at_end)
        return
    several = [Way(SMALL_CUT, reverse, at_end=True), Way(SMALL_CUT, shuffled(number), at_end=False)]
    if dtype == op.dtypes[0]:
        yield from several
        yield Way(SMALL_CUT, shuffled(-1 - number), at_end=True)
        yield Way(SMALL_CUT, forward, at_end=False)
    else:
        yield several[number % 2]


def run(op: Op, args: Args, way: Way) -> list[Tensor]:
    """What the op returns and writes, on guarded memory."""
    _launch.sizes = way.cut
    held: Args = map_tensors(args, lambda tensor: guarded(tensor, way.at_end))
    with GuardedAllocation(way.at_end), ordered(way.order):
        return results_of(op, KERNELS[op.name], held)


def check(op: Op, dtype: torch.dtype, sample: Sample, number: int) -> int:
    """Run one sample in every way and compare it with the reference; returns how many calls that were."""
    with CorrectSqrt():
        want = results_of(op, op.reference, copy_of(sample.args))
    calls = 0
    for way in ways(op, sample, dtype, number):
        got = run(op, sample.args, way)
        calls += 1
        if op.sums:
            relative = op.tolerance.relative[dtype]
            torch.testing.assert_close(got, want, rtol=relative, atol=16 * relative, equal_nan=True)
        else:
            assert_same_bits(got, want, sample.name)
    return calls


def run_task(name: str, dtype_name: str) -> dict[str, object]:
    """All samples of one op in one dtype."""
    op, dtype = REGISTRY[name], getattr(torch, dtype_name)
    samples, calls, wrong = 0, 0, []
    for number, sample in enumerate(op.samples(dtype)):
        samples += 1
        try:
            calls += check(op, dtype, sample, number)
        except Exception as error:
            wrong.append(f"{sample.name}: {type(error).__name__}: {error}")
    return {"samples": samples, "calls": calls, "wrong": wrong}


def main() -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    spare_repetition()
    hold_to_promises()
    for line in sys.stdin:
        print(json.dumps(run_task(*line.split())), flush=True)


if __name__ == "__main__":
    main()
