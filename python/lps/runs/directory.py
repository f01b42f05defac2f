"""The run directory: ``config.yaml``, ``results.json``, ``metrics.csv``, TensorBoard events, ``model.lps``, ``state``.

Files that a resumed run reads are replaced atomically, so that a run can be killed at any moment.
"""

from __future__ import annotations

import csv
import json
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from itertools import count
from math import isnan
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch
from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

from lps.artifact.atomic import is_temporary, write_atomically
from lps.errors import ConfigError, FileFormatError
from lps.lifelong import Lifelong
from lps.methods import Method
from lps.runs import metrics
from lps.runs.events import Resumed, Row, TaskReport
from lps.runs.lock import LOCK
from lps.runs.settings import Settings
from lps_kernels import __version__

CONFIG, RESULTS, METRICS, MODEL = "config.yaml", "results.json", "metrics.csv", "model.lps"
STATE = "state"  # the folder with the state of the task being learnt

# Fields of a row that say where its values belong.
_PLACE = ("task", "phase", "event", "epoch", "step", "seconds", "layer")


@dataclass
class Records:
    """What was measured per task; the rest of results.json is computed from it and the network."""

    accuracy: list[list[float]] = field(default_factory=list)  # row i: tasks 1 to i after task i
    tasks: list[dict[str, Any]] = field(default_factory=list)

    def add(self, report: TaskReport, digest: str, accuracy: list[float], seconds: float) -> None:
        """Append a task."""
        self.accuracy.append(accuracy)
        self.tasks.append(
            {
                "name": report.name,
                "seconds": seconds,
                "phase_seconds": report.seconds,
                "validation_before_projection": _known(report.accuracy_before_projection),
                "validation_after_projection": _known(report.accuracy_after_projection),
                "validation": _known(report.accuracy),
                "residuals": [[_known(value) for value in residual] for residual in report.residuals],
                "shares": {layer: _known(share) for layer, share in report.shares.items()},
                "digest": digest,
            }
        )


def make_next(benchmark: str) -> Path:
    """Make the first ``runs/<benchmark>-<number>`` that does not exist."""
    Path("runs").mkdir(exist_ok=True)
    for number in count(1):
        path = Path("runs") / f"{benchmark}-{number}"
        with suppress(FileExistsError):  # perhaps made by another run just now
            path.mkdir()
            break
    return path


def check_unused(path: Path) -> None:
    """Refuse a directory that is not empty."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"output: {path} is a file; choose a directory")
    if path.exists() and any(not _is_left_over(file) for file in path.iterdir()):
        go_on = ", or go on with the run in it with --resume" if (path / CONFIG).exists() else ""
        raise ConfigError(f"output: {path} is not empty; choose another{go_on}")


def _is_left_over(file: Path) -> bool:
    """Whether a run that was killed at its very start may have left this file behind."""
    return file.name == LOCK or is_temporary(file)


def read_records(path: Path, learnt: int) -> Records:
    """The records of the first ``learnt`` tasks of a run; a task that was recorded but not saved is left out."""
    try:
        results = json.loads((path / RESULTS).read_text(encoding="utf-8"))
        rows = [[float(value) for value in row if value is not None] for row in results["accuracy"]][:learnt]
        tasks = [dict(task) for task in results["tasks"]][:learnt]
        for task in tasks:  # what the table shows
            float(task["seconds"]), str(task["name"])
    except FileNotFoundError:
        raise FileFormatError(
            f"{path / RESULTS}: is missing, but {MODEL} has {learnt} tasks; start another run"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path / RESULTS}: is not the record of a run ({error}); start another run") from None
    if [len(row) for row in rows] != list(range(1, learnt + 1)) or len(tasks) != learnt:
        raise FileFormatError(f"{path / RESULTS}: lacks some of the {learnt} tasks of {MODEL}; start another run")
    return Records(rows, tasks)


def write_results(path: Path, settings: Settings, method: Method, records: Records) -> dict[str, Any]:
    """Write results.json; returns its contents."""
    model = path / MODEL
    results = _results_of(settings, method, records, model.stat().st_size if model.exists() else None)
    write_atomically(path / RESULTS, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    return results


def _results_of(settings: Settings, method: Method, records: Records, artifact_bytes: int | None) -> dict[str, Any]:
    matrix: list[list[float | None]] = [[*row, *[None] * (settings.tasks - len(row))] for row in records.accuracy]
    return {
        "benchmark": settings.benchmark,
        "method": settings.method,
        "seed": settings.seed,
        "accuracy": matrix,
        "average_accuracy": _known(metrics.average_accuracy(matrix)),
        "forgetting": _known(metrics.forgetting(matrix)),
        "bwt": _known(metrics.bwt(matrix)),
        **method.figures(),
        "artifact_bytes": artifact_bytes,
        "seconds": sum(task["seconds"] for task in records.tasks),
        "tasks": records.tasks,
        "version": __version__,
        "threads": torch.get_num_threads(),
        "device": settings.device,
    }


class RunDirectory:
    """Writes the files of a run into its locked directory; ``steps`` are those of the tasks learnt so far."""

    def __init__(self, path: Path, settings: Settings, learnt: int, steps: int) -> None:
        self.path, self.settings = path, settings
        self._steps = self._purge = steps
        for folder in (path, path / STATE):
            for file in filter(is_temporary, folder.glob(".*")):
                file.unlink()
        # First of all: without it there is no run to go on with.
        write_atomically(path / CONFIG, settings.to_yaml().encode())
        self._rows, self._unfinished = self._read_rows(learnt)
        self._files = ExitStack()

    @cached_property
    def _table(self) -> TextIO:
        """metrics.csv, open for more rows, without those of steps that will be taken again.

        Not before the first new row: until then a run that is refused or killed must leave all rows where they are.
        """
        path = self.path / METRICS
        header = ",".join(option.name for option in fields(Row))
        write_atomically(path, ("\n".join([header, *self._rows]) + "\n").encode())
        return self._files.enter_context(path.open("a", newline="", encoding="utf-8"))

    @cached_property
    def _events(self) -> SummaryWriter:
        # Events of steps that will be taken again are to be forgotten, like their rows. TensorBoard forgets those at
        # the step and after it, but what was told of the last step that was saved stands.
        writer = SummaryWriter(str(self.path), purge_step=self._purge + 1 if self._purge else 0)
        self._files.callback(writer.close)
        return writer

    def __enter__(self) -> RunDirectory:
        """The files are closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._files.close()

    def resumed(self, place: Resumed) -> None:
        """A task resumes in its middle: keep the rows written for it before."""
        self._rows += self._unfinished[: place.rows]
        self._purge += place.steps

    def row(self, row: Row) -> None:
        """Add a line to metrics.csv and its values to the events."""
        csv.writer(self._table).writerow([_known(value) for value in astuple(row)])
        self._table.flush()
        for option in fields(Row):
            value = getattr(row, option.name)
            if option.name not in _PLACE and not isnan(value):
                name = "/".join(filter(None, (f"task {row.task}", row.layer, option.name)))
                self._events.add_scalar(name, value, self._steps + row.step)

    def save(self, net: Lifelong, method: Method, records: Records, steps: int) -> dict[str, Any]:
        """Write the network and the results after a task of ``steps`` steps."""
        self._steps += steps
        for number, accuracy in enumerate(records.accuracy[-1], start=1):
            self._events.add_scalar(f"test accuracy/task {number}", accuracy, self._steps)
        # After a kill between these two lines the surplus record is ignored; in the other order it would be missing.
        write_results(self.path, self.settings, method, records)
        net.save(self.path / MODEL)
        return write_results(self.path, self.settings, method, records)

    def _read_rows(self, learnt: int) -> tuple[list[str], list[str]]:
        """The rows of finished tasks, and those of the task under way; whatever else is in the file is left out."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        finished = {str(task) for task in range(1, learnt + 1)}
        tasks = [(line.partition(",")[0], line) for line in lines]
        kept = [line for task, line in tasks if task in finished]
        return kept, [line for task, line in tasks if task == str(learnt + 1)]


def _known(value: Any) -> Any:
    """None for NaN, which JSON does not know; csv leaves it empty."""
    return None if isinstance(value, float) and isnan(value) else value
