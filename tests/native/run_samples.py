"""Runs every sample of every op through a bridge, on exactly sized buffers; made to run under the sanitizers.

    python -m tests.native.run_samples BRIDGE.so

Prints how many calls it made on which instruction sets; a sanitizer stops it at its first report.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lps_kernels._registry import REGISTRY
from tests.helpers import raw_cpu_dtypes
from tests.native.adaptors import ADAPTORS, Native
from tests.native.build import load


def main() -> None:
    bridge, calls = load(Path(sys.argv[1])), 0
    for isa in bridge.isas():
        ways = Native(bridge, isa), Native(bridge, isa, threads=2, grain=1, shifted=True)
        for op in REGISTRY.values():
            for dtype in raw_cpu_dtypes(op):
                for sample in op.samples(dtype):
                    for native in ways:
                        ADAPTORS[op.name](native, *sample.args)
                        calls += 1
    print(calls, "calls", *bridge.isas())


if __name__ == "__main__":
    main()
