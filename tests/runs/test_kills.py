"""A run that is killed at any moment and resumed ends with the same file, to the byte; one run per directory."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lps.runs.events import Row
from lps.runs.lock import LOCK

from tests.command import ENVIRONMENT, command, run

pytestmark = pytest.mark.slow

# Two tasks in all phases, saved all the time, so that many kills fall into saves.
SMALL = ("--epochs", "2,4,2", "--threads", "1", "--tasks", "2", "--save-every", "0.02")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An uninterrupted run, and how many seconds it takes from its first line on."""
    place = tmp_path_factory.mktemp("kills")
    with start(place, "--output", "whole", *SMALL) as process:
        first_line(process)
        begin = time.perf_counter()
        process.communicate()
    assert process.returncode == 0
    return place, time.perf_counter() - begin


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("lps.train", *arguments), cwd=place, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("seed", range(12))
def test_killed_at_a_random_moment(whole: tuple[Path, float], seed: int) -> None:
    place, seconds = whole
    output = f"killed-{seed}"
    with start(place, "--output", output, *SMALL) as process:
        while not (place / output / "state").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, seconds))
        process.kill()
    done = run(place, "lps.train", "--resume", "--output", output)
    assert done.returncode == 0, done.stderr
    assert (place / output / "model.lps").read_bytes() == (place / "whole" / "model.lps").read_bytes()
    assert not (place / output / "state").exists()
    assert not list((place / output).glob("*.tmp"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_signal_finishes_the_step_and_says_how_to_go_on(whole: tuple[Path, float], number: signal.Signals) -> None:
    """Also where a shell started it in the background, which makes it ignore SIGINT at first."""
    place, _ = whole
    output = f"stopped-{number}"
    with subprocess.Popen(
        command("lps.train", "--output", output, *SMALL[:-1], "60"), cwd=place, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:  # fmt: skip
        first_line(process)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    go_on = f"python -m lps.train --resume --output {output}"
    assert errors == (
        f"lps.train: interrupted; 0 of 2 tasks are learnt and saved, and the state of the next; go on with: {go_on}\n"
    )
    resumed = run(place, *go_on.split()[2:])
    assert resumed.returncode == 0, resumed.stderr
    assert "task 1/2 permuted-digits-1  goes on in " in resumed.stdout
    assert (place / output / "model.lps").read_bytes() == (place / "whole" / "model.lps").read_bytes()


def test_the_second_run_in_a_directory_is_refused_until_the_first_has_died(whole: tuple[Path, float]) -> None:
    place, _ = whole
    with start(place, "--output", "shared", *SMALL) as process:
        first_line(process)
        process.send_signal(signal.SIGSTOP)  # it holds the lock for as long as the others need to start
        for arguments in (("--resume", "--output", "shared"), ("--output", "shared", *SMALL)):
            second = run(place, "lps.train", *arguments)
            assert second.returncode != 0
            assert second.stderr.count("\n") == 1
            if "--resume" in arguments:
                assert f"shared is in use by another run (process {process.pid})" in second.stderr
        process.kill()
    assert (place / "shared" / LOCK).exists(), "the file stays; the kernel took the lock away"
    assert run(place, "lps.train", "--resume", "--output", "shared").returncode == 0
    assert (place / "shared" / "model.lps").read_bytes() == (place / "whole" / "model.lps").read_bytes()


def test_a_directory_without_a_run_in_it_can_be_used(whole: tuple[Path, float]) -> None:
    """Killed before it had written anything, a run leaves its lock and half a file."""
    place, _ = whole
    (place / "early").mkdir()
    (place / "early" / LOCK).write_text("1\n")
    (place / "early" / ".0123456789abcdef.lps.tmp").write_text("half")
    done = run(place, "lps.train", "--output", "early", *SMALL)
    assert done.returncode == 0, done.stderr
    assert not list((place / "early").glob(".*.tmp"))


# Kills itself at the n-th call of a method of Checkpoint, before or after it.
KILLED_AT = """
import os, signal, sys
from lps import train
from lps.runs.checkpoint import Checkpoint
name, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
method = getattr(Checkpoint, name)
def counted(self, *args):
    global left
    left -= 1
    if when == "before" and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    result = method(self, *args)
    if when == "after" and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(Checkpoint, name, counted)
train.main(sys.argv[4:])
"""


def killed_at(place: Path, method: str, when: str, call: int, output: str) -> Path:
    """The directory of a run that was killed there."""
    arguments = [method, when, str(call), "--output", output, *SMALL[:-1], "60"]  # saves at the ends of phases alone
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT, *arguments], cwd=place, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return place / output


def rows_of(path: Path) -> list[list[str]]:
    """What metrics.csv says of each row, without the times that are different in every run."""
    timed = {list(Row.__dataclass_fields__).index(name) for name in ("seconds", "samples_per_second")}
    with (path / "metrics.csv").open(newline="") as file:
        return [[cell for place, cell in enumerate(row) if place not in timed] for row in csv.reader(file)]


@pytest.mark.parametrize("task", [1, 2])
def test_killed_between_the_file_and_the_end_of_the_state(whole: tuple[Path, float], task: int) -> None:
    """The task is in model.lps and its state still there: the state is out of date."""
    place, _ = whole
    path = killed_at(place, "clear", "before", task, f"stale-{task}")
    results = json.loads((path / "results.json").read_text())
    (path / "results.json").write_text(json.dumps({**results, "artifact_bytes": None}))  # killed a moment earlier
    done = run(place, "lps.train", "--resume", "--output", path.name)
    assert done.returncode == 0, done.stderr
    assert (path / "model.lps").read_bytes() == (place / "whole" / "model.lps").read_bytes()
    assert rows_of(path) == rows_of(place / "whole")
    assert not (path / "state").exists()
    assert json.loads((path / "results.json").read_text())["artifact_bytes"] == (path / "model.lps").stat().st_size


def test_other_settings_for_the_task_under_way_are_refused_and_nothing_is_lost(whole: tuple[Path, float]) -> None:
    place, _ = whole
    path = killed_at(place, "save", "after", 2, "changed")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != LOCK}
    for flag, value, words in (
        ("--epochs", "2,3,2", "epochs: task 1 is being learnt with (2, 4, 2), got (2, 3, 2); "),
        ("--alpha", "0.3", "alpha: task 1 is being learnt with 0.2, got 0.3; "),
        ("--stream-seed", "9", "stream_seed: it is 0 in this run, got 9; "),
        ("--dropout", "0.4", "dropout: it is 0.2 in this run, got 0.4; "),
    ):
        done = run(place, "lps.train", "--resume", "--output", path.name, flag, value)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"lps.train: {words}leave it as it is or start another run\n"
        assert {file: file.read_bytes() for file in before} == before
    assert len(rows_of(path)) > 1
    assert run(place, "lps.train", "--resume", "--output", path.name).returncode == 0
    assert (path / "model.lps").read_bytes() == (place / "whole" / "model.lps").read_bytes()
    assert rows_of(path) == rows_of(place / "whole")


def test_killed_right_after_it_was_resumed_no_row_is_lost(whole: tuple[Path, float]) -> None:
    place, _ = whole
    path = killed_at(place, "save", "after", 2, "twice")
    rows = rows_of(path)
    assert len(rows) > 1
    arguments = ["load", "after", "2", "--resume", "--output", path.name]  # the first load only looks at the settings
    subprocess.run([sys.executable, "-c", KILLED_AT, *arguments], cwd=place, env=ENVIRONMENT, check=False)
    assert rows_of(path) == rows
    assert run(place, "lps.train", "--resume", "--output", path.name).returncode == 0
    assert rows_of(path) == rows_of(place / "whole")
