"""``python -m benchmarks.gpu``: compile every kernel for every architecture, report what it takes, check it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sections
from benchmarks.gpu import model, tables
from benchmarks.gpu.gate import ARCHITECTURES, jobs_of, run
from benchmarks.gpu.nvcc_report import nvcc
from benchmarks.table import load

TOOLCHAINS = ("nvcc", "triton")
MODEL = "model"


def _architecture(text: str) -> str:
    name = text if text.startswith(("sm_", "gfx")) else f"sm_{text}"
    if name not in ARCHITECTURES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(ARCHITECTURES)}, got {text}")
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--arch", nargs="+", type=_architecture, default=ARCHITECTURES, help="80 or sm_80, gfx942")
    parser.add_argument("--only", choices=(*TOOLCHAINS, MODEL), help="one toolchain, or nothing but the model of times")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="of `python -m benchmarks table --save`: writes the model of times with the CPU's shares",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a kernel is not as it should be")
    parser.add_argument("--processes", type=int, default=2)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(arguments)
    toolchains = TOOLCHAINS if args.only is None else (args.only,)
    if "nvcc" in toolchains and nvcc() is None:
        print("python -m benchmarks.gpu: nvcc was not found; --only triton does without it", file=sys.stderr)
        return 2
    try:
        # Before minutes of compiling, not after them.
        stored = load(args.table) if args.table is not None else {}
        for section in (tables.KERNELS, tables.MODEL) if args.write is not None else ():
            sections.split(args.write, section)
    except ValueError as error:
        print(f"python -m benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    if args.write is not None and (args.table is not None or args.only == MODEL):
        shares = {op: row.roofline_share for (op, network), row in stored.items() if network == model.NETWORK}
        sections.write(args.write, tables.MODEL, "\n".join(model.table(shares)))
    return 0 if args.only == MODEL else _compile(toolchains, args)


def _compile(toolchains: Sequence[str], args: argparse.Namespace) -> int:
    begun = time.perf_counter()
    report = run(jobs_of(toolchains, args.arch), args.processes)
    problems = report.problems()
    print(f"{len(report.kernels)} kernels in {time.perf_counter() - begun:.0f} s, {len(problems)} problems")
    for problem in problems:
        print(problem)
    if args.write is not None:
        sections.write(args.write, tables.KERNELS, tables.markdown(report))
    return 1 if args.check and problems else 0


if __name__ == "__main__":
    sys.exit(main())
