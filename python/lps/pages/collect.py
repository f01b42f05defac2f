"""The runs that a page is about, in sets of which each has tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf, isnan
from pathlib import Path
from statistics import fmean

from lps.artifact.read import load
from lps.errors import ConfigError, LPSError, in_a_sentence
from lps.pages import charts, owners
from lps.pages.svg import Figure
from lps.pages.training import training_figures
from lps.runs.batch import outcome_of, outcomes
from lps.runs.directory import MODEL
from lps.runs.kinds import COMPARE, SWEEP, kind_of, number_in
from lps.runs.report import Outcome, Report
from lps.runs.settings import CONFIG, Settings, read_settings, settings_from


@dataclass(frozen=True)
class Set:
    """Runs whose rows are compared, and the directory of each."""

    name: str  # of its place in the page and of its figures
    report: Report
    paths: dict[str, Path]

    @property
    def title(self) -> str:
        """The benchmark, and what is compared."""
        compared = "methods" if self.report.kind is COMPARE else f"by {', '.join(self.report.names)}"
        return f"{self.report.title}: {compared}"

    def first(self, row: str) -> Path | None:
        """The directory of the first complete run of a row."""
        return next((self.paths[run.name] for run in self.report.rows[row] if run.results is not None), None)


@dataclass(frozen=True)
class Section:
    """Figures that belong together, with what is said of all of them."""

    title: str
    figures: Sequence[Figure]
    note: str = ""


def collect(paths: Sequence[Path]) -> list[Set]:
    """The sets in these directories; runs that are named alone form one set per benchmark."""
    sets: list[tuple[list[Outcome], dict[str, Path]]] = []
    alone: dict[str, list[Path]] = {}
    for path in paths:
        if (path / CONFIG).is_file():
            alone.setdefault(_settings(path).benchmark, []).append(path)
        elif found := outcomes(path, ()):
            sets.append((found, {run.name: path / run.name for run in found}))
        else:
            raise ConfigError(f"{path}: expected the directory of a run or of a set of runs, got one without {CONFIG}")
    for several in alone.values():
        runs = _named(several)
        sets.append(([run for run, _ in runs], {run.name: path for run, path in runs}))
    return [
        Set(f"set{number}", Report(found, kind_of({run.row for run in found})), where)
        for number, (found, where) in enumerate(sets, 1)
    ]


def _settings(path: Path) -> Settings:
    return settings_from(read_settings(path / CONFIG))


def _named(paths: Sequence[Path]) -> list[tuple[Outcome, Path]]:
    """Runs by method and seed; where several have the same, their directories tell them apart."""
    known = [(path, _settings(path)) for path in dict.fromkeys(path.resolve() for path in paths)]
    pairs = [(settings.method, settings.seed) for _, settings in known]
    names = [path.name for path, _ in known]
    named = []
    for path, settings in known:
        row = settings.method
        if pairs.count((row, settings.seed)) > 1:
            row += f" ({path.name if names.count(path.name) == 1 else f'{path.parent.name}/{path.name}'})"
        named.append((outcome_of(path, row, settings.seed), path))
    return named


def sections(group: Set) -> list[Section]:
    """All figures of a set."""
    report = group.report
    if not any(run.results for run in report.outcomes):
        return []
    found = [Section("Accuracy of every task", [_bars(group)])]
    if report.kind is SWEEP:
        found += [Section("What the settings do", lines)] if (lines := _sweeps(group)) else []
    note = "Row i of a matrix: test accuracy on every task after task i was learnt, in percent; means over seeds."
    found.append(Section("Accuracy after every task", _matrices(group), note))
    maps, note = _maps(group)
    if maps or note:
        found.append(Section("Who owns the weights, and what is reused", maps, note))
    curves = [figure for number, row, path in _rows(group) for figure in training_figures(number, row, path)]
    if curves:
        found.append(Section("Over training", curves))
    found.append(Section("Time, memory, size", _costs(group)))
    return found


def _rows(group: Set) -> list[tuple[str, str, Path]]:
    """The rows with a complete run: a name for its figures, the row, and the directory of its first run."""
    return [
        (f"{group.name}-row{number}", row, path)
        for number, row in enumerate(group.report.rows, 1)
        if (path := group.first(row)) is not None
    ]


def _bars(group: Set) -> Figure:
    report, panels = group.report, []
    for _, row, _ in _rows(group):
        values = [report.values[row][measure.key] for measure in report.of_tasks]
        average = report.values[row]["average_accuracy"][0]
        means, deviations = zip(*values, strict=True)
        panels.append(charts.Panel(row, means, deviations, average, report.papers.get(row)))
    return charts.bars(f"{group.name}-tasks", "Accuracy per task after the last one", panels)


def _sweeps(group: Set) -> list[Figure]:
    """A figure for every setting whose values are numbers; a line for each combination of the others."""
    report = group.report
    figures = []
    for place, name in enumerate(report.names, 1):
        lines: dict[str, list[tuple[float, str]]] = {}
        left_out = []
        for _, row, _ in _rows(group):
            values = dict(report.kind.values(row))
            at = number_in(values.pop(name, ""))
            label = ", ".join(f"{other} {value}" for other, value in values.items()) or "ours"
            if isinf(at):
                left_out.append(row)
            else:
                lines.setdefault(label, []).append((at, row))
        if sum(len(points) > 1 for points in lines.values()) == 0:
            continue
        drawn = []
        for label, points in lines.items():
            means = [(at, report.values[row]["average_accuracy"]) for at, row in points]
            drawn.append(
                charts.Curve(label, [(at, mean) for at, (mean, _) in means], [spread for _, (_, spread) in means])
            )
            printed = [(at, value.average / 100) for at, row in points if (value := report.papers.get(row)) is not None]
            if printed:
                drawn.append(charts.Curve("paper" if label == "ours" else f"paper, {label}", printed, dashed=True))
        text = f"Average accuracy of all tasks after the last one, in percent, by {name}; shades are deviations."
        if left_out:
            text += f" Not a number, so not here: {', '.join(left_out)}."
        figures.append(
            charts.curves(
                f"{group.name}-sweep{place}", f"Accuracy by {name}", text, drawn, name, "average, %", percent=True
            )
        )
    return figures


def _matrices(group: Set) -> list[Figure]:
    means = {}
    for name, row, _ in _rows(group):
        results = [run.results.accuracy for run in group.report.rows[row] if run.results is not None]
        means[name, row] = _mean_of([matrix for matrix in results if len(matrix) == len(results[0])])
    ends = charts.ends_of(means.values())
    return [
        charts.heat_map(f"{name}-matrix", row, _in_words(group.report, row), mean, "after task", "task", ends)
        for (name, row), mean in means.items()
    ]


def _in_words(report: Report, row: str) -> str:
    average, forgetting = (report.values[row][key][0] for key in ("average_accuracy", "forgetting"))
    return f"Average {charts.percentage(average)}, forgetting {charts.percentage(forgetting)}."


def _mean_of(matrices: Sequence[charts.Matrix]) -> list[list[float | None]]:
    """Value by value; None where one has none."""
    lines = [zip(*several, strict=True) for several in zip(*matrices, strict=True)]
    return [[None if None in values else fmean(values) for values in line] for line in lines]


def _maps(group: Set) -> tuple[list[Figure], str]:
    """Of every row whose tasks own weights of their own; and what stands in the way of the others."""
    figures, problems = [], []
    for name, row, path in _rows(group):
        try:
            net = load(path / MODEL)
        except (LPSError, OSError) as error:
            problems.append(f"{row}: {in_a_sentence(error)}")
            continue
        if len(net.partitions) and owners.is_divided(net):
            figures += [owners.owner_map(f"{name}-owners", row, net), owners.reuse_map(f"{name}-reuse", row, net)]
    return figures, f"Left out: {'; '.join(problems)}." if problems else ""


def _costs(group: Set) -> list[Figure]:
    report, figures = group.report, []
    for key, title, scale, unit in (
        ("seconds", "Time of training and testing", 1.0, "s"),
        ("peak_memory_bytes", "Largest memory of the process", 1e-6, "MB"),
        ("artifact_bytes", "Size of model.lps with all tasks", 1e-6, "MB"),
    ):
        values = {row: scale * report.values[row][key][0] for _, row, _ in _rows(group)}
        if not all(map(isnan, values.values())):
            figures.append(charts.amounts(f"{group.name}-{key}", title, "A mean over seeds.", values, unit))
    return figures
