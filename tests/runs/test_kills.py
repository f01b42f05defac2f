"""A run that is killed at any moment and resumed ends with the same file, to the byte; one run per directory."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lps.runs.lock import LOCK

from tests.command import ENVIRONMENT, command, run

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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
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
