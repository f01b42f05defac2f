"""The run directory: ``config.yaml``, ``results.json``, ``metrics.csv``, what loggers keep, ``model.lps``, ``state``,
and ``memory-<tasks>.safetensors`` where the method keeps more than the network.

Files that a resumed run reads are replaced atomically, so that a run can be killed at any moment.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple, dataclass, field, fields
from functools import cached_property
from itertools import count
from math import isfinite, isnan
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from lps.artifact.atomic import Log, is_temporary, write_atomically
from lps.environment import peak_memory, processor
from lps.errors import ConfigError, FileFormatError, in_a_sentence
from lps.lifelong import Lifelong
from lps.methods.base import Method
from lps.options import shown
from lps.reading import open_regular, parse_json, read_bytes
from lps.runs import metrics
from lps.runs.checkpoint import decode, encode
from lps.runs.events import Resumed, Row, TaskReport
from lps.runs.lock import LOCK
from lps.runs.loggers import Loggers, Start
from lps.runs.settings import CONFIG, Settings
from lps.task import Learnt
from lps_kernels import __version__

RESULTS, METRICS, MODEL = "results.json", "metrics.csv", "model.lps"
STATE = "state"  # the folder with the state of the task being learnt
MEMORY = "memory-{}.safetensors"  # what the method keeps beside the network, after so many tasks

# Fields of a row that say where its values belong.
_PLACE = ("task", "phase", "event", "epoch", "step", "seconds", "layer")

_SUMMARY = ("average_accuracy", "forgetting", "bwt")  # of results.json, for loggers

MOST_BYTES = 1 << 28  # of results.json and of metrics.csv; a run of 127 tasks with 1,000 epochs each has some 100 MB

Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]  # the sum over all tasks is finite, too


@dataclass(kw_only=True)
class TaskRecord:
    """What was measured of one task; None stands for a value that there is not."""

    name: str
    seconds: Seconds
    phase_seconds: dict[str, Seconds]
    validation_before_projection: Share | None
    validation_after_projection: Share | None
    validation: Share | None
    residuals: list[tuple[float | None, float | None, float | None]]  # of TaskReport
    shares: dict[str, Share | None] = field(default_factory=dict)  # records of earlier versions have none
    digest: str


@dataclass
class Records:
    """What was measured per task; the rest of results.json is computed from it and the network."""

    accuracy: list[list[float]] = field(default_factory=list)  # row i: tasks 1 to i after task i
    tasks: list[TaskRecord] = field(default_factory=list)
    peak_memory_bytes: int | None = None  # of the process; the largest, if the run was resumed

    def add(self, report: TaskReport, digest: str, accuracy: list[float], seconds: float) -> None:
        """Append a task."""
        self.accuracy.append(accuracy)
        self.peak_memory_bytes = max(peak_memory(), self.peak_memory_bytes or 0)
        self.tasks.append(
            TaskRecord(
                name=report.name,
                seconds=seconds,
                phase_seconds=report.seconds,
                validation_before_projection=_known(report.accuracy_before_projection),
                validation_after_projection=_known(report.accuracy_after_projection),
                validation=_known(report.accuracy),
                residuals=[(_known(rho), _known(primal), _known(dual)) for rho, primal, dual in report.residuals],
                shares={layer: _known(share) for layer, share in report.shares.items()},
                digest=digest,
            )
        )


@dataclass
class _Results:
    """The part of results.json that a resumed run reads."""

    accuracy: list[list[Share | None]]
    tasks: list[TaskRecord]
    peak_memory_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None  # records of earlier versions have none


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


def check_members(path: Path) -> None:
    """Refuse a run whose files are pipes, devices or folders, or lead nowhere, before they are waited for or a learnt
    task cannot be written.
    """
    state = path / STATE
    if state.is_symlink() or state.exists():
        if not state.is_dir():
            raise FileFormatError(f"{state}: expected a folder; delete it to learn the task from its start")
        states = list(state.glob("state-*"))
    else:
        states = []
    for file in (*(path / name for name in (CONFIG, RESULTS, METRICS, MODEL)), *_memories(path), *states):
        try:
            if file.is_symlink() or file.exists():
                open_regular(file).close()
        except OSError as error:
            raise FileFormatError(f"{file}: cannot be read: {error.strerror}; put the file of the run there") from None


def is_complete(path: Path, tasks: int) -> bool:
    """Whether the run in this directory has learnt and saved so many tasks, and its file has kept its size."""
    try:
        results = parse_json(read_bytes(path / RESULTS, MOST_BYTES))
        if not isinstance(results, dict) or len(results["tasks"]) != tasks:
            return False
        return results["artifact_bytes"] is not None and cut_short(path) is None
    except (OSError, ValueError, LookupError, TypeError):
        return False


def cut_short(path: Path) -> str | None:
    """How the size of a run's file differs from the recorded one; None if it does not, or there is no file."""
    try:
        size = (path / MODEL).stat().st_size
        recorded = parse_json(read_bytes(path / RESULTS, MOST_BYTES))["artifact_bytes"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if recorded in (None, size):
        return None
    return (
        f"{MODEL}: expected {shown(recorded)} bytes, got {size}: the file is damaged; put the whole one there, or "
        "delete the run's directory to learn it again"
    )


def _memories(path: Path) -> list[Path]:
    return list(path.glob(MEMORY.format("*")))


def read_memory(path: Path, method: Method) -> None:
    """Give a method back what it had beside the network when that was saved."""
    file = path / MEMORY.format(len(method.learnt))
    there, remedy = file.exists(), "put the file of the run there, or start another run"
    try:
        method.load_memory(decode(read_bytes(file)) if there else {})
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "not enough memory"
        raise FileFormatError(f"{file}: cannot be read: {reason}; check the file") from None
    # Whatever a file that was not written by us can bring about.
    except (FileFormatError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if not there:
            raise FileFormatError(f"{file}: is missing: {method.name} cannot go on without it; {remedy}") from None
        reason = in_a_sentence(repr(error) if isinstance(error, LookupError) else error)
        raise FileFormatError(
            f"{file}: is not what {method.name} remembers of these tasks ({reason}); {remedy}"
        ) from None


def read_records(path: Path, learnt: Sequence[Learnt], *, forgets: bool) -> Records:
    """The records of a run's learnt tasks; a task that was recorded but not saved is left out.

    A method that ``forgets`` has changed earlier tasks since they were recorded: only the latest one must be the same.
    """
    file, remedy = path / RESULTS, "put the file of the run there, or start another run"
    try:
        results = msgspec.convert(parse_json(read_bytes(file, MOST_BYTES)), _Results)
    except OSError as error:
        raise FileFormatError(f"{file}: cannot be read: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise FileFormatError(f"{file}: is not the record of a run ({error}); {remedy}") from None
    tasks = results.tasks[: len(learnt)]
    rows = [[value for value in row[:number] if value is not None] for number, row in enumerate(results.accuracy, 1)]
    rows = rows[: len(learnt)]
    if [len(row) for row in rows] != list(range(1, len(learnt) + 1)) or len(tasks) != len(learnt):
        raise FileFormatError(f"{file}: lacks some of the {len(learnt)} tasks of {MODEL}; {remedy}")
    for number, (record, task) in enumerate(zip(tasks, learnt, strict=True), 1):
        changed = record.digest != task.digest and not (forgets and number < len(learnt))
        if record.name != task.name or changed:
            raise FileFormatError(f"{file}: is not of the tasks in {MODEL}, from {task.name} on; {remedy}")
    return Records(rows, tasks, results.peak_memory_bytes)


def write_results(path: Path, results: dict[str, Any], *, saved: bool = True) -> dict[str, Any]:
    """Write results.json; returns its contents. Until the file with all of these tasks is ``saved``, its size is
    unknown.
    """
    results = {**results, "artifact_bytes": (path / MODEL).stat().st_size if saved else None}
    write_atomically(path / RESULTS, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    return results


def results_of(settings: Settings, method: Method, records: Records) -> dict[str, Any]:
    """The contents of results.json, but for the size of the file; counting the weights of all tasks takes a while."""
    matrix: list[list[float | None]] = [[*row, *[None] * (settings.tasks - len(row))] for row in records.accuracy]
    over_time = [] if method.at_once else matrix  # the rows before the last are of a network that has learnt nothing
    return {
        "benchmark": settings.benchmark,
        "method": settings.method,
        "seed": settings.seed,
        "accuracy": matrix,
        "average_accuracy": _known(metrics.average_accuracy(matrix)),
        "forgetting": _known(metrics.forgetting(over_time)),
        "bwt": _known(metrics.bwt(over_time)),
        "incremental_accuracy": _known(metrics.incremental_accuracy(over_time)),
        **method.figures(),
        "artifact_bytes": None,
        "seconds": sum(task.seconds for task in records.tasks),
        "peak_memory_bytes": records.peak_memory_bytes,
        "tasks": [asdict(task) for task in records.tasks],
        "version": __version__,
        "torch": torch.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "device": settings.device,
    }


class RunDirectory:
    """Writes the files of a run into its locked directory; ``steps`` are those of the tasks learnt so far."""

    def __init__(self, path: Path, settings: Settings, learnt: int, steps: int) -> None:
        self.path, self.settings = path, settings
        self._steps = steps
        for folder in (path, path / STATE):
            for file in filter(is_temporary, folder.glob(".*")):
                with suppress(IsADirectoryError):  # not ours
                    file.unlink()
        # First of all: without it there is no run to go on with.
        write_atomically(path / CONFIG, settings.to_yaml().encode())
        self._rows, self._unfinished = self._read_rows(learnt)
        self._again = set(map(_place_of, self._unfinished))  # rows of steps that will be taken again
        self._files = ExitStack()
        self._loggers = Loggers(settings.loggers, Start(path, settings.flat(), steps))

    @cached_property
    def _table(self) -> Log:
        """metrics.csv, open for more rows, without those of steps that will be taken again.

        Not before the first new row: until then a run that is refused or killed must leave all rows where they are.
        """
        path = self.path / METRICS
        header = ",".join(option.name for option in fields(Row))
        write_atomically(path, ("\n".join([header, *self._rows]) + "\n").encode())
        table = Log(path)
        self._files.callback(table.close)
        return table

    def __enter__(self) -> RunDirectory:
        """The files are closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files; without an error the run is complete."""
        self._files.close()
        self._loggers.close(complete=error is None)

    def resumed(self, place: Resumed) -> None:
        """A task resumes in its middle: keep the rows written for it before."""
        self._rows += self._unfinished[: place.rows]
        self._again = set(map(_place_of, self._unfinished[place.rows :]))
        self._loggers.resumed(self._steps + place.steps)

    def row(self, row: Row) -> None:
        """Tell the values to the loggers and add a line to metrics.csv.

        In this order: after a kill in between, the row is told again rather than never.
        """
        text = io.StringIO()
        csv.writer(text).writerow([_known(value) for value in astuple(row)])
        line = text.getvalue()
        values = {option.name: getattr(row, option.name) for option in fields(Row) if option.name not in _PLACE}
        curves = "/".join(filter(None, (f"task {row.task}", row.layer)))
        self._loggers.add(
            {f"{curves}/{name}": value for name, value in values.items() if not isnan(value)},
            self._steps + row.step,
            again=_place_of(line.rstrip()) in self._again,
        )
        self._table.add(line.encode())

    def save(self, net: Lifelong, method: Method, records: Records, steps: int) -> dict[str, Any]:
        """Write the network and the results after a task of ``steps`` steps."""
        self._steps += steps
        # After a kill between these lines surplus records are ignored; in another order something would be missing.
        memory = self.path / MEMORY.format(len(net.learnt))
        if method.memory:
            write_atomically(memory, encode(method.memory))
        results = results_of(self.settings, method, records)
        write_results(self.path, results, saved=False)
        accuracies = {f"test accuracy/task {i}": value for i, value in enumerate(records.accuracy[-1], start=1)}
        summary = {name.replace("_", " "): results[name] for name in _SUMMARY if results[name] is not None}
        self._loggers.add(accuracies | summary, self._steps)
        net.save(self.path / MODEL)
        for file in _memories(self.path):
            if file != memory:
                file.unlink()
        return write_results(self.path, results)

    def _read_rows(self, learnt: int) -> tuple[list[str], list[str]]:
        """The rows of finished tasks, and those of the task under way; whatever else is in the file is left out."""
        path = self.path / METRICS
        text = read_bytes(path, MOST_BYTES).decode(errors="replace") if path.exists() else ""
        lines = text.splitlines()
        finished = {str(task) for task in range(1, learnt + 1)}
        tasks = [(line.partition(",")[0], line) for line in lines]
        kept = [line for task, line in tasks if task in finished]
        return kept, [line for task, line in tasks if task == str(learnt + 1)]


def _place_of(line: str) -> tuple[str, ...]:
    """What tells a row of metrics.csv from the others of its run: the task, the phase and so on, and the layer."""
    first = [option.name for option in fields(Row)].index("seconds")
    return (*line.split(",")[:first], line.rpartition(",")[2])


def _known(value: Any) -> Any:
    """None for NaN and infinities, which JSON does not know; csv leaves them empty."""
    return None if isinstance(value, float) and not isfinite(value) else value
