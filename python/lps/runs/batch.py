"""Sets of runs in one directory: every run is a command of its own that can be repeated at any time.

``<row>-seed<seed>`` are the run directories, ``task1`` holds runs of task 1 that others begin with, ``logs`` what the
commands print. The tables are made from what the directories hold.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lps.errors import ConfigError, FileFormatError, StoppedError, in_a_sentence
from lps.launchers import LAUNCHERS, Command, Launch
from lps.options import shown
from lps.runs.directory import cut_short, is_complete
from lps.runs.lock import locked
from lps.runs.report import Outcome, read_results
from lps.runs.settings import CONFIG, Settings, difference, first_task_key, read_settings, settings_from

LOGS, FIRST, JOBS = "logs", "task1", "jobs"
SILENT = "it has ended without a word, so it was probably killed"
NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Run:
    """A run of a set: a row and a seed, what is given of its settings by name, and all of them."""

    row: str
    seed: int
    given: Mapping[str, object]
    settings: Settings
    first_task: str | None = None  # the name of the run of task 1 that it begins with

    @property
    def name(self) -> str:
        """That of its directory."""
        return f"{self.row}-seed{self.seed}"

    def command(self, output: Path) -> list[str]:
        """The command that begins it, goes on with it or, if it is complete, changes nothing."""
        first = [] if self.first_task is None else ["--first-task", str(output / FIRST / self.first_task)]
        return _command(self.given, output / self.name, first)

    def first_task_command(self, output: Path) -> list[str]:
        """The command that learns its task 1 alone."""
        alone = {name: value for name, value in self.given.items() if name != "fill_last"}
        return _command({**alone, "tasks": 1}, output / FIRST / str(self.first_task), [])


def make_run(row: str, seed: int, given: Mapping[str, object]) -> Run:
    """A run with these settings and this seed; the first wrong one is refused."""
    given = {**given, "seed": seed}
    return Run(row, seed, given, settings_from(given))


def _command(given: Mapping[str, object], output: Path, more: list[str]) -> list[str]:
    return [sys.executable, "-m", "lps.train", *as_flags(given), "--output", str(output), "--resume-if-begun", *more]


def as_flags(given: Mapping[str, object]) -> list[str]:
    """Settings by name as flags of ``lps.train``."""
    flags: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags += [flag] * value
        else:
            flags += [flag, as_text(value)]
    return flags


def as_text(value: object) -> str:
    """A plain value as the text of a flag."""
    if isinstance(value, list | tuple) and len(value) > 1:
        if all(isinstance(item, int | float | str) for item in value):
            return ",".join(map(str, value))
        if all(isinstance(item, list | tuple) for item in value):
            return ";".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def sharing_first_tasks(runs: Sequence[Run]) -> list[Run]:
    """The runs, where several have the same task 1, with its name."""
    keys = [first_task_key(run.settings) if run.settings.tasks > 1 else None for run in runs]
    return [
        replace(run, first_task=key if key is not None and keys.count(key) > 1 else None)
        for run, key in zip(runs, keys, strict=True)
    ]


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows do not tell


def check(output: Path, runs: Iterable[Run]) -> None:
    """Refuse a set that differs from what its directory holds, before anything is started."""
    asked = {run.name: run.settings for run in runs}
    any_asked = next(iter(asked.values()))
    for outcome in outcomes(output, ()):
        if outcome.settings is None:
            continue
        where, remedy = output / outcome.name, "ask for the same or choose another --output"
        if outcome.name in asked:
            if problem := difference(outcome.settings, asked[outcome.name]):
                raise ConfigError(f"{where}: {problem}; {remedy}")
        elif outcome.settings.benchmark != any_asked.benchmark:
            raise ConfigError(f"{where}: is a run of {outcome.settings.benchmark}, not {any_asked.benchmark}; {remedy}")


def print_commands(output: Path, runs: Iterable[Run]) -> None:
    """Print the command of every run that is not complete, one per line, for a shell."""
    for run in _waiting(output, runs):
        print(shlex.join(run.command(output)))


def launch(output: Path, runs: Sequence[Run], launcher: str, how: Launch, go_on: str) -> None:
    """Run what is not complete: first the tasks that several runs begin with, then the runs."""
    start = LAUNCHERS[launcher](how)
    with locked(output):
        for commands in (_first_tasks(output, runs), _commands(output, runs)):
            if commands:
                try:
                    start(commands)
                except StoppedError as error:
                    complete = len(runs) - len(_waiting(output, runs))
                    stopped = StoppedError(f"{error}; {complete} of {len(runs)} runs are complete; go on with: {go_on}")
                    stopped.exit_code = error.exit_code
                    raise stopped from None


def _first_tasks(output: Path, runs: Sequence[Run]) -> list[Command]:
    owners = {run.first_task: run for run in _waiting(output, runs) if run.first_task is not None}
    return [
        Command(f"{FIRST}-{name}", tuple(run.first_task_command(output)), output / LOGS)
        for name, run in owners.items()
        if not is_complete(output / FIRST / str(name), 1)
    ]


def _commands(output: Path, runs: Sequence[Run]) -> list[Command]:
    return [Command(run.name, tuple(run.command(output)), output / LOGS) for run in _waiting(output, runs)]


def _waiting(output: Path, runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if not is_complete(output / run.name, run.settings.tasks)]


def outcomes(output: Path, runs: Iterable[Run]) -> list[Outcome]:
    """What came of the runs that the directory holds, and of those that were asked for."""
    names = {run.name for run in runs}
    if output.is_dir():
        names |= {path.parent.name for path in output.glob(f"*/{CONFIG}")}
        names |= {path.stem for path in (output / LOGS).glob("*.err")}
    found = [(name, re.fullmatch(r"(.+)-seed(\d{1,19})", name)) for name in sorted(names)]
    return [outcome_of(output / name, match[1], int(match[2])) for name, match in found if match]


def outcome_of(path: Path, row: str, seed: int) -> Outcome:
    """What came of the run in a directory, which is one of this row and seed."""
    if not (path / CONFIG).is_file():
        return Outcome(row, seed, reason=_reason(path))
    settings = settings_from(read_settings(path / CONFIG))
    if not is_complete(path, settings.tasks):
        return Outcome(row, seed, settings, reason=_reason(path))
    try:
        return Outcome(row, seed, settings, read_results(path))
    except FileFormatError as error:
        return Outcome(row, seed, settings, reason=in_a_sentence(error))


def _reason(path: Path) -> str:
    """Why a run is not complete: its file is not whole, or the last line that it wrote to its standard error."""
    if damage := cut_short(path):
        return damage
    log = path.parent / LOGS / f"{path.name}.err"
    if not log.is_file():
        return NOT_BEGUN if not (path / CONFIG).is_file() else "interrupted"
    lines = log.read_text(errors="replace").strip().splitlines()
    return in_a_sentence(lines[-1].removeprefix("lps.train: ")) if lines else SILENT


def read_numbers(flag: str, text: str) -> list[int]:
    """The seeds of a set."""
    numbers = [int(part) if re.fullmatch(r"\d{1,19}", part) else -1 for part in text.split(",")]
    if min(numbers) < 0 or max(numbers) >= 2**63 or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"{flag}: expected different whole numbers from 0 to 2^63 - 1, as in 0,1,2, got {shown(text)}"
        )
    return numbers
