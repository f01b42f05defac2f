"""Counts what every operator's CUDA kernels load and store per weight, on one layer of fp32.

    python -m tests.native.simulator.count_traffic [--write docs/gpu-tables.md]

Each access of each thread counts, including accesses of several lanes of a warp to one address. Scratch memory
and tables of layers count too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType

from benchmarks import sections
from lps_kernels._registry import REGISTRY, Args, Op
from tests.native.adaptors import ADAPTORS, Simulated
from tests.native.build import build_simulated, load
from tests.native.simulator.run_samples import kernel_name

LAYER = (512, 1024)
WEIGHTS = prod(LAYER)
PROCESSORS = 108  # an A100's
SECTION = "traffic"


@dataclass
class Traffic:
    """Bytes that kernels load from and store to the arguments of a call, and the same of scratch memory and tables."""

    loaded: int = 0
    stored: int = 0
    own_loaded: int = 0
    own_stored: int = 0

    @property
    def of_arguments(self) -> int:
        return self.loaded + self.stored

    @property
    def own(self) -> int:
        return self.own_loaded + self.own_stored


def count_call(counting: ModuleType, op: Op, args: Args) -> tuple[dict[str, Traffic], int]:
    """What each kernel of one call moves, and how many launches there were."""
    counting.clear()
    ADAPTORS[op.name](Simulated(counting, processors=PROCESSORS), *args)
    launched = [kernel_name(launch) for launch in counting.launches()]
    moved = {name: Traffic() for name in launched}
    for kernel, buffers in counting.traffic_counts().items():
        traffic = moved[kernel_name(kernel)]
        for buffer, (loaded, stored) in buffers.items():
            if buffer in ("scratch", "table"):
                traffic.own_loaded += loaded
                traffic.own_stored += stored
            else:
                traffic.loaded += loaded
                traffic.stored += stored
    return moved, len(launched)


def table(counting: ModuleType) -> list[str]:
    """Markdown: a row for each kernel of each operator."""
    lines = [
        "| operator | must move, bytes per weight | kernel | loaded | stored | scratch and tables: loaded | stored |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for op in REGISTRY.values():
        (args,) = op.workload([LAYER])
        moved, _ = count_call(counting, op, args)
        first = f"`{op.name}` | {op.cost(*args).bytes / WEIGHTS:.2f}"
        for kernel, traffic in moved.items():
            numbers = (traffic.loaded, traffic.stored, traffic.own_loaded, traffic.own_stored)
            shown = " | ".join(f"{number / WEIGHTS:.2f}" for number in numbers)
            lines.append(f"| {first} | `{kernel}` | {shown} |")
            first = " | "
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.simulator.count_traffic", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of this file")
    args = parser.parse_args()
    try:
        if args.write is not None:
            sections.split(args.write, SECTION)  # before the counting, not after it
    except ValueError as error:
        parser.error(str(error))
    lines = table(load(build_simulated("cuda_counting")))
    print("\n".join(lines))
    if args.write is not None:
        sections.write(args.write, SECTION, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
