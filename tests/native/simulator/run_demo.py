"""Runs a demonstration kernel in every order, right or with a fault; made to run under a sanitizer.

    python -m tests.native.simulator.run_demo DEMO.so sum lost_atomic

Prints whether the results were right.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from tests.native.build import load

NUMBERS = [float(i % 7) for i in range(6 * 128)]


def right(demo: ModuleType, kernel: str, fault: str, order: int) -> bool:
    """Run the kernel in one order; whether its result is right."""
    runner = demo.Runner(order, processors=4, tf32=False)
    result = getattr(demo, kernel)(runner, NUMBERS, getattr(demo.Fault, fault))
    if kernel == "sum":
        return bool(result == sum(NUMBERS))
    tiles = [NUMBERS[begin : begin + 64] for begin in range(0, len(NUMBERS), 64)]
    return bool(result == [x for tile in tiles for x in reversed(tile)])


def main() -> None:
    demo = load(Path(sys.argv[1]), "simulator_demo")
    print(*(right(demo, sys.argv[2], sys.argv[3], order) for order in demo.orders()))


if __name__ == "__main__":
    main()
