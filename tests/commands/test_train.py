"""``python -m lps.train`` as a user runs it: the run directory, the log, interruption and resumption."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import termios
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from lps import train
from lps.artifact.read import load
from lps.methods import METHODS
from lps.methods.lps.config import LPSConfig
from lps.methods.options import EVERY_METHOD_USES, READS
from lps.runs.directory import read_records
from lps.runs.events import Row

from tests.command import ENVIRONMENT, command, run

TASKS = 4
# More than two threads do not help on this stream, and runs are bit-identical only with equal thread counts.
SMALL = ("--epochs", "1,3,1", "--threads", "2")


def results_of(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((path / "results.json").read_text())
    return results


def digests(path: Path) -> list[str]:
    return [task.digest for task in load(path / "model.lps").learnt]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def whole(place: Path) -> subprocess.CompletedProcess[str]:
    """An uninterrupted run of four tasks into the default directory."""
    return run(place, "lps.train", *SMALL, "--tasks", str(TASKS))


@pytest.fixture(scope="module")
def directory(place: Path, whole: subprocess.CompletedProcess[str]) -> Path:
    assert whole.returncode == 0, whole.stderr
    return place / "runs" / "permuted-digits-1"


def test_the_log_is_plain_lines_and_ends_in_a_table(whole: subprocess.CompletedProcess[str]) -> None:
    assert whole.stderr == ""
    assert "\r" not in whole.stdout
    lines = whole.stdout.splitlines()
    for task in range(1, TASKS + 1):
        of_task = [line for line in lines if line.startswith(f"task {task}/{TASKS} permuted-digits-{task}  ")]
        assert any("straight-through 3/3  loss " in line and " samples/s  ETA " in line for line in of_task)
        assert sum("  pruned  val " in line and " -> " in line for line in of_task) == 1
        assert sum("  learnt in " in line for line in of_task) == 1
        assert len(of_task) < 15
    assert lines[-1].split() == ["written", "runs/permuted-digits-1"]
    assert any(line.startswith("average accuracy ") for line in lines)
    assert any(line.startswith("file ") and "a dense network for each task: " in line for line in lines)


def test_the_run_directory_holds_everything(directory: Path) -> None:
    names = {path.name for path in directory.iterdir()}
    events = {name for name in names if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {".lock", "config.yaml", "results.json", "metrics.csv", "model.lps", "report.html"}


def test_results(directory: Path) -> None:
    results = results_of(directory)
    assert (results["benchmark"], results["method"], results["seed"], results["device"]) == (
        "permuted-digits", "lps", 0, "cpu",
    )  # fmt: skip
    matrix = results["accuracy"]
    assert [[value is None for value in row] for row in matrix] == [
        [column > row for column in range(TASKS)] for row in range(TASKS)
    ]
    # Nothing is ever forgotten: every row repeats the one before.
    assert all(matrix[row][column] == matrix[-1][column] for row in range(TASKS) for column in range(row + 1))
    assert (results["forgetting"], results["bwt"]) == (0.0, 0.0)
    assert results["average_accuracy"] == pytest.approx(sum(matrix[-1]) / TASKS)
    assert results["average_accuracy"] > 0.5  # five epochs of eleven steps; chance is 0.1
    assert results["capacity"] == pytest.approx([0.2] * TASKS, abs=1e-4)
    assert results["density"][0] == pytest.approx(0.2, abs=1e-4)
    assert all(0.2 < results["density"][task] < 0.2 * (task + 1) for task in range(1, TASKS))
    assert set(results["capacity_per_layer"]) == {"1.weight", "4.weight"}
    assert results["artifact_bytes"] == (directory / "model.lps").stat().st_size
    weights = 64 * 256 + 256 * 256
    assert results["separate_bytes"] == TASKS * 4 * (weights + 2 * 256 + 10 * 256 + 10)
    assert results["seconds"] == pytest.approx(sum(task["seconds"] for task in results["tasks"]))
    assert 50e6 < results["peak_memory_bytes"] < 5e9  # torch alone takes some 200 MB
    for task, learnt in zip(results["tasks"], load(directory / "model.lps").learnt, strict=True):
        assert (task["name"], task["digest"]) == (learnt.name, learnt.digest)
        assert set(task["phase_seconds"]) == {"warm-up", "straight-through", "final"}
        assert 0 <= task["validation_after_projection"] <= 1
        assert len(task["residuals"]) == 2  # after the first two of three epochs


def test_metrics_hold_every_row(directory: Path) -> None:
    with (directory / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(Row.__dataclass_fields__)
    for task in map(str, range(1, TASKS + 1)):
        events = [row["event"] for row in rows if row["task"] == task]
        assert events.count("epoch") == 5
        assert events.count("pruned") == 1
        assert events.count("projection") == 2


def test_a_run_that_is_stopped_three_ways_ends_as_if_it_had_not_been(place: Path, directory: Path) -> None:
    """Stopped by SIGKILL, Ctrl-C and SIGTERM in tasks 2, 3 and 4; the fourth task is added when the run is resumed."""
    output = place / "stopped"
    stop_after_a_task(place, signal.SIGKILL, *SMALL, "--tasks", "3", "--output", output)
    assert results_of(output)["accuracy"][0][1:] == [None, None]
    stopped = stop_after_a_task(place, signal.SIGINT, "--resume", "--output", output)
    assert stopped.returncode == 130
    begun = ", and the state of the next" if (output / "state").exists() else ""  # it may have come between two tasks
    assert stopped.stderr == (
        f"lps.train: interrupted; 2 of 3 tasks are learnt and saved{begun}; "
        f"go on with: python -m lps.train --resume --output {output}\n"
    )
    config = output / "config.yaml"
    stopped = stop_after_a_task(place, signal.SIGTERM, "--resume", "--config", config, "--tasks", str(TASKS))
    assert stopped.returncode == 143
    assert len(digests(output)) == 3
    assert run(place, "lps.train", "--resume", "--output", output).returncode == 0
    assert digests(output) == digests(directory)
    measured = {"artifact_bytes", "seconds", "peak_memory_bytes", "tasks"}
    ours, theirs = results_of(output), results_of(directory)
    assert {key: ours[key] for key in ours if key not in measured} == {
        key: theirs[key] for key in theirs if key not in measured
    }
    assert config.read_text() == (directory / "config.yaml").read_text()
    assert table_without_times(output) == table_without_times(directory)


def test_a_task_that_was_recorded_but_not_saved_is_left_out(directory: Path) -> None:
    """A run that is killed while it saves has one record more than its network has tasks."""
    records = read_records(directory, load(directory / "model.lps").learnt[: TASKS - 1], forgets=False)
    assert [len(row) for row in records.accuracy] == [1, 2, 3]
    assert [task.name for task in records.tasks] == [f"permuted-digits-{number}" for number in (1, 2, 3)]


def test_a_run_that_diverged_in_its_first_task_goes_on_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--tasks", "1", "--epochs", "1,1,1", "--output", str(tmp_path / "run")]
    assert train.main([*small, "--lr", "1e30"]) == 1
    assert capsys.readouterr().err.startswith("lps.train: task 1: the loss became ")
    assert train.main([*small, "--lr", "1e-3", "--resume"]) == 0
    assert len(digests(tmp_path / "run")) == 1
    assert {row[0] for row in table_without_times(tmp_path / "run")} == {"1"}


def test_a_run_cannot_go_on_with_another_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path / "run")]
    assert train.main(["--method", "ewc", "--ewc.strength", "7", "--tasks", "1", "--epochs", "1,0,0", *output]) == 0
    capsys.readouterr()
    assert train.main(["--resume", "--method", "si", *output]) == 1
    words = "method: it is ewc in this run, got si; leave it as it is or start another run"
    assert capsys.readouterr().err == f"lps.train: {words}\n"
    assert train.main(["--resume", "--method", "ewc", *output]) == 0  # its options in the file count
    assert "strength: 7" in (tmp_path / "run" / "config.yaml").read_text()


def stop_after_a_task(place: Path, number: signal.Signals, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Start a run and stop it by a signal as soon as it has learnt one more task."""
    with subprocess.Popen(
        command("lps.train", *arguments), cwd=place, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        next(line for line in process.stdout if "  learnt in " in line)
        process.send_signal(number)
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def table_without_times(path: Path) -> list[list[str]]:
    """The rows of metrics.csv without seconds and rates."""
    with (path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [[value for name, value in row.items() if name not in ("seconds", "samples_per_second")] for row in rows]


def test_resuming_a_finished_run_prints_its_table(
    place: Path, directory: Path, whole: subprocess.CompletedProcess[str]
) -> None:
    before = {path: path.read_bytes() for path in directory.iterdir() if path.name != ".lock"}
    again = run(place, "lps.cli", "train", "--resume", "--output", "runs/permuted-digits-1")
    assert again.returncode == 0, again.stderr
    assert whole.stdout.endswith(f"\n\n{again.stdout}")
    assert {path: path.read_bytes() for path in directory.iterdir() if path.name != ".lock"} == before


def test_a_terminal_of_80_columns_shows_progress_and_the_eta(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        command("lps.train", "--tasks", "1", "--epochs", "2,1,1"), cwd=tmp_path, env=ENVIRONMENT, stdout=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux reports a closed terminal this way
        pass
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert "\r" in text.replace("\r\n", "\n")
    drawn = [part for part in re.split("[\r\n]+", text) if re.search(r"\d %.*ETA|ETA.*\d %", part)]
    assert "task 1/1 permuted-digits-1" in text
    assert any("solver 1/1" in part or "straight-through 1/1" in part for part in drawn), drawn
    assert any("val " in part for part in drawn), drawn
    assert {True} == {bool(re.search(r"ETA \d\d:\d\d", part)) and len(part) < 80 for part in drawn}, drawn
    assert all(len(part) < 80 for part in text.partition("learnt in")[0].split("\r")), text
    assert text.replace("\r\n", "\n").rstrip("\n").endswith("runs/permuted-digits-1")


@pytest.mark.parametrize("name", METHODS)
def test_the_help_of_a_method_lists_what_it_reads(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        train.main(["--help", f"--method={name}"])
    assert end.value.code == 0
    flags = set(re.findall(r"^  --([\w.-]+)", capsys.readouterr().out, re.MULTILINE))
    method = READS[name]
    own = {f"{kind}.{option.name.replace('_', '-')}" for kind in READS for option in fields(READS[kind].options)}
    assert {flag for flag in own if flag.startswith(f"{name}.")} == flags & own
    for setting in (*(option.name for option in fields(LPSConfig)), "pattern", "sharing", "fill_last"):
        read = setting in EVERY_METHOD_USES | method.uses
        assert (setting.replace("_", "-") in flags) == read, setting
    assert ("norms" in flags) == (method.norms is None)
    assert {"benchmark", "epochs", "output", "resume"} <= flags


def test_the_help_without_a_method_lists_the_options_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.main(["--help"])
    out = capsys.readouterr().out
    own = [f"--{name}.{option.name.replace('_', '-')}" for name in READS for option in fields(READS[name].options)]
    assert all(flag in out for flag in own)
