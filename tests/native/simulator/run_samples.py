"""Runs samples of every op through the CUDA kernels on the simulator; made to run under a sanitizer.

    python -m tests.native.simulator.run_samples CUDA.so MOST STEP

Takes every STEP-th of the samples of an op and dtype that have elements and at most MOST of them, each in the next of
the orders. Prints as JSON how many calls it made and which kernels each order has run; a sanitizer stops it at its
first report.
"""

from __future__ import annotations

import json
import sys
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
    calls, kernels = 0, [set[str]() for _ in ways]
    for op in OPS:
        samples = [sample for dtype in op.dtypes for sample in chosen(op, dtype, most, step)]
        for sample, way, names in zip(samples, cycle(ways), cycle(kernels)):
            bridge.clear()
            ADAPTORS[op.name](way, *sample.args)
            names |= set(map(kernel_name, bridge.launches()))
        calls += len(samples)
    for way, names in zip(ways, kernels, strict=True):
        bridge.clear()
        upload(way, torch.arange(2000))
        names |= set(map(kernel_name, bridge.launches()))
    print(json.dumps({"calls": calls, "kernels": list(map(sorted, kernels))}))


if __name__ == "__main__":
    main()
