"""Accuracies with a bound, from the committed runs in ``results``; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from lps.runs.report import AVERAGE, LATER, PERCENT, Measure, Outcome, Report

from benchmarks.evidence import report_of
from benchmarks.figures.figure import Figure, Skipped

OURS, UPPER = "lps", "joint"
POINTS = " points"
MORE = 0.01  # points: the least difference that is shown
# The share of the earlier weights: none and all of them.
NOTHING, EVERYTHING = "beta=0.0", "beta=1.0"


def evidence_figures() -> Iterator[Figure | Skipped]:
    """Every accuracy that has a bound."""
    cifar = report_of("split-cifar")
    yield above("split CIFAR", cifar, OURS, "packnet", LATER, 1.5)
    for other in ("single", "wsn"):
        yield above("split CIFAR", cifar, OURS, other, LATER, 0.0)
    for other in cifar.rows:
        if other not in (OURS, UPPER, "packnet", "single", "wsn"):
            yield above("split CIFAR", cifar, OURS, other, LATER, 0.0)
    shares = report_of("split-cifar-share")
    yield above("split CIFAR", shares, EVERYTHING, NOTHING, AVERAGE, MORE)
    yield chosen_above("split CIFAR", shares, EVERYTHING)
    digits = report_of("permuted-mnist")
    yield average("permuted MNIST, quick", digits, 98.35)
    for other in digits.rows:
        if other not in (OURS, UPPER):
            yield above("permuted MNIST", digits, OURS, other, AVERAGE, -0.4 if other == "single" else 0.0)
    yield average("permuted MNIST, 3/9/3", report_of("permuted-mnist-long"), 98.58)
    yield chosen_above("mixed", report_of("mixed-share"), EVERYTHING)
    radio = report_of("split-rf")
    yield above("split RF", radio, OURS, "packnet", AVERAGE, 0.0)
    yield above("split RF", radio, OURS, "single", AVERAGE, -0.5)


def above(name: str, report: Report, row: str, other: str, measure: Measure, bound: float) -> Figure | Skipped:
    """By how many points a row is above another, paired by seeds."""
    what = f"{name}, {measure.heading.removesuffix(', %')}: {row} minus {other}"
    points = [PERCENT * difference for difference in report.differences(row, other, measure)]
    if not points:
        return Skipped(what, "results has no complete runs of both with the same seed")
    seeds = f"{len(points)} {'seed' if len(points) == 1 else 'seeds'}: {' '.join(f'{point:+.2f}' for point in points)}"
    return Figure(what, fmean(points), POINTS, ">=", bound, seeds)


def chosen_above(name: str, report: Report, other: str) -> Figure | Skipped:
    """The same for the row that is best on validation data, which must be another."""
    validation = {row: mean_validation(runs) for row, runs in report.rows.items()}
    known = {row: mean for row, mean in validation.items() if mean is not None}
    if len(known) < 2:
        return Skipped(f"{name}: best on validation minus {other}", "results has no complete runs of two rows")
    return above(f"{name}, best on validation", report, max(known, key=known.__getitem__), other, AVERAGE, MORE)


def mean_validation(runs: Sequence[Outcome]) -> float | None:
    """Validation accuracy, the mean over tasks and seeds; None if a run is not complete."""
    tasks = [task.validation for run in runs if run.results for task in run.results.tasks]
    known = [accuracy for accuracy in tasks if accuracy is not None]
    complete = all(run.results for run in runs) and len(known) == len(tasks)
    return fmean(known) if known and complete else None


def average(name: str, report: Report, bound: float) -> Figure | Skipped:
    """The average accuracy of ours, over all seeds."""
    what, runs = f"{name}: average of {OURS}", report.rows.get(OURS, [])
    values = [PERCENT * run.results.average_accuracy for run in runs if run.results and run.results.average_accuracy]
    if not values:
        return Skipped(what, "results has no complete run")
    return Figure(what, fmean(values), " %", ">=", bound, f"seeds: {' '.join(f'{value:.2f}' for value in values)}")
