"""What the commands that run sets share: from the flags to the tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from lps.cli import FAILED, Output
from lps.errors import ConfigError, complain
from lps.launchers import Launch
from lps.launchers.slurm import EXECUTORS
from lps.options import read_yaml, shown
from lps.pages.page import report_on
from lps.runs.batch import JOBS, Run, check, cores, launch, outcomes, print_commands, read_numbers
from lps.runs.directory import is_complete
from lps.runs.loggers import check_installed
from lps.runs.report import Kind, Report
from lps.runs.set_parser import PRINT, SEEDS
from lps.runs.settings import Settings

_OWN = ("seeds", "output", "launcher", "jobs", "slurm", "slurm_executor")


class SetCommand:
    """A command line, taken apart: flags of the set, and settings that are common to its runs (``given``)."""

    def __init__(self, prog: str, arguments: Sequence[str], flags: dict[str, Any], kind: Kind) -> None:
        self.prog, self.arguments, self.kind = prog, arguments, kind
        self.only_show = set(flags) == {"output"}
        own = {name: flags.pop(name) for name in _OWN if name in flags}
        self.given: dict[str, object] = flags
        self.seeds = read_numbers("--seeds", own.get("seeds", SEEDS))
        self.launcher = own.get("launcher", "local")
        self.jobs, self.executor = own.get("jobs"), own.get("slurm_executor", EXECUTORS[0])
        self.parameters = dict(_parameter(text) for text in own.get("slurm", ()))
        benchmark = flags.get("benchmark", Settings.benchmark)
        self.output = Path(own.get("output") or f"runs/{prog.removeprefix('lps.')}-{benchmark}")

    def share_threads(self, threads: int | None) -> None:
        """Divide the cores among the runs, where neither settings nor preset say how many threads a run has."""
        if self.jobs is None:
            self.jobs = max(1, cores() // threads) if threads is not None and self.launcher == "local" else None
        elif threads is None:
            self.given["threads"] = max(1, cores() // self.jobs)

    def run(self, runs: Sequence[Run]) -> int:
        """Run the set and show its tables; returns the exit code."""
        check(self.output, runs)
        if self.launcher == PRINT:
            print_commands(self.output, runs)
            return 0
        check_installed({name for run in runs for name in run.settings.loggers})
        go_on = shlex.join(["python", "-m", self.prog, *self.arguments])
        how = Launch(self.jobs, self.output / JOBS, self._ended(runs), self.executor, self.parameters)
        with redirect_stdout(cast("TextIO", Output(sys.stdout, needed=False))):  # a closed pipe must not end the runs
            launch(self.output, runs, self.launcher, how, go_on)
        return self.show(runs)

    def show(self, runs: Sequence[Run] = ()) -> int:
        """Print the tables of what the directory holds and write them to it; returns the exit code."""
        found = outcomes(self.output, runs)
        if not found:
            raise ConfigError(f"--output: {self.output} holds no runs of {self.prog}; say which to run, see --help")
        report = Report(found, self.kind)
        report.write(self.output)
        print(report.text(), flush=True)
        if page := report_on(self.prog, self.output):
            print(f"\nreport: {page}", flush=True)
        asked = {run.name for run in runs}
        failed = [outcome for outcome in found if outcome.name in asked and outcome.results is None]
        for outcome in failed:
            complain(self.prog, f"{outcome.name}: {outcome.reason}")
        return FAILED if failed else 0

    def _ended(self, runs: Sequence[Run]) -> Callable[[str], None]:
        names = {run.name for run in runs}

        def ended(name: str) -> None:
            if name in names:
                complete = {run.name for run in runs if is_complete(self.output / run.name, run.settings.tasks)}
                how = "complete" if name in complete else "failed"
                print(f"{name}: {how}; {len(complete)} of {len(names)} runs are complete", flush=True)

        return ended


def _parameter(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--slurm: expected NAME=VALUE, got {shown(text)}")
    return name, read_yaml(value)
