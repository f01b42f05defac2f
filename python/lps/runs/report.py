"""What a set of runs has shown: rows of runs that differ by their seed alone, as tables and as CSV.

Everything in them but the table of times and memory is the same however often runs were interrupted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lps.artifact.atomic import write_atomically
from lps.errors import FileFormatError
from lps.paper import Row
from lps.reading import parse_json, read_bytes
from lps.runs.directory import MOST_BYTES, RESULTS, Seconds, Share, TaskRecord
from lps.runs.metrics import forward_transfer, mean_and_deviation
from lps.runs.settings import Settings
from lps.runs.table import Table

FILES = ("table.md", "table.csv", "table.tex")

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Change = Annotated[float, Meta(ge=-1, le=1)]  # of an accuracy


@dataclass
class Results:
    """The part of results.json that is reported."""

    accuracy: list[list[Share | None]]
    average_accuracy: Share | None
    incremental_accuracy: Share | None
    forgetting: Change | None
    bwt: Change | None
    seconds: Seconds
    tasks: list[TaskRecord]
    artifact_bytes: Size
    coded_capacity: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    peak_memory_bytes: Size | None = None

    def __post_init__(self) -> None:
        """A row and a column per task, even where a run was not complete."""
        if not self.tasks or {len(self.accuracy), *map(len, self.accuracy)} != {len(self.tasks)}:
            raise ValueError(f"accuracy: expected {len(self.tasks)} rows of as many values")

    @property
    def later_accuracy(self) -> float | None:
        """Mean over all tasks but the first after the last: what learning one task after another is about."""
        known = [accuracy for accuracy in self.accuracy[-1][1:] if accuracy is not None]
        return sum(known) / len(known) if known and len(known) == len(self.tasks) - 1 else None


def read_results(path: Path) -> Results:
    """The results of the run in this directory."""
    file = path / RESULTS
    try:
        return msgspec.convert(parse_json(read_bytes(file, MOST_BYTES)), Results)
    except OSError as error:
        raise FileFormatError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FileFormatError(f"{file}: is not the record of a run ({error})") from None


@dataclass(frozen=True)
class Outcome:
    """A run of a set: its row, its seed and what came of it: settings, if it has begun, results, if it is complete,
    and otherwise the reason why it is not.
    """

    row: str
    seed: int
    settings: Settings | None = None
    results: Results | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """That of its directory."""
        return f"{self.row}-seed{self.seed}"


@dataclass(frozen=True)
class Measure:
    """A figure of a row: its names in CSV and in tables, and how mean and deviation are shown."""

    key: str
    heading: str
    scale: float = 1.0
    digits: int = 2


PERCENT = 100.0
TRANSFER = Measure("forward_transfer", "FWT, %", PERCENT)
AVERAGE = Measure("average_accuracy", "average, %", PERCENT)
LATER = Measure("later_accuracy", "from task 2 on, %", PERCENT)
SUMMARY = (
    AVERAGE,
    LATER,
    Measure("incremental_accuracy", "incremental, %", PERCENT),
    Measure("forgetting", "forgetting, %", PERCENT),
    Measure("bwt", "BWT, %", PERCENT),
    TRANSFER,
    Measure("coded_capacity", "CAP, %", PERCENT, digits=1),
    Measure("artifact_bytes", "file, kB", scale=1e-3, digits=1),
)
TIMES = (
    Measure("seconds", "seconds", digits=1),
    Measure("peak_memory_bytes", "peak memory, MB", scale=1e-6, digits=0),
)

FORMULAS = (
    "a(i, j) is the test accuracy on task j after task i of T. average: mean over j of a(T, j); from task 2 on: over "
    "j >= 2. incremental: mean over i of the mean over j <= i of a(i, j). forgetting: mean over j < T of the largest "
    "a(i, j), j <= i < T, minus a(T, j). BWT: mean over j < T of a(T, j) - a(j, j).",
    "CAP: weights that any task owns, as the file stores them, and the Huffman-coded masks of all tasks, as a share of "
    "one dense fp32 network (Kang et al., ICML 2022). file: model.lps with all tasks. ±: standard deviation over seeds "
    "(n - 1).",
)
FWT = (
    "FWT: mean over j >= 2 of a(j, j) minus the accuracy that a network of its own (single, same seed) reaches on task "
    "j; - without single."
)
PAPER = (
    "paper: the average accuracy that Wang et al. (ICDM 2020) print, learnt with the paper's own, longer budget of "
    "epochs; not measured here."
)


@dataclass(frozen=True)
class Kind:
    """How the rows of a set are told apart: the names of the columns that tell it, the values of a row in them, its
    place among the rows, and what the paper prints for it. ``alone`` is the row that forward transfer is measured
    against, ``ours`` the one that is compared with every other, seed by seed, if any.
    """

    names: Callable[[Sequence[str]], list[str]]
    values: Callable[[str], Mapping[str, str]]
    order: Callable[[str], Any]  # something that can be sorted
    paper: Callable[[Outcome], Row | None]
    alone: str | None = None
    ours: str | None = None


class Report:
    """The tables of a set of runs."""

    def __init__(self, outcomes: Sequence[Outcome], kind: Kind) -> None:
        self.kind = kind
        self.outcomes = sorted(outcomes, key=lambda outcome: (kind.order(outcome.row), outcome.seed))
        self.rows: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            self.rows.setdefault(outcome.row, []).append(outcome)
        self.names = kind.names(list(self.rows))
        self.tasks = max((len(outcome.results.tasks) for outcome in self.outcomes if outcome.results), default=0)
        self.of_tasks = [Measure(f"task_{number}", f"task {number}, %", PERCENT) for number in self._numbers()]
        self.summary = [measure for measure in SUMMARY if measure is not TRANSFER or kind.alone]
        self.values = {row: self._values(runs) for row, runs in self.rows.items()}
        papers = {row: next(filter(None, map(kind.paper, runs)), None) for row, runs in self.rows.items()}
        self.papers = papers if any(papers.values()) else {}

    def tables(self) -> list[Table]:
        """What is printed and written to table.md and table.tex."""
        notes = [*FORMULAS, *([FWT] if self.kind.alone else []), *([PAPER] if self.papers else [])]
        tables = [
            Table(self.title, self._table(self.summary, papers=True), notes),
            *self.paired(),
            Table("Accuracy per task, after the last one", self._table(self.of_tasks)),
            Table("Time and memory of training, which differ from run to run", self._table(TIMES)),
        ]
        gaps = [(outcome.name, outcome.reason) for outcome in self.outcomes if outcome.results is None]
        return [*tables, Table("Not complete", [("run", "reason"), *gaps])] if gaps else tables

    def text(self) -> str:
        """All tables for a terminal."""
        return "\n\n".join(table.text() for table in self.tables())

    def csv(self) -> str:
        """A line per row with plain numbers: a mean and a deviation of every measure; times and memory are the last."""
        measures = [*self.of_tasks, *self.summary, *TIMES]
        heading = [name for measure in measures for name in (measure.key, f"{measure.key}_std")]
        paper = ["paper_average_accuracy"] if self.papers else []
        lines = [[*self.names, "runs", *paper, *heading]]
        for row, runs in self.rows.items():
            pairs = [self.values[row][measure.key] for measure in measures]
            numbers = ["" if isnan(value) else repr(value) for pair in pairs for value in pair]
            printed = [_plain(self.papers[row])] if paper else []
            lines.append([*self._labels(row), str(_complete(runs)), *printed, *numbers])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()

    def write(self, directory: Path) -> None:
        """Write the three files."""
        tables = self.tables()
        markdown = "\n\n".join(table.markdown() for table in tables)
        tex = "\n\n".join(table.tex() for table in tables)
        for name, content in zip(FILES, (f"{markdown}\n", self.csv(), f"{tex}\n"), strict=True):
            write_atomically(directory / name, content.encode())

    def differences(self, row: str, other: str, measure: Measure) -> list[float]:
        """By how much a row is above another with the same seed, for every seed that both have."""
        pairs = [
            (getattr(run.results, measure.key), getattr(against.results, measure.key))
            for run in self.rows.get(row, ())
            for against in self.rows.get(other, ())
            if run.seed == against.seed and run.results is not None and against.results is not None
        ]
        return [value - reference for value, reference in pairs if value is not None and reference is not None]

    def paired(self) -> list[Table]:
        """A table of the row that is ours against every other; none where there is nothing to compare."""
        ours, measures = self.kind.ours, (AVERAGE, LATER)
        rows = [["method", "seeds", *(name for measure in measures for name in (measure.heading, "each seed"))]]
        for other in self.rows:
            several = [self.differences(ours, other, measure) for measure in measures] if ours else []
            if other != ours and any(several):
                cells = [cell for values in several for cell in _points(values)]
                rows.append([other, str(max(map(len, several))), *cells])
        return [Table(f"{ours} minus each other method with the same seed, in points", rows)] if len(rows) > 1 else []

    def shown(self, row: str, measure: Measure) -> str:
        """Mean and deviation of a row, or a dash."""
        mean, deviation = (f"{measure.scale * number:z.{measure.digits}f}" for number in self.values[row][measure.key])
        return "-" if mean == str(nan) else mean if deviation == str(nan) else f"{mean} ± {deviation}"

    def _values(self, runs: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
        """Mean and deviation by the key of a measure, over the runs that have a value."""
        complete = [(run.seed, run.results) for run in runs if run.results is not None]
        values: dict[str, list[float | None]] = {
            measure.key: [getattr(results, measure.key) for _, results in complete]
            for measure in (*SUMMARY, *TIMES)
            if measure is not TRANSFER
        }
        values[TRANSFER.key] = [self._transfer(seed, results) for seed, results in complete]
        for number in self._numbers():
            values[f"task_{number}"] = [
                results.accuracy[-1][number - 1] for _, results in complete if len(results.tasks) >= number
            ]
        known = {key: [value for value in several if value is not None] for key, several in values.items()}
        return {key: mean_and_deviation(several) for key, several in known.items()}

    def _transfer(self, seed: int, results: Results) -> float | None:
        for run in self.rows.get(self.kind.alone or "", ()):
            if run.seed == seed and run.results is not None and len(run.results.tasks) == len(results.tasks):
                transfer = forward_transfer(results.accuracy, run.results.accuracy)
                return None if isnan(transfer) else transfer
        return None

    def _table(self, measures: Sequence[Measure], *, papers: bool = False) -> list[list[str]]:
        with_papers = papers and self.papers
        heading = [*self.names, "runs", *(measure.heading for measure in measures)]
        rows = [heading + ["paper, average, %"] * bool(with_papers)]
        for row, runs in self.rows.items():
            cells = [self.shown(row, measure) for measure in measures]
            complete = str(len(runs)) if _complete(runs) == len(runs) else f"{_complete(runs)} of {len(runs)}"
            printed = [_plain(self.papers[row]) or "-"] if with_papers else []
            rows.append([*self._labels(row), complete, *cells, *printed])
        return rows

    def _labels(self, row: str) -> list[str]:
        values = self.kind.values(row)
        return [values.get(name, "-") for name in self.names]

    @property
    def title(self) -> str:
        """The benchmark and the number of tasks."""
        known = [outcome.settings for outcome in self.outcomes if outcome.settings is not None]
        streams = dict.fromkeys(f"{settings.benchmark}, {settings.tasks} tasks" for settings in known)
        return "; ".join(streams) or "Nothing has begun"

    def _numbers(self) -> range:
        return range(1, self.tasks + 1)


def _complete(runs: Sequence[Outcome]) -> int:
    return sum(run.results is not None for run in runs)


def _plain(printed: Row | None) -> str:
    return "" if printed is None else f"{printed.average:.2f}"


def _points(values: Sequence[float]) -> tuple[str, str]:
    """Mean and deviation of differences, and each of them; dashes where there are none."""
    mean, deviation = (f"{PERCENT * number:+z.2f}" for number in mean_and_deviation(values))
    if not values:
        return "-", "-"
    spread = f" ± {deviation.removeprefix('+')}" if len(values) > 1 else ""
    return f"{mean}{spread}", " ".join(f"{PERCENT * value:+z.2f}" for value in values)
