"""``python -m lps.sweep`` as a user runs it: task 1 is shared, and the results are those of runs of their own."""

from __future__ import annotations

import csv
import shlex
import subprocess
from pathlib import Path
from statistics import fmean

import pytest
from lps import paper, sweep, train
from lps.runs.kinds import SWEEP, values_of
from lps.runs.report import Outcome
from lps.runs.settings import settings_from

from tests.command import ENVIRONMENT, run

SMALL = ("--seeds", "0", "--epochs", "1,1,1", "--tasks", "2")
VARY = ("--vary", "beta=0.3,1", *SMALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def directory(place: Path) -> Path:
    done = run(place, "lps.sweep", *VARY, "--output", "shared")
    assert done.returncode == 0, done.stderr
    return place / "shared"


def test_runs_that_share_task_1_end_as_if_they_did_not(place: Path, directory: Path) -> None:
    (first,) = (directory / "task1").glob("*/model.lps")
    for share in ("0.3", "1"):
        arguments = (*SMALL[2:], "--beta", f"auto,{share}")
        assert run(place, "lps.train", *arguments, "--output", f"own-{share}").returncode == 0
        model = (directory / f"beta={share}-seed0" / "model.lps").read_bytes()
        assert model == (place / f"own-{share}" / "model.lps").read_bytes()
        assert model != first.read_bytes()


def test_a_row_for_each_variant(place: Path, directory: Path) -> None:
    with (directory / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["beta"] for row in rows] == ["0.3", "1"]
    assert rows[0]["task_1"] == rows[1]["task_1"]  # there is one task 1
    assert rows[0]["coded_capacity"] != rows[1]["coded_capacity"]
    assert (
        (directory / "table.md").read_text().startswith("## permuted-digits, 2 tasks\n\n| beta | runs | average, % |")
    )
    assert "FWT" not in (directory / "table.tex").read_text()
    before = {name: (directory / name).read_bytes() for name in ("table.md", "table.csv", "table.tex")}
    assert run(place, "lps.cli", "sweep", "--output", "shared").returncode == 0
    assert {name: (directory / name).read_bytes() for name in before} == before


@pytest.mark.slow
def test_printed_lines_in_any_order_share_task_1(place: Path, directory: Path) -> None:
    printed = run(place, "lps.sweep", *VARY, "--output", "by-hand", "--launcher", "print")
    assert (printed.returncode, printed.stderr) == (0, "")
    lines = printed.stdout.splitlines()
    assert len(lines) == 2
    together = [
        subprocess.Popen(shlex.split(line), cwd=place, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        for line in reversed(lines)
    ]
    assert [process.wait() for process in together] == [0, 0]
    assert run(place, "lps.sweep", "--output", "by-hand").returncode == 0
    for model in directory.glob("*/model.lps"):
        assert (place / "by-hand" / model.parent.name / "model.lps").read_bytes() == model.read_bytes()
    assert len(list((place / "by-hand" / "task1").glob("*/model.lps"))) == 1


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert sweep.main([*arguments, "--launcher", "print", "--output", "printed"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return [shlex.split(line) for line in shown.out.splitlines()]


def value(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1]


def test_patterns_and_shares_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(
        capsys, "--sweep", "pattern-share", "--benchmark", "split-cifar", "--preset", "paper", "--seeds", "0,1"
    )
    varied = [(value(line, "--pattern"), value(line, "--beta")) for line in lines[::2]]
    shares = ("0.92,0.0", "0.92,1.0", "0.92,0.92")
    assert varied == [(pattern, share) for pattern in ("irregular", "column", "filter") for share in shares]
    assert [value(line, "--seed") for line in lines[:2]] == ["0", "1"]
    assert len({value(line, "--first-task") for line in lines}) == 6  # by pattern and seed


def test_capacities_of_the_paper_are_shares_of_the_whole_network(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--sweep", "capacity", "--benchmark", "split-cifar", "--seeds", "0")
    alphas = [[float(alpha) for alpha in value(line, "--alpha").split(",")] for line in lines]
    assert [sum(several) for several in alphas] == pytest.approx([0.1, 0.25, 0.5, 0.75, 1])
    assert alphas[-1] == [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert not any("--first-task" in line for line in lines)  # every task 1 is another one


def test_any_settings_can_be_varied_together(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(
        capsys, "--vary", "batch-size=64,128", "--vary", "epochs=[1,1,1],[1,2,1]", "--seeds", "3", "--lr", "1e-2"
    )
    assert [(value(line, "--batch-size"), value(line, "--epochs")) for line in lines] == [
        ("64", "1,1,1"), ("64", "1,2,1"), ("128", "1,1,1"), ("128", "1,2,1"),
    ]  # fmt: skip
    names = [Path(value(line, "--output")).name for line in lines]
    assert values_of(names[1].removesuffix("-seed3")) == {"batch_size": "64", "epochs": "[1, 2, 1]"}


def test_the_numbers_of_the_paper_stand_beside_their_rows() -> None:
    cifar = settings_from({"benchmark": "split-cifar"})
    column = settings_from({"benchmark": "split-cifar", "pattern": "column"})

    def printed(outcome: Outcome) -> float:
        row = SWEEP.paper(outcome)
        assert row is not None
        return row.average

    assert printed(Outcome("beta=1.0", 0, cifar)) == 79.10
    assert printed(Outcome("pattern=column,beta=0.92", 0, column)) == 79.56
    assert printed(Outcome("capacity=0.5", 0, cifar)) == 75.32
    assert SWEEP.paper(Outcome("beta=1.0,lr=0.1", 0, cifar)) is None
    fewer = settings_from({"benchmark": "split-cifar", "tasks": 2})
    assert SWEEP.paper(Outcome("beta=1.0", 0, fewer)) is None
    # The best share is the number of Table II, and every benchmark of the paper has its methods.
    for benchmark, shares in paper.SHARES.items():
        assert max(shares.values()) == paper.METHODS[benchmark]["lps"]
    # Tables II and V to VII print averages of the tasks; two of them differ from these in the last digit.
    for row in (row for part in (paper.METHODS, paper.SHARES) for rows in part.values() for row in rows.values()):
        assert not row.tasks or row.average == pytest.approx(fmean(row.tasks), abs=0.021)


def test_a_copy_of_task_1_needs_an_empty_place_or_half_a_copy(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (first,) = (path.parent for path in (directory / "task1").glob("*/model.lps"))
    arguments = [*SMALL[2:], "--beta", "auto,0.3", "--first-task", str(first), "--output"]
    Path("full").mkdir()
    Path("full", "notes.txt").touch()
    assert train.main([*arguments, "full"]) == 1
    assert capsys.readouterr().err == "lps.train: output: full is not empty; choose another\n"
    assert {path.name for path in Path("full").iterdir()} == {"notes.txt", ".lock"}
    Path("half").mkdir()
    Path("half", "model.lps").write_bytes(b"killed before config.yaml was copied")
    assert train.main([*arguments, "half"]) == 0
    assert Path("half", "model.lps").read_bytes() == (directory / "beta=0.3-seed0" / "model.lps").read_bytes()
