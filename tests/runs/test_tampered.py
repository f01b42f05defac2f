"""Run directories that were tampered with: each is refused with one sentence before anything is learnt, and without a
change to the learnt tasks, or the run goes on and ends with the right file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from lps import train
from lps.runs.checkpoint import encode
from lps.runs.lock import LOCK

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_hang")]

SMALL = ["--tasks", "2", "--epochs", "1,2,1", "--threads", "1"]

Change = Callable[[Path, Path], object]  # of a run directory; the second is another run's


class Runs(NamedTuple):
    """Run directories: one stopped in task 2, one of another seed that is complete, and how the first should end."""

    stopped: Path
    other: Path
    model: bytes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    place = tmp_path_factory.mktemp("tampered")
    stopped, other = place / "stopped", place / "other"

    def stop_in_task_2() -> None:
        table = stopped / "metrics.csv"
        while not (table.exists() and b"\n2," in table.read_bytes()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=stop_in_task_2, daemon=True).start()
    assert train.main([*SMALL, "--output", str(stopped)]) == 128 + signal.SIGTERM
    assert (stopped / "state").exists()
    assert train.main([*SMALL, "--output", str(other), "--seed", "1"]) == 0
    shutil.copytree(stopped, place / "whole")
    assert train.main(["--resume", "--output", str(place / "whole")]) == 0
    return Runs(stopped, other, (place / "whole" / "model.lps").read_bytes())


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replaced(name: str, make: Callable[[Path], object]) -> Change:
    """In place of a file there is something else."""

    def change(path: Path, _other: Path) -> None:
        remove(path / name)
        make(path / name)

    return change


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    """The bytes of a file are changed."""
    return lambda path, _other: (path / name).write_bytes(edit((path / name).read_bytes()))


def others(name: str) -> Change:
    """The file is that of another run."""
    return lambda path, other: shutil.copy(other / name, path / name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)  # takes no space


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]


# What may be in the place of any file.
NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "link to nowhere": lambda path: path.symlink_to("/nonexistent/file"),
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "text": lambda _: b"hello",
    "noise": lambda _: bytes(range(256)),
}


def results(change: Callable[[Any], object]) -> Change:
    """results.json with other values."""

    def edit(content: bytes) -> bytes:
        values = json.loads(content)
        change(values)
        return json.dumps(values).encode()

    return edited("results.json", edit)


def task_1(**values: object) -> Change:
    return results(lambda whole: whole["tasks"][0].update(values))


def literal(name: str, text: str) -> Change:
    """A value of task 1 in results.json, as text that Python's json would not write."""

    def edit(content: bytes) -> bytes:
        values = json.loads(content)
        values["tasks"][0][name] = "HERE"
        return json.dumps(values).replace('"HERE"', text).encode()

    return edited("results.json", edit)


def accuracy(text: str) -> Change:
    def edit(content: bytes) -> bytes:
        return json.dumps({**json.loads(content), "accuracy": "HERE"}).replace('"HERE"', text).encode()

    return edited("results.json", edit)


def setting(text: str) -> Change:
    """A setting of config.yaml; the last of two lines counts."""
    name = text.partition(":")[0]
    return edited(
        "config.yaml",
        lambda content: (
            b"".join(line for line in content.splitlines(keepends=True) if not line.strip().startswith(name.encode()))
            + text.encode()
        ),
    )


def state_file(path: Path) -> Path:
    (file,) = (path / "state").iterdir()
    return file


def state(make: Callable[[Path], object]) -> Change:
    """In place of the state file there is something else."""

    def change(path: Path, _other: Path) -> None:
        file = state_file(path)
        file.unlink()
        make(file)

    return change


def state_edited(edit: Callable[[bytes], bytes]) -> Change:
    """The bytes of the state file are changed."""
    return lambda path, _other: state_file(path).write_bytes(edit(state_file(path).read_bytes()))


def state_of(values: Any) -> Change:
    """A whole state file with other values."""
    return state_edited(lambda _: encode(values))


REFUSED: dict[str, Change] = {
    **{
        f"{name}: {kind}": replaced(name, make)
        for name in ("config.yaml", "results.json", "model.lps", "metrics.csv")
        for kind, make in NO_FILES.items()
    },
    **{
        f"{name}: {kind}": edited(name, edit)
        for name in ("config.yaml", "results.json", "model.lps")
        for kind, edit in DAMAGE.items()
        if (name, kind) != ("config.yaml", "truncated")
    },
    **{f"{name}: missing": replaced(name, lambda _: None) for name in ("config.yaml", "results.json", "model.lps")},
    **{f"{name}: another run's": others(name) for name in ("config.yaml", "results.json", "model.lps")},
    **{f"{name}: 4 TB": replaced(name, huge) for name in ("config.yaml", "results.json", "metrics.csv")},
    "config.yaml: lr of nan": setting("lr: .nan\n"),
    "config.yaml: tasks of 10^400": setting(f"tasks: 1{'0' * 400}\n"),
    "config.yaml: another pattern": setting("pattern: column\n"),
    "config.yaml: norms per task": setting("norms: per-task\n"),
    "config.yaml: another benchmark": setting("benchmark: synthetic-rf\n"),
    "config.yaml: a class": setting("alpha: {class_path: os.system}\n"),
    "model.lps: a bit": edited("model.lps", flipped),
    "results.json: accuracy nan": accuracy("[[NaN]]"),
    "results.json: accuracy 1e999": accuracy("[[1e999]]"),
    "results.json: accuracy 10^400": accuracy(f"[[1{'0' * 400}]]"),
    "results.json: accuracy 2": accuracy("[[2, null]]"),
    "results.json: accuracy null": accuracy("[[null, 0.5]]"),
    "results.json: accuracy text": accuracy('[["0.5"]]'),
    "results.json: no accuracy": accuracy("[]"),
    "results.json: brackets": edited("results.json", lambda _: b"[" * 100_000),
    "results.json: braces": edited("results.json", lambda _: b'{"accuracy":' * 100_000),
    "results.json: seconds text": task_1(seconds="x"),
    "results.json: seconds negative": task_1(seconds=-1),
    "results.json: seconds null": task_1(seconds=None),
    "results.json: seconds 1e308": task_1(seconds=1e308),
    "results.json: seconds 1e999": literal("seconds", "1e999"),
    "results.json: seconds nan": literal("seconds", "NaN"),
    "results.json: seconds 10^400": literal("seconds", f"1{'0' * 400}"),
    "results.json: seconds of phases": task_1(phase_seconds={"final": "long"}),
    "results.json: residuals": literal("residuals", "[[1, 2, -Infinity]]"),
    "results.json: pairs of residuals": task_1(residuals=[[1, 2]]),
    "results.json: shares": task_1(shares={"1.weight": 1.5}),
    "results.json: digest": task_1(digest="0" * 64),
    "results.json: name": task_1(name="another"),
    "results.json: name with a line": task_1(name="a\nb"),
    "results.json: no tasks": results(lambda whole: whole.pop("tasks")),
    "results.json: tasks of numbers": results(lambda whole: whole.update(tasks=[1, 2])),
    "results.json: no digest": results(lambda whole: whole["tasks"][0].pop("digest")),
    "state: a file": replaced("state", lambda path: path.write_text("x")),
    "state: pipe": replaced("state", os.mkfifo),
    "state: loop": replaced("state", lambda path: path.symlink_to(path.name)),
    **{f"state file: {kind}": state(make) for kind, make in NO_FILES.items()},
    **{f"state file: {kind}": state_edited(edit) for kind, edit in DAMAGE.items()},
    "state file: a bit": state_edited(flipped),
    "state file: of nothing": state_of({}),
    "state file: a list": state_of([1]),
    "state file: number text": state_of({"belongs_to": {"number": "two"}}),
    "state file: number null": state_of({"belongs_to": {"number": None}}),
    "state file: of another network": state_of({"belongs_to": {"number": 2, "name": "x"}}),
    "lock: folder": replaced(LOCK, Path.mkdir),
    "lock: loop": replaced(LOCK, lambda path: path.symlink_to(path.name)),
    "lock: link to the network": replaced(LOCK, lambda path: path.symlink_to("model.lps")),
}

GOES_ON: dict[str, Change] = {
    **{f"metrics.csv: {kind}": edited("metrics.csv", edit) for kind, edit in DAMAGE.items()},
    "nothing is changed": lambda _path, _other: None,
    "metrics.csv: missing": replaced("metrics.csv", lambda _: None),
    "metrics.csv: another run's": others("metrics.csv"),
    "metrics.csv: half a line": edited("metrics.csv", lambda content: content + b"2,final,epo"),
    "metrics.csv: a long line": edited("metrics.csv", lambda content: content + b"2," + b"x" * 1_000_000),
    "results.json: nothing but what is read": results(lambda whole: [whole.pop(key) for key in ("seed", "bwt")]),
    "results.json: a task more": results(lambda whole: whole["tasks"].append(whole["tasks"][0])),
    "state: missing": replaced("state", lambda _: None),
    "state: empty": replaced("state", Path.mkdir),
    "state: a later one that is damaged": lambda path, _: (path / "state" / "state-999.safetensors").write_text("x"),
    "state: other files": lambda path, _: (path / "state" / "notes.txt").write_text("x"),
    "state file: of task 1": state_of({"belongs_to": {"number": 1}}),
    "lock: text": replaced(LOCK, lambda path: path.write_text("hello" * 1000)),
    "lock: noise": replaced(LOCK, lambda path: path.write_bytes(bytes(range(256)))),
    "lock: pipe": replaced(LOCK, os.mkfifo),
    "a temporary": lambda path, _: (path / ".0.lps.tmp").write_text("half"),
    "a temporary folder": lambda path, _: (path / ".0.lps.tmp").mkdir(),
    "a temporary pipe": lambda path, _: os.mkfifo(path / ".0.lps.tmp"),
    "events: noise": lambda path, _: (path / "events.out.tfevents.1.x").write_bytes(bytes(range(256))),
    "events: pipe": lambda path, _: os.mkfifo(path / "events.out.tfevents.1.x"),
}


def resumed(runs: Runs, path: Path, change: Change, capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Exit code, output and message of the run after the change."""
    shutil.copytree(runs.stopped, path)
    change(path, runs.other)
    try:
        code: object = train.main(["--resume", "--output", str(path)])
    except SystemExit as stopped:
        code = stopped.code
    return code, *capsys.readouterr()


def kept(path: Path) -> dict[str, bytes]:
    """The files that matter, by name; nothing that is no file is opened."""
    names = ("config.yaml", "results.json", "model.lps", "metrics.csv")
    files = [path / name for name in names if not (path / name).is_symlink() and (path / name).is_file()]
    return {file.name: file.read_bytes() for file in files if file.stat().st_size < 1 << 30}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_changes(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before: dict[str, bytes] = {}

    def change(path: Path, other: Path) -> None:
        REFUSED[name](path, other)
        before.update(kept(path))

    code, output, message = resumed(runs, tmp_path / "run", change, capsys)
    assert code in (1, 2)
    assert output == ""
    assert message.startswith("lps.train: ")
    assert message.count("\n") == 1
    assert len(message) < 1000
    assert kept(tmp_path / "run") == before


@pytest.mark.parametrize("name", GOES_ON)
def test_it_goes_on_and_ends_with_the_right_file(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, _, message = resumed(runs, tmp_path / "run", GOES_ON[name], capsys)
    assert (code, message) == (0, "")
    assert (tmp_path / "run" / "model.lps").read_bytes() == runs.model


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.yaml", "results.json", "model.lps", "metrics.csv", "state", LOCK])
def test_files_that_may_not_be_read(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change = partial(lambda path, _: (path / name).chmod(0))
    code, output, message = resumed(runs, tmp_path / "run", change, capsys)
    (tmp_path / "run" / name).chmod(0o700)
    assert (code in (1, 2), output, message.count("\n")) == (True, "", 1)
