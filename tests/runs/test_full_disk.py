"""A disk that is full, from the start or from any moment of a run on: one sentence, nothing lost, and the run goes on.

``LPS_DISK_MOMENTS=20 python -m pytest -m slow tests/runs/test_full_disk.py`` fills the disk at 20 random moments.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lps import train
from lps.artifact.read import load
from lps.errors import WriteError
from lps.runs.directory import RunDirectory
from lps.runs.events import Row
from lps.runs.settings import settings_from

from tests.command import ENVIRONMENT, command
from tests.runs.tfevents import event_files, events_in

pytestmark = pytest.mark.slow

MOMENTS = int(os.environ.get("LPS_DISK_MOMENTS", "6"))
SMALL = ("--epochs", "2,3,2", "--threads", "1", "--tasks", "2")
TIMEOUT = 120  # seconds after which a run counts as hanging


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a disk with room."""
    path = tmp_path_factory.mktemp("room") / "run"
    assert train.main(["--output", str(path), *SMALL]) == 0
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of 8 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def rows_in(path: Path) -> int:
    """How many rows the run has logged."""
    table = path / "metrics.csv"
    return table.read_bytes().count(b"\n") if table.exists() else 0


def fill(disk: Path) -> None:
    """Take all space that is free at the moment."""
    with (disk / "filler").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def fill_until_it_ends(disk: Path, process: subprocess.Popen[str]) -> str:
    """What the run says on its standard error, which must come soon."""
    deadline = time.perf_counter() + TIMEOUT
    while process.poll() is None and time.perf_counter() < deadline:
        fill(disk)
        time.sleep(0.005)
    if process.returncode is None:
        process.kill()
        pytest.fail("the run hangs on the full disk")
    return process.communicate()[1]


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_the_disk_fills_up_at_a_random_moment(whole: Path, disk: Path, seed: int) -> None:
    draw, path = random.Random(seed), disk / "run"
    rows = draw.randrange(rows_in(whole) - 2)
    often = "0.02" if seed % 2 else "60"  # with the second, the space runs out in other files than states more often
    with subprocess.Popen(
        command("lps.train", "--output", "run", *SMALL, "--save-every", often), cwd=disk, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and (rows_in(path) < rows or not (path / "config.yaml").exists()):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        sentence = fill_until_it_ends(disk, process)
    assert process.returncode == 1, "the run was complete before the disk was full"
    assert sentence.count("\n") == 1
    assert "No space left on device; " in sentence
    assert sentence.endswith("go on with: python -m lps.train --resume --output run\n")
    model = path / "model.lps"
    learnt = len(load(model).learnt) if model.exists() else 0
    assert f"; {learnt} of 2 tasks are learnt and saved" in sentence
    assert not list(path.rglob("*.tmp"))
    print(f"moment {seed}, {rows} rows: {sentence}", end="")

    (disk / "filler").unlink()
    assert train.main(["--resume", "--output", str(path)]) == 0
    assert model.read_bytes() == (whole / "model.lps").read_bytes()
    assert all(rest == 0 for _, rest in map(events_in, event_files(path)))


def test_rows_and_events_on_a_full_disk(disk: Path) -> None:
    """The row that does not fit is noticed at once, and nothing of it stays."""
    with RunDirectory(disk, settings_from({}), 0, 0) as directory:
        row = Row(1, "admm", "epoch", 1, 1, 0.5, 0.1, 0.1, loss=1.0)
        directory.row(row)
        fill(disk)
        with pytest.raises(WriteError, match=r"could not be written: No space left on device; free some space"):
            list(map(directory.row, [row] * 1000))  # the last page of a file has room for some
    assert (disk / "metrics.csv").read_bytes().endswith(b"\n")
    (file,) = event_files(disk)
    events, rest = events_in(file)
    assert len(events) > 4
    assert rest == 0


def test_a_disk_that_is_full_from_the_start(whole: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory, with at most its lock in it, can be used as soon as there is room."""
    path = disk / "run"
    path.mkdir()
    fill(disk)
    assert train.main(["--output", str(path), *SMALL]) == 1
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    assert "No space left on device" in sentence
    (disk / "filler").unlink()
    assert train.main(["--output", str(path), *SMALL]) == 0
    assert (path / "model.lps").read_bytes() == (whole / "model.lps").read_bytes()


def test_a_limit_on_the_size_of_files(whole: Path, tmp_path: Path) -> None:
    """Needs no rights: the first state does not fit."""
    limit = 100 * 1024
    process = subprocess.run(
        command("lps.train", "--output", "run", *SMALL), cwd=tmp_path, env=ENVIRONMENT, timeout=TIMEOUT,
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert (process.returncode, process.stderr.count("\n")) == (1, 1)
    assert "could not be written: File too large; raise the limit on file sizes" in process.stderr
    assert train.main(["--resume", "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.lps").read_bytes() == (whole / "model.lps").read_bytes()
