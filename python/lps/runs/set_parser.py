"""The flags that the commands that run sets share."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Sequence

from lps.cli import Parser, between
from lps.launchers import LAUNCHERS
from lps.launchers.slurm import EXECUTORS
from lps.runs.settings import MOST_THREADS
from lps.train import add_settings

PRINT = "print"
SEEDS = "0,1,2"


def set_parser(prog: str, description: str, without: Sequence[str]) -> Parser:
    """A parser with the flags of every set and, but for those named, every setting; what is not given stays out."""
    parser = Parser(prog, description)
    group = parser.add_argument_group("the set of runs")
    group.add_argument("--seeds", default=SUPPRESS, metavar="N,N,...", help=f"by default {SEEDS}")
    group.add_argument(
        "--output",
        default=SUPPRESS,
        metavar="DIR",
        help="directory of the set; alone: print the tables of what it holds and run nothing",
    )
    group.add_argument(
        "--launcher",
        choices=(*LAUNCHERS, PRINT),
        default=SUPPRESS,
        help="local: processes on this machine (the default); print: a command per line, run nothing; slurm: jobs",
    )
    group.add_argument(
        "--jobs",
        type=between(1, MOST_THREADS),
        default=SUPPRESS,
        metavar="N",
        help="runs at once; unless --threads is given, they divide the cores",
    )
    group.add_argument(
        "--slurm",
        action="append",
        default=SUPPRESS,
        metavar="NAME=VALUE",
        help="parameter of submitit's executor, as in timeout_min=600 or slurm_partition=gpu; may be repeated",
    )
    group.add_argument("--slurm-executor", choices=EXECUTORS, default=SUPPRESS, help="local: try it without a cluster")
    add_settings(parser, without=(*without, "seed", "output"))
    return parser
