"""``python -m lps.eval``: digests and accuracies of one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lps import eval as evaluation
from lps.artifact.read import load
from lps.metadata import Metadata, Source

from tests.command import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two tasks."""
    place = tmp_path_factory.mktemp("eval")
    done = run(place, "lps.train", "--tasks", "2", "--epochs", "1,3,1", "--threads", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    return place / "run" / "model.lps"


def table(output: str) -> list[list[str]]:
    """The cells of a printed table, below its heading."""
    return [line.replace(" %", "%").split() for line in output.splitlines()[2:]]


def test_every_task_is_as_it_was_recorded(model: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "lps.eval", model, "--threads", "2")
    assert (done.returncode, done.stderr) == (0, "")
    recorded = json.loads((model.parent / "results.json").read_text())["accuracy"][-1]
    expected = [f"{100 * accuracy:.2f}%" for accuracy in recorded]
    assert table(done.stdout) == [
        [f"permuted-digits-{number}", accuracy, accuracy, "ok"] for number, accuracy in enumerate(expected, start=1)
    ]


def test_a_damaged_file_is_refused(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tmp_path / "damaged.lps"
    damaged.write_bytes(data)
    done = run(tmp_path, "lps.cli", "eval", damaged)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("lps.eval: ")
    assert done.stderr.count("\n") == 1


def changed(model: Path, path: Path, **metadata: object) -> str:
    """A valid copy of the file with changed metadata."""
    net = load(model)
    net.metadata = replace(net.metadata, **metadata)  # type: ignore[arg-type]
    net.save(path)
    return str(path)


def test_a_wrong_accuracy_is_found(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = [accuracy or 0 for accuracy in load(model).metadata.accuracy or []]
    # The test data has 360 examples: on another machine rounding may change one answer, but not two.
    near = changed(model, tmp_path / "near.lps", accuracy=[right[0], right[1] - 1 / 360])
    assert evaluation.main([near]) == 0
    far = changed(model, tmp_path / "far.lps", accuracy=[right[0], right[1] - 3 / 360])
    capsys.readouterr()
    assert evaluation.main([far]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("lps.eval: permuted-digits-2: accuracy differs from the recorded one")
    assert len(table(shown.out)) == 2


def test_bf16_is_shown_and_not_compared(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far = changed(model, tmp_path / "far.lps", accuracy=[0.1, 0.1])
    assert evaluation.main([far, "--precision", "bf16"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert all(row[1] == "10.00%" and float(row[2][:-1]) > 30 for row in table(shown.out))


def test_other_test_data_is_found(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = load(model).metadata.stream
    assert source is not None
    other = changed(model, tmp_path / "other.lps", stream=replace(source, seed=1))
    assert evaluation.main([other]) == 1
    assert "permuted-digits-2" in capsys.readouterr().err  # task 1 is the same for every seed


def test_a_file_without_a_stream_has_its_digests_checked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = load(model)
    net.metadata = Metadata()
    net.save(tmp_path / "bare.lps")
    assert evaluation.main([str(tmp_path / "bare.lps")]) == 0
    shown = capsys.readouterr().out
    assert table(shown)[:2] == [["permuted-digits-1", "ok"], ["permuted-digits-2", "ok"]]
    assert "accuracies were not measured" in shown


@pytest.mark.parametrize(
    "metadata",
    [{"stream": Source("tea", 0, 2)}, {"stream": Source("split-cifar", 0, 9)}, {"accuracy": [0.9]}, {"accuracy": None}],
    ids=str,
)
def test_metadata_that_make_no_sense_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, object]
) -> None:
    assert evaluation.main([changed(model, tmp_path / "odd.lps", **metadata)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lps.eval: ")
    assert shown.err.count("\n") == 1


def test_a_missing_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluation.main([str(tmp_path / "none.lps")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
