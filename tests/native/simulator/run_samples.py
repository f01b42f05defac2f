"""Runs samples of every op through the CUDA kernels on the simulator; made to run under a sanitizer.

    python -m tests.native.simulator.run_samples CUDA.so MOST LIMIT ORDERS

Takes up to LIMIT samples of each op and dtype that have at most MOST elements, each in ORDERS of the orders, the next
sample in the next ones. Prints how many calls it made; a sanitizer stops it at its first report.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers import OPS, small_samples
from tests.native.adaptors import ADAPTORS, Simulated
from tests.native.build import load


def main() -> None:
    bridge, (most, limit, orders) = load(Path(sys.argv[1])), map(int, sys.argv[2:])
    # A device of one multiprocessor has small grids.
    ways = [Simulated(bridge, order, processors=1, shifted=order % 2 == 1) for order in bridge.orders()]
    calls = 0
    for op in OPS:
        for dtype in op.dtypes:
            for sample in small_samples(op, dtype, limit, most):
                for _ in range(orders):
                    ADAPTORS[op.name](ways[calls % len(ways)], *sample.args)
                    calls += 1
    print(calls, "calls")


if __name__ == "__main__":
    main()
