"""Runs samples of every op through the CUDA kernels on the simulator; made to run under a sanitizer.

    python -m tests.native.simulator.run_samples CUDA.so MOST STEP

Takes every STEP-th of the samples of an op and dtype that have elements and at most MOST of them, each in the next of
the orders; then, in each order, samples of the kernels that it has not met. Prints as JSON how many samples there were
and which kernels each order has run; a sanitizer stops it at its first report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import torch

from lps_kernels._registry import Op, Sample
from tests.helpers import OPS, weights_in
from tests.native.adaptors import ADAPTORS, Simulated, upload
from tests.native.build import load


def chosen(op: Op, dtype: torch.dtype, most: int, step: int) -> list[Sample]:
    return [sample for sample in op.samples(dtype) if 0 < weights_in(sample) <= most][::step]


def kernel_name(launched: str) -> str:
    """Without template arguments."""
    return launched.partition("<")[0]


def main() -> None:
    bridge, (most, step) = load(Path(sys.argv[1])), map(int, sys.argv[2:])
    # A device of one multiprocessor has small grids.
    ways = [Simulated(bridge, order, processors=1, shifted=order % 2 == 1) for order in bridge.orders()]
    kernels = {way.order: set[str]() for way in ways}
    calls, first = 0, dict[str, Callable[[Simulated], object]]()  # of each kernel, the first call that launched it

    def run(call: Callable[[Simulated], object], way: Simulated) -> None:
        bridge.clear()
        call(way)
        for name in map(kernel_name, bridge.launches()):
            kernels[way.order].add(name)
            first.setdefault(name, call)

    for op in OPS:
        samples = [sample for dtype in op.dtypes for sample in chosen(op, dtype, most, step)]
        for sample, way in zip(samples, cycle(ways)):
            run(partial(call_op, op, sample), way)
        calls += len(samples)
    run(lambda way: upload(way, torch.arange(2000)), ways[0])
    for way in ways:
        for name, call in list(first.items()):
            if name not in kernels[way.order]:
                run(call, way)
    print(json.dumps({"calls": calls, "kernels": list(map(sorted, kernels.values()))}))


def call_op(op: Op, sample: Sample, way: Simulated) -> object:
    return ADAPTORS[op.name](way, *sample.args)


if __name__ == "__main__":
    main()
