"""The committed runs, the document that shows them, and the figures with a bound that are made from them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from lps.runs.batch import outcomes
from lps.runs.directory import RESULTS, TaskRecord
from lps.runs.kinds import COMPARE, SWEEP
from lps.runs.report import AVERAGE, LATER, Outcome, Report, Results
from lps.runs.settings import CONFIG, difference, settings_from

from benchmarks import evidence
from benchmarks.evidence import SECTIONS, content, write_all
from benchmarks.figures.evidence import above, average, chosen_above, evidence_figures
from benchmarks.figures.figure import Figure, Skipped

ROOT = Path(__file__).resolve().parents[2]
SETS = [name for name in evidence.SETS if (evidence.RESULTS / name).is_dir()]


def outcome(row: str, seed: int, *accuracy: float, validation: float | None = None) -> Outcome:
    """A run that has forgotten nothing; every task has this accuracy on validation data."""
    learnt: list[list[float | None]] = [
        [*accuracy[:number], *[None] * (len(accuracy) - number)] for number in range(1, len(accuracy) + 1)
    ]
    record = TaskRecord(
        name="", seconds=0.0, phase_seconds={}, validation_before_projection=None, validation_after_projection=None,
        validation=validation, residuals=[], digest="",
    )  # fmt: skip
    tasks = [record] * len(accuracy)
    mean = sum(accuracy) / len(accuracy)
    return Outcome(row, seed, results=Results(learnt, mean, mean, 0.0, 0.0, 1.0, tasks, 1))


REPORT = Report(
    [
        outcome("lps", 0, 0.5, 0.80, 0.90),
        outcome("lps", 1, 0.5, 0.70, 0.80),
        outcome("lps", 2, 0.5, 0.60, 0.60),
        outcome("packnet", 1, 0.8, 0.68, 0.78),
        outcome("packnet", 0, 0.8, 0.79, 0.89),
    ],
    COMPARE,
)


def test_rows_are_compared_by_the_seeds_that_both_have() -> None:
    figure = above("a set", REPORT, "lps", "packnet", LATER, 1.5)
    assert isinstance(figure, Figure)
    assert figure.value == pytest.approx(1.5)
    assert figure.detail == "2 seeds: +1.00 +2.00"
    lower = above("a set", REPORT, "lps", "packnet", AVERAGE, 0.0)
    assert isinstance(lower, Figure)
    assert not lower.holds
    assert isinstance(above("a set", REPORT, "lps", "wsn", LATER, 0.0), Skipped)


def test_the_row_is_chosen_on_validation_data_alone() -> None:
    runs = [
        outcome("beta=0.0", 0, 0.5, 0.95, validation=0.6),  # best on test
        outcome("beta=1.0", 0, 0.5, 0.80, validation=0.7),
        outcome("beta=auto", 0, 0.5, 0.84, validation=0.8),
    ]
    figure = chosen_above("a set", Report(runs, SWEEP), "beta=1.0")
    assert isinstance(figure, Figure)
    assert figure.value == pytest.approx(2.0)
    assert "beta=auto minus beta=1.0" in figure.what
    itself = chosen_above("a set", Report(runs[:2], SWEEP), "beta=1.0")
    assert isinstance(itself, Figure)
    assert not itself.holds
    assert isinstance(chosen_above("a set", Report(runs[1:2], SWEEP), "beta=1.0"), Skipped)


def test_the_average_is_that_of_all_seeds() -> None:
    figure = average("a set", REPORT, 66.0)
    assert isinstance(figure, Figure)
    assert figure.value == pytest.approx(100 * (2.2 + 2.0 + 1.7) / 9)
    assert not figure.holds
    assert isinstance(average("a set", Report([], COMPARE), 0.0), Skipped)


@pytest.mark.parametrize(
    ("name", "sections"), [("docs/results.md", evidence.SECTIONS), ("README.md", [evidence.OVERALL])]
)
def test_the_documents_show_the_committed_runs(name: str, sections: Sequence[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.md"
    copy.write_text((ROOT / name).read_text())
    assert all(f"<!-- {section} -->" in copy.read_text() for section in sections)
    write_all(copy)
    assert copy.read_text() == (ROOT / name).read_text()


def test_a_document_without_sections_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text("nothing to fill")
    with pytest.raises(ValueError, match="has none of the sections overall, "):
        write_all(tmp_path / "text.md")


def test_what_was_not_run_is_said_to_be_so(tmp_path: Path) -> None:
    assert {content(section, tmp_path) for section in SECTIONS[1:]} == {evidence.NOT_RUN}
    assert all(isinstance(figure, Figure | Skipped) for figure in evidence_figures())


def test_the_page_of_all_committed_runs_is_made_as_their_readme_says(tmp_path: Path) -> None:
    (line,) = re.findall(r"`(python -m lps\.report [^`]*)`", (ROOT / "results" / "README.md").read_text())
    command = line.replace("python", sys.executable, 1).replace("report.html", str(tmp_path / "report.html"))
    subprocess.run(command, shell=True, cwd=ROOT, check=True, timeout=300)
    assert f"{len(SETS)} sets of runs" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", SETS)
def test_committed_runs_are_complete_and_name_no_place_of_a_machine(name: str) -> None:
    found = outcomes(evidence.RESULTS / name, ())
    assert found
    for run in found:
        assert run.results is not None, run.reason
        path = evidence.RESULTS / name / run.name
        assert {file.name for file in path.iterdir()} == {CONFIG, RESULTS, "metrics.csv"}
        assert not any(f" {root}" in (path / CONFIG).read_text() for root in ("/", "~"))


@pytest.mark.parametrize("name", SETS)
def test_committed_runs_of_methods_have_the_settings_of_the_preset(name: str) -> None:
    for run in outcomes(evidence.RESULTS / name, ()):
        settings = run.settings
        assert settings is not None
        if "=" in run.row or name.endswith("-long"):
            continue  # of a sweep, or with more epochs
        precision = settings.lps.precision  # whichever the machine is fast with
        given = {"benchmark": settings.benchmark, "method": run.row, "seed": run.seed, "precision": precision}
        assert difference(settings, settings_from(given)) is None, run.name
