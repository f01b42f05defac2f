"""How a run went: accuracy and residuals over the steps, from its metrics.csv."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from lps.pages.charts import Curve, curves
from lps.pages.svg import Figure
from lps.reading import read_bytes
from lps.runs.directory import METRICS, MOST_BYTES

MOST = 1e15  # of a step or a residual; larger ones would be none
MOST_POINTS = 300  # of a line: more cannot be told apart in a picture


@dataclass(frozen=True)
class Log:
    """The values of metrics.csv over the steps of the whole run, and where each task begins and the last one ends."""

    accuracy: list[tuple[float, float]]
    primal: list[tuple[float, float]]
    dual: list[tuple[float, float]]
    begins: list[tuple[float, str]]


def read_log(path: Path) -> Log:
    """The log of the run in this directory; lines that are not of a log are left out."""
    file = path / METRICS
    text = read_bytes(file, MOST_BYTES).decode(errors="replace") if file.is_file() else ""
    log, before, task, last = Log([], [], [], []), 0.0, "", 0.0
    for row in _rows_of(text):
        step = _number(row.get("step"))
        if row.get("layer") or not isfinite(step):
            continue
        if row.get("task") != task:
            before, task = before + last, str(row.get("task"))
            log.begins.append((before, f"task {task}"))
        last = step
        _add(log.accuracy, before + step, row.get("accuracy") if row.get("event") == "epoch" else None)
        for name, line in (("primal", log.primal), ("dual", log.dual)):
            _add(line, before + step, row.get(name) if row.get("event") == "projection" else None)
    if log.begins:  # the axis reaches to the end, so that the last task has room for its name
        log.begins.append((before + last, ""))
    return log


def _rows_of(text: str) -> list[dict[str, str | None]]:
    """The rows of a table; none, if it is not one."""
    try:
        return list(csv.DictReader(text.splitlines()))
    except csv.Error:  # a field of more than 128 kB
        return []


def training_figures(name: str, row: str, path: Path) -> list[Figure]:
    """What the log of a run has: validation accuracy per epoch, and residuals of the solver."""
    log = read_log(path)
    found = []
    if log.accuracy:
        text = "Validation accuracy after every epoch, in percent, over the steps of all tasks."
        lines = [Curve("validation accuracy", _thin(log.accuracy))]
        title = f"{row}: accuracy over training"
        found.append(
            curves(f"{name}-accuracy", title, text, lines, "step", "%", percent=True, marks=False, breaks=log.begins)
        )
    residuals = [
        Curve(label, _thin([(x, y) for x, y in line if y > 0]), dashed=label == "dual")
        for label, line in (("primal", log.primal), ("dual", log.dual))
    ]
    if any(line.points for line in residuals):
        text = "Primal and dual residuals of the solver, on a logarithmic scale, over the steps of all tasks."
        title = f"{row}: residuals"
        found.append(
            curves(
                f"{name}-residuals",
                title,
                text,
                residuals,
                "step",
                "residual",
                logarithmic=True,
                marks=False,
                breaks=log.begins,
            )
        )
    return found


def _number(text: str | None) -> float:
    """NaN for what is no number, or none that a log has."""
    try:
        number = float(text or "nan")
    except ValueError:
        return nan
    return number if abs(number) < MOST else nan


def _add(line: list[tuple[float, float]], x: float, text: str | None) -> None:
    value = _number(text)
    if isfinite(value):
        line.append((x, value))


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = -(-len(points) // MOST_POINTS) if points else 1
    return [*points[:-1:stride], *points[-1:]]
