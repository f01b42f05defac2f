"""What the committed runs in ``results`` show: the paper's tables beside ours, as Markdown.

A folder of ``results`` is a set of runs as ``lps.compare`` or ``lps.sweep`` leave it, without the networks. What has
not been run is said to be so.
"""

from __future__ import annotations

import json
from pathlib import Path

from lps import paper
from lps.runs.batch import outcomes
from lps.runs.directory import RESULTS as RECORD
from lps.runs.kinds import COMPARE, kind_of
from lps.runs.report import AVERAGE, Measure, Report
from lps.runs.table import Table

from benchmarks import sections

RESULTS = Path(__file__).resolve().parents[1] / "results"

# The sections of docs/results.md: three over several sets; one per set, with accuracies per task beside the paper's.
OVERALL, COMPARED, RUNS = "overall", "compared", "runs"
SETS = (
    "split-cifar", "permuted-mnist", "permuted-mnist-long", "split-rf", "mixed",
    "split-cifar-share", "mixed-share", "split-cifar-patterns", "split-rf-patterns", "split-cifar-capacity",
)  # fmt: skip
SECTIONS = (OVERALL, COMPARED, RUNS, *SETS)
# The sets with several methods, by what the paper calls their benchmark.
METHODS = {"permuted-mnist": "permuted MNIST", "split-cifar": "split CIFAR", "split-rf": "split RF", "mixed": "mixed"}

NOT_RUN = "Not run yet."
NONE = "-"


def report_of(name: str, results: Path = RESULTS) -> Report:
    """The runs of a set; a report without rows where there are none."""
    found = outcomes(results / name, ())
    return Report(found, kind_of({run.row for run in found}))


def content(section: str, results: Path = RESULTS) -> str:
    """What stands in a section of the document."""
    if section == OVERALL:
        return _overall(results)
    if section == COMPARED:
        return _compared(results)
    if section == RUNS:
        return _runs(results)
    report = report_of(section, results)
    return _per_task(report) if report.rows else NOT_RUN


def write_all(document: Path, results: Path = RESULTS) -> None:
    """Fill the sections that the document has."""
    found = [section for section in SECTIONS if sections.has(document, section)]
    if not found:
        raise ValueError(f"{document} has none of the sections {', '.join(SECTIONS)}")
    for section in found:  # all of them, before any is filled
        sections.split(document, section)
    for section in found:
        sections.write(document, section, content(section, results))


def _overall(results: Path) -> str:
    """Table II: the average of every method on every benchmark, ours and the paper's."""
    reports = {name: report_of(name, results) for name in METHODS}
    known = {row for name in METHODS for row in (*reports[name].rows, *paper.METHODS[name])}
    lines = [["method", *(f"{METHODS[name]}, {whose}" for name in METHODS for whose in ("ours", "paper"))]]
    for method in sorted(known, key=COMPARE.order):
        cells = []
        for name, report in reports.items():
            printed = paper.METHODS[name].get(method)
            cells += [_mean(report, method, AVERAGE), NONE if printed is None else f"{printed.average:.2f}"]
        lines.append([method, *cells])
    return Table("", lines).markdown_rows()


def _compared(results: Path) -> str:
    """By how much lps is above every other method with the same seed."""
    lines = [["benchmark", "method", "seeds", "average, points", "from task 2 on, points", "each seed"]]
    for name, title in METHODS.items():
        for table in report_of(name, results).paired():
            lines += [[title, *(row[place] for place in (0, 1, 2, 4, 5))] for row in table.rows[1:]]
    return Table("", lines).markdown_rows() if len(lines) > 1 else NOT_RUN


def _runs(results: Path) -> str:
    """How the runs of every set were made, and how long they took."""
    lines = [["set", "runs", "precision", "processor", "torch", "threads per run", "hours of all runs"]]
    for name in SETS:
        found = outcomes(results / name, ())
        records = [json.loads((results / name / run.name / RECORD).read_text()) for run in found if run.results]
        if not records:
            continue
        precision = {str(run.settings.lps.precision) for run in found if run.settings}
        made = [{str(record[key]) for record in records} for key in ("processor", "torch", "threads")]
        hours = sum(record["seconds"] for record in records) / 3600
        cells = [", ".join(sorted(values)) for values in (precision, *made)]
        lines.append([f"`{name}`", str(len(records)), *cells, f"{hours:.1f}"])
    return Table("", lines).markdown_rows() if len(lines) > 1 else NOT_RUN


def _per_task(report: Report) -> str:
    """A line per row, and one of the paper's below it where it has one."""
    tasks = [measure.heading.removesuffix(", %") for measure in report.of_tasks]
    lines = [[*report.names, "", "seeds", *tasks, "average"]]
    for row, runs in report.rows.items():
        labels = [report.kind.values(row).get(name, NONE) for name in report.names]
        complete = sum(run.results is not None for run in runs)
        means = [_mean(report, row, measure) for measure in (*report.of_tasks, AVERAGE)]
        lines.append([*labels, "ours", str(complete), *means])
        printed = report.papers.get(row)
        if printed is not None:
            numbers = [f"{number:.2f}" for number in printed.tasks] or [NONE] * len(tasks)
            lines.append([*labels, "paper", "", *numbers, f"{printed.average:.2f}"])
    return Table("", lines).markdown_rows()


def _mean(report: Report, row: str, measure: Measure) -> str:
    return report.shown(row, measure) if row in report.rows else NONE
