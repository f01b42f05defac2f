"""Runs the sample that meets each fault, in a process of its own that a report may end.

    python -m tests.native.simulator.run_faults 5 MUTANT.so 7 MUTANT.so ...

The numbers are those of the faults in FAULTS. Prints a list of pairs as JSON: exit code and output of each. Processes
are forked, as importing torch takes longer than the sample.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from lps_kernels._registry import REGISTRY, Sample
from tests.helpers import assert_same_bits, copy_of, results_of
from tests.native.adaptors import ADAPTORS, Simulated, upload
from tests.native.build import load
from tests.native.simulator.faults import FAULTS, Fault

CALLS = ADAPTORS | {"upload": upload}
TABLE = Sample("a table", (torch.arange(10, dtype=torch.int32),))


def sample_of(fault: Fault) -> Sample:
    if fault.op == "upload":
        return TABLE
    op = REGISTRY[fault.op]
    dtype = torch.float32 if torch.float32 in op.dtypes else op.dtypes[0]
    (sample,) = [sample for sample in op.samples(dtype) if sample.name == fault.sample]
    return sample


def run(fault: Fault, module: Path) -> None:
    bridge, sample = load(module), sample_of(fault)
    for order in bridge.orders():
        # A device of one multiprocessor has small grids, whose blocks take several parts of the work.
        got = CALLS[fault.op](Simulated(bridge, order, processors=1), *sample.args)
        if fault.kind == "uncorrected forecast":
            op = REGISTRY[fault.op]
            assert_same_bits(got, results_of(op, op.reference, copy_of(sample.args)), "not the reference's bits")


def run_apart(fault: Fault, module: Path) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                run(fault, module)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")


def main() -> None:
    pairs = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    print(json.dumps([run_apart(FAULTS[int(number)], Path(module)) for number, module in pairs]))


if __name__ == "__main__":
    main()
