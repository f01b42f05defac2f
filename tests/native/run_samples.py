"""Runs every sample of every op through a bridge, on exactly sized buffers; made to run under the sanitizers.

Packed weights that are not sound are run too: the kernels find that out themselves, and read nothing that is not there.

    python -m tests.native.run_samples BRIDGE.so [STEP]

Calls take turns between one thread and two. With a step, only every so manieth call of an op and dtype, and on two
threads alone: races need no more, and each call takes long there.

Prints how many calls it made on which instruction sets; a sanitizer stops it at its first report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import torch

from lps_kernels._registry import REGISTRY, Args, Op
from tests.helpers import raw_cpu_dtypes, upcast
from tests.native.adaptors import ADAPTORS, Native
from tests.native.build import load


def calls_of(op: Op, dtype: torch.dtype) -> Iterator[Args]:
    """The samples and, of ops that check packed weights on their way, what they refuse then."""
    for sample in op.samples(dtype):
        yield sample.args
    if op.name not in ("sparse_linear", "sparse_conv"):
        return
    for bad in op.bad_inputs():
        if bad.reads_values and ": offsets: " not in bad.message:
            yield upcast(bad.args) if dtype == torch.float64 else bad.args


def main() -> None:
    bridge, calls = load(Path(sys.argv[1])), 0
    step = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for isa in bridge.isas():
        ways = [Native(bridge, isa, threads=2, grain=1, shifted=True)]
        ways += [Native(bridge, isa)] if step == 1 else []
        for op in REGISTRY.values():
            for dtype in raw_cpu_dtypes(op):
                for args, native in zip(islice(calls_of(op, dtype), step - 1, None, step), cycle(ways)):
                    ADAPTORS[op.name](native, *args)
                    calls += 1
    print(calls, "calls", *bridge.isas())


if __name__ == "__main__":
    main()
