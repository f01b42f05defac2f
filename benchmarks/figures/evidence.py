"""Accuracies with a bound, from the committed runs in ``results``; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from lps.runs.report import AVERAGE, LATER, PERCENT, Measure, Report

from benchmarks.evidence import report_of
from benchmarks.figures.figure import Figure, Skipped

OURS, UPPER = "lps", "joint"
POINTS = " points"
# The share of the earlier weights: none, all of them, and the one that was chosen on validation data.
NOTHING, EVERYTHING, CHOSEN = "beta=0.0", "beta=1.0", "beta=auto"


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
    yield above("split CIFAR", shares, EVERYTHING, NOTHING, AVERAGE, 0.0)
    yield above("split CIFAR", shares, CHOSEN, EVERYTHING, AVERAGE, 0.0)
    digits = report_of("permuted-mnist")
    yield average("permuted MNIST, quick", digits, 98.35)
    for other in digits.rows:
        if other not in (OURS, UPPER):
            yield above("permuted MNIST", digits, OURS, other, AVERAGE, -0.4 if other == "single" else 0.0)
    yield average("permuted MNIST, 3/9/3", report_of("permuted-mnist-long"), 98.58)
    yield above("mixed", report_of("mixed-share"), CHOSEN, EVERYTHING, AVERAGE, 0.0)
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


def average(name: str, report: Report, bound: float) -> Figure | Skipped:
    """The average accuracy of ours, over all seeds."""
    what, runs = f"{name}: average of {OURS}", report.rows.get(OURS, [])
    values = [PERCENT * run.results.average_accuracy for run in runs if run.results and run.results.average_accuracy]
    if not values:
        return Skipped(what, "results has no complete run")
    return Figure(what, fmean(values), " %", ">=", bound, f"seeds: {' '.join(f'{value:.2f}' for value in values)}")
