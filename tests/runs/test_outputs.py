"""A run whose output is taken away, whose terminal is closed, or that starts beside another in one directory."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
from lps import train
from lps.runs.lock import LOCK

from tests.command import ENVIRONMENT, command

pytestmark = pytest.mark.slow

SMALL = ("--epochs", "1,2,1", "--threads", "1", "--tasks", "2")
RUN = command("lps.train", "--output", "run", *SMALL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run that nothing disturbs."""
    path = tmp_path_factory.mktemp("outputs") / "run"
    assert train.main(["--output", str(path), *SMALL]) == 0
    return (path / "model.lps").read_bytes()


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [("| head -1", "Broken pipe"), ("> /dev/full", "No space left on device"), (">&- <&-", None)],
)
def test_training_goes_on_without_its_output(
    model: bytes, tmp_path: Path, redirection: str, reason: str | None
) -> None:
    script = f"set -o pipefail; {' '.join(RUN)} {redirection}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.lps").read_bytes() == model
    said = f"lps.train: standard output: could not be written: {reason}; the run in run is complete\n"
    assert done.stderr == ("" if reason is None else said)


def test_an_output_that_is_the_result_is_needed(tmp_path: Path) -> None:
    script = f"{' '.join(command('lps.train', '--print-config'))} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "lps.train: standard output: could not be written: No space left on device\n"


def test_a_terminal_that_is_closed(model: bytes, tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and nothing can be printed any more: the state is saved all the same."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(RUN[0], [*RUN, "--epochs", "1,200,1"], ENVIRONMENT)
    termios.tcsetwinsize(terminal, (24, 160))  # or the bar has no room for its figures
    shown = b""
    while b"ETA" not in shown:
        shown += os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert list((tmp_path / "run" / "state").glob("state-*.safetensors"))


def test_nohup_is_respected(model: bytes, tmp_path: Path) -> None:
    with subprocess.Popen(
        RUN, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert (tmp_path / "run" / "model.lps").read_bytes() == model


def test_two_runs_that_start_at_once_in_one_directory(model: bytes, tmp_path: Path) -> None:
    """One is complete, the other one says why not."""
    processes = [
        subprocess.Popen(RUN, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = sorted((process.communicate(), process.returncode)[::-1] for process in processes)
    assert [code for code, _ in ends] == [0, 1]
    (_, (output, _)), (_, (nothing, sentence)) = ends
    assert output.splitlines()[-1].split() == ["written", "run"]
    assert nothing == ""
    assert sentence.count("\n") == 1
    assert "run is in use by another run" in sentence or "run is not empty" in sentence
    assert (tmp_path / "run" / "model.lps").read_bytes() == model


def test_killed_at_its_very_start_the_directory_can_be_used(
    model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As soon as its lock is there: with settings it is resumed, without it is begun anew."""
    with subprocess.Popen(RUN, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
        while not (tmp_path / "run" / LOCK).exists() and process.poll() is None:
            time.sleep(0.0005)
        process.kill()
    path = tmp_path / "run"
    (path / "config.yaml").unlink(missing_ok=True)  # it may have come that far
    assert train.main(["--resume", "--output", str(path)]) == 1
    assert "it has no config.yaml; without --resume a new one begins" in capsys.readouterr().err
    assert train.main(["--output", str(path), *SMALL]) == 0
    assert (path / "model.lps").read_bytes() == model
