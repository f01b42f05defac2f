"""``python -m lps.sweep``: one method with several values of its settings, as one table.

Runs whose task 1 is the same begin with copies of it, as in the paper, and end as if they had learnt it themselves.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote

from lps.cli import COMMANDS, guarded
from lps.errors import ConfigError
from lps.options import read_yaml, shown
from lps.runs.set_parser import set_parser
from lps.runs.settings import Settings, settings_from
from lps.train import check_used

if TYPE_CHECKING:
    from lps.runs.batch import Run
    from lps.runs.set_command import SetCommand

PROG = "lps.sweep"

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.92, 1.0)  # with those that the paper's text names
PATTERNS = ("irregular", "column", "filter")  # those of Tables VI and VII
CAPACITIES = (0.1, 0.25, 0.5, 0.75, 1.0)
SWEEPS = ("share", "pattern-share", "capacity")


@dataclass(frozen=True)
class Value:
    """One value of what is varied: the name of its column, the value as it is shown, and the settings it means."""

    name: str
    text: str
    settings: Mapping[str, object]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    text = "Task 1 is learnt once for all runs in which it is the same. All combinations of what is varied are run."
    parser = set_parser(PROG, f"{COMMANDS['sweep'].capitalize()}. {text}", without=())
    parser.add_argument(
        "--sweep",
        choices=SWEEPS,
        help="of the paper: the share that is reused (Figs. 5, 6), patterns and shares (Tables VI, VII), the share of "
        "the network that all tasks own (Fig. 7)",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=V1,V2,...",
        help="values of a setting, as in lr=0.001,0.002 or epochs=[1,3,1],[2,6,2]; may be repeated",
    )
    flags = vars(parser.parse_args(arguments))
    sweep, vary = flags.pop("sweep"), flags.pop("vary")
    from lps.runs.batch import sharing_first_tasks
    from lps.runs.kinds import SWEEP
    from lps.runs.set_command import SetCommand

    try:
        command = SetCommand(PROG, arguments, flags, SWEEP)
        if command.only_show and not (sweep or vary):
            return command.show()
        common = settings_from(command.given)
        command.share_threads(common.threads)
        axes = [*(_axes(sweep, common) if sweep else ()), *(_axis(text, common) for text in vary)]
        if not axes:
            raise ConfigError("--sweep or --vary: say what to vary")
        return command.run(sharing_first_tasks(_runs(command, axes)))
    except ConfigError as error:
        parser.error(str(error))


def _axes(sweep: str, common: Settings) -> list[list[Value]]:
    """What one of the paper's figures or tables varies."""
    if sweep == "share":
        return [[_value("beta", share, common) for share in SHARES]]
    if sweep == "capacity":
        return [[_capacity(share, common) for share in CAPACITIES]]
    best = settings_from({"benchmark": common.benchmark, "preset": "paper"}).of_task(2).beta
    shares = [_value("beta", share, common) for share in (0.0, 1.0, best)]
    return [[_value("pattern", pattern, common) for pattern in PATTERNS], shares]


def _capacity(share: float, common: Settings) -> Value:
    """All tasks together own this share of the network, in the proportions of the common settings."""
    alphas = [common.lps.of_task(number).alpha for number in range(1, common.tasks + 1)]
    if not all(isinstance(alpha, int | float) for alpha in alphas) or not sum(alphas):  # type: ignore[arg-type]
        raise ConfigError(f"alpha: expected numbers, of which --sweep capacity makes others, got {shown(alphas)}")
    total = sum(alphas)  # type: ignore[arg-type]
    scaled = [round(share * alpha / total, 12) for alpha in alphas]  # type: ignore[operator]
    return Value("capacity", str(share), {"alpha": scaled})


def _axis(text: str, common: Settings) -> list[Value]:
    """The values of ``--vary NAME=V1,V2,...``."""
    name, equals, values = text.partition("=")
    name = name.replace("-", "_")
    if not (name and equals and values):
        raise ConfigError(f"--vary: expected NAME=V1,V2,..., got {shown(text)}")
    if name in ("seed", "output"):
        raise ConfigError(f"--vary: {name}: each run has its own; give --seeds and --output")
    try:
        listed = read_yaml(f"[{values}]")
    except ConfigError as error:
        raise ConfigError(f"--vary: {name}: {error}") from None
    if not isinstance(listed, list) or None in listed:
        raise ConfigError(f"--vary: {name}: expected values that its flag can have, got {shown(values)}")
    axis = [_value(name, value, common) for value in listed]
    if len({value.text for value in axis}) < len(axis):
        raise ConfigError(f"--vary: {name}: expected different values, got {shown(values)}")
    return axis


def _value(name: str, value: object, common: Settings) -> Value:
    text = value if isinstance(value, str) else json.dumps(value)
    if name == "beta" and not isinstance(value, list):
        # Task 1 has nothing to reuse; with one and the same value it is the same for all runs.
        value = [common.of_task(1).beta, value]
    return Value(name, text, {name: value})


def _runs(command: SetCommand, axes: Sequence[Sequence[Value]]) -> list[Run]:
    from lps.runs.batch import make_run

    names = [axis[0].name for axis in axes]
    if len(set(names)) < len(names):
        raise ConfigError(f"--vary: expected each setting once, got {', '.join(names)}")
    runs: list[Run] = []
    for values in product(*axes):
        row = ",".join(f"{value.name}={quote(value.text, safe=':')}" for value in values)
        given = dict(command.given)
        for value in values:
            given |= value.settings
        check_used(given, given.get("method", Settings.method))
        runs += [make_run(row, seed, given) for seed in command.seeds]
    return runs


if __name__ == "__main__":
    sys.exit(main())
