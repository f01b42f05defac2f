"""The command line: ``table``, ``figures``, ``costs``, ``solver``, ``avalanche``, ``evidence`` and ``picture``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch
from lps import LPSError

from benchmarks import costs
from benchmarks.avalanche import PEERS, print_comparison
from benchmarks.devices import DEVICES, DTYPES, Device
from benchmarks.evidence import SECTIONS, content, write_all
from benchmarks.figures import GROUPS, UnmeasurableError, print_figures
from benchmarks.figures.checks import check_operators
from benchmarks.learning_curves import write_run
from benchmarks.peers import UnavailableError
from benchmarks.shapes import NETWORKS
from benchmarks.solver import ROWS, print_solvers
from benchmarks.table import load, print_table, save
from benchmarks.timing import use_two_threads
from lps_kernels._registry import REGISTRY
from lps_kernels.tf32 import apply_to_torch

SHORT, REFUSED = 1, 2


class _Parser(argparse.ArgumentParser):
    """Answers bad input with one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns 0, 1 where a check or a bound failed, 2 where the input was refused."""
    given = sys.argv[1:] if arguments is None else arguments
    # `python -m benchmarks --device cuda` is short for the table there.
    options = _parser().parse_args(["table", *given] if given[:1] == ["--device"] else given)
    try:
        code: int = options.run(options)
        return code
    except (UnmeasurableError, UnavailableError, LPSError, ValueError) as error:
        print(f"benchmarks {options.command}: {error}", file=sys.stderr)
        return REFUSED


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m benchmarks",
        description="Time the native operators side by side with their peers, on two threads. Every operator is first "
        "checked against its reference; one that is wrong is not timed.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser(
        "table",
        help="operators x networks: p50, spread, GB/s, share of the roofline, GFLOP/s, ratios to peers",
        description="For each operator and network: the p50 of the native kernels with its spread, GB/s over the bytes "
        "that must move, their share of the bandwidth measured at the same working set, GFLOP/s where something is "
        "computed, and how many times faster than the reference and each peer it is. Everything takes about a quarter "
        "of an hour. With --device cuda the CUDA kernels (else the Triton ones) stand in the first place.",
    )
    table.set_defaults(run=_table)
    table.add_argument("--device", choices=DEVICES, default="cpu", help="where to time (default: cpu)")
    table.add_argument("--dtype", choices=list(DTYPES), default="float32", metavar="DTYPE",
                       help=f"of the floats: {', '.join(DTYPES)}; operators without it are left out")  # fmt: skip
    table.add_argument("--ops", nargs="+", choices=list(REGISTRY), default=list(REGISTRY), metavar="OP",
                       help=f"only these operators: {', '.join(REGISTRY)}")  # fmt: skip
    table.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NETWORK",
                       help=f"only these shapes: {', '.join(NETWORKS)}")  # fmt: skip
    table.add_argument("--save", type=Path, metavar="FILE", help="store the measured rows as JSON")
    table.add_argument("--compare", type=Path, metavar="FILE", help="print how shares and ratios moved since this run")
    figures = commands.add_parser(
        "figures",
        help="the figures that have a bound; exits 1 if one falls short",
        description="Measure one group of figures and print each beside its bound. Exits 1 if one falls short.",
    )
    figures.set_defaults(run=_figures)
    figures.add_argument("group", choices=list(GROUPS), metavar="GROUP", help=f"one of: {', '.join(GROUPS)}")
    figures.add_argument("--picture", type=Path, metavar="FILE", help="draw the figures into this SVG file")
    costs_parser = commands.add_parser(
        "costs",
        help="layers in each format beside what the model of costs expects",
        description="Time layers in every format a cut-out may hold them in, beside the model by which it chooses, and "
        "say how often the model is right and what its mistakes cost. Takes about two minutes.",
    )
    costs_parser.set_defaults(run=_costs)
    costs_parser.add_argument("--save", type=Path, metavar="FILE", help="store the rows as JSON, to fit the model to")
    solver = commands.add_parser(
        "solver",
        help="the accuracy of the solvers on tasks 2 to 4 of split CIFAR; exits 1 if one falls short",
        description="Learn tasks 2 to 4 of split CIFAR from one task 1, 50 epochs each, with every solver and seed, "
        "and print each row beside PackNet with the same seed. Takes about ten minutes per row on two cores with bf16. "
        "Finished rows are kept in the folder and not run again.",
    )
    solver.set_defaults(run=_solver)
    solver.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="folder with the CIFAR files")
    solver.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS)[:3], metavar="ROW",
                        help=f"only these: {', '.join(ROWS)} (default: the first three)")  # fmt: skip
    solver.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    solver.add_argument("--threads", type=int, choices=range(1, 129), default=2, metavar="N",
                        help="of this process; two processes with one thread and other seeds or rows can share the "
                        "folder (default: 2)")  # fmt: skip
    solver.add_argument("--output", type=Path, default=Path("runs/solver"), metavar="DIR",
                        help="folder for task 1 and the finished rows (default: runs/solver)")  # fmt: skip
    avalanche = commands.add_parser(
        "avalanche",
        help="rival methods beside Avalanche's on permuted MNIST; exits 1 if one falls short",
        description="Train every method and Avalanche's implementation of it on the same tasks of permuted MNIST, with "
        "the same network and epochs, one after the other, and print accuracies and milliseconds per step. "
        "Avalanche is installed into a virtual environment of its own on first use. Takes about three hours on two "
        "cores; the times, which come last, take a quarter of one and want the machine for themselves. Finished runs "
        "are kept in the folder and not run again, so that several processes can share the work.",
    )
    avalanche.set_defaults(run=_avalanche)
    avalanche.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="folder with the MNIST files")
    avalanche.add_argument("--methods", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="METHOD",
                           help=f"only these: {', '.join(PEERS)}")  # fmt: skip
    avalanche.add_argument("--tasks", type=int, choices=range(1, 11), default=5, metavar="N", help="(default: 5)")
    avalanche.add_argument("--threads", type=int, choices=range(1, 1025), default=2, metavar="N", help="(default: 2)")
    avalanche.add_argument("--output", type=Path, default=Path("runs/avalanche"), metavar="DIR",
                           help="folder for the finished runs (default: runs/avalanche)")  # fmt: skip
    evidence = commands.add_parser(
        "evidence",
        help="the paper's tables beside those of the runs in results",
        description="Make the tables of docs/results.md from the runs in the folder results; `figures evidence` prints "
        "what has a bound.",
    )
    evidence.set_defaults(run=_evidence)
    evidence.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    picture = commands.add_parser(
        "picture",
        help="the accuracies of a run of lps.train",
        description="Draw the accuracy of every task after each later one.",
    )
    picture.set_defaults(run=_picture)
    picture.add_argument("results", type=Path, metavar="RESULTS", help="results.json of a run")
    picture.add_argument("picture", type=Path, metavar="FILE", help="SVG file to write")
    return parser


def _table(options: argparse.Namespace) -> int:
    stored = load(options.compare) if options.compare else None
    if options.save:
        _check_writable("--save", options.save)
    device = Device(options.device, DTYPES[options.dtype])
    reason = device.why_not()
    if reason is not None:
        raise UnmeasurableError(f"no kernels of ours run on {options.device}: {reason}")
    ops = [op for op in options.ops if device.dtype == torch.float32 or device.dtype in REGISTRY[op].dtypes]
    threads = use_two_threads()
    apply_to_torch()
    rows = print_table(ops, options.networks, stored, device)
    if options.save:
        save(options.save, rows, threads, device)
    return 0 if len(rows) == len(ops) * len(options.networks) else SHORT


def _figures(options: argparse.Namespace) -> int:
    if options.picture:
        _check_writable("--picture", options.picture)
    use_two_threads()
    return 0 if print_figures(options.group, options.picture) else SHORT


def _costs(options: argparse.Namespace) -> int:
    if options.save:
        _check_writable("--save", options.save)
    check_operators()
    use_two_threads()
    rows = costs.print_costs()
    if options.save:
        costs.save(options.save, rows)
    return 0


def _solver(options: argparse.Namespace) -> int:
    check_operators()
    torch.set_num_threads(options.threads)
    return 0 if print_solvers(options.data_dir, options.rows, options.seeds, options.output) else SHORT


def _avalanche(options: argparse.Namespace) -> int:
    holds = print_comparison(options.data_dir, options.methods, options.tasks, options.threads, options.output)
    return 0 if holds else SHORT


def _evidence(options: argparse.Namespace) -> int:
    if options.write:
        write_all(options.write)
    else:
        for section in SECTIONS:
            print(f"{section}\n\n{content(section)}\n")
    return 0


def _picture(options: argparse.Namespace) -> int:
    _check_writable("FILE", options.picture)
    write_run(options.results, options.picture)
    return 0


def _check_writable(option: str, path: Path) -> None:
    """Before minutes of measuring, not after them."""
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise ValueError(f"{option}: {path} cannot be written")
