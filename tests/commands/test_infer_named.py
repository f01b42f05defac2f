"""``lps.infer`` and ``lps.export`` of tasks that read tokens, alone and by name."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import lps
import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from lps import Lifelong, Task, export, infer
from torch import Tensor, nn

from tests.methods.test_own_data import LONG, Rows, Text, inputs_in, padded, tokens

LENGTHS = (5, 9)  # of the inputs that are asked: axes of varying size may have any


def text() -> tuple[nn.Module, int]:
    return Text(), 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of tokens and masks, one of tokens alone, both in a file that names its network."""
    path = tmp_path_factory.mktemp("named") / "model.lps"
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lps.models, "_BUILDERS", dict(lps.models._BUILDERS))
        net = Lifelong(lps.models.register("text")(text)(), 24)
    cut = {"collate_fn": padded}
    net.learn(Task("masked", 3, train=Rows(tokens(1), cut=True), loader=cut), LONG)
    batch = tokens(2)
    net.learn(Task("bare", 3, train=(batch["input_ids"].int(), batch["labels"])), LONG)
    net.save(path)
    return path


@pytest.fixture
def place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lps.models, "_BUILDERS", dict(lps.models._BUILDERS))  # other tests list what is registered
    lps.models.register("text")(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.lps").write_bytes(model.read_bytes())
    return tmp_path


def asked(length: int) -> dict[str, Tensor]:
    batch = inputs_in(tokens(5, 20, length))
    batch["attention_mask"][:, 1:] = 1
    return batch


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    capsys.readouterr()
    assert infer.main(["model.lps", *arguments]) == 0, capsys.readouterr().err
    return [int(row["class"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]


def test_arrays_by_name_and_of_whole_numbers_are_classified(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = lps.load("model.lps")
    expected = []
    for length in LENGTHS:
        batch = asked(length)
        np.savez(f"{length}.npz", **{name: values.int().numpy() for name, values in batch.items()})  # type: ignore[arg-type]
        expected += net(batch, task=1).argmax(1).tolist()
    files = [f"{length}.npz" for length in LENGTHS]
    for more in ((), ("--dense",), ("--batch-size", "3")):
        assert answered(capsys, "--task", "1", *more, *files) == expected
    ids = asked(7)["input_ids"]
    np.save("ids.npy", ids.numpy())
    np.save("one.npy", ids[0].numpy().astype(np.uint8))
    assert answered(capsys, "--task", "2", "ids.npy") == net(ids, task=2).argmax(1).tolist()
    assert answered(capsys, "--task", "2", "one.npy") == [int(net(ids[:1], task=2).argmax())]
    for task in ("1", "2"):
        assert infer.main(["model.lps", "--task", task, "--benchmark", "--batch-size", "4"]) == 0


@pytest.mark.parametrize(
    ("task", "arrays", "words"),
    [
        (1, {"input_ids": np.zeros((2, 5), np.int64)}, "arrays: expected input_ids, attention_mask, got input_ids"),
        (
            1,
            {"input_ids": np.zeros((2, 5)), "attention_mask": np.ones((2, 5), np.int64)},
            "type of input_ids: expected whole numbers, got float64",
        ),
        (
            1,
            {"input_ids": np.zeros((2, 5), np.int64), "attention_mask": np.ones((3, 5), np.int64)},
            r"examples: expected the same number in every array.*input_ids \[2, 5\], attention_mask \[3, 5\]",
        ),
        (2, np.zeros((2, 9), np.int64), r"shape: expected \[any, 7\] or \[7\], got \[2, 9\]"),
        (2, np.zeros((2, 7)), "type: expected whole numbers, got float64"),
        (2, np.full((2, 7), 2**40), "whole numbers: expected -2147483648 to 2147483647, got 1099511627776"),
        (1, np.zeros((2, 7), np.int64), "kind of file: expected an .npz file with input_ids, attention_mask, got"),
    ],
)
def test_files_of_another_kind_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], task: int, arrays: object, words: str
) -> None:
    if isinstance(arrays, dict):
        np.savez("in.npz", **arrays)
    else:
        np.save("in.npy", arrays)  # type: ignore[arg-type]
    assert infer.main(["model.lps", "--task", str(task), "in.npz" if isinstance(arrays, dict) else "in.npy"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert re.search(words, shown), shown


def test_exports_take_the_arguments_by_name_and_any_length(place: Path) -> None:
    net = lps.load("model.lps")
    for format in ("torch", "onnx"):
        assert export.main(["model.lps", "--task", "1", "--format", format]) == 0
        assert export.main(["model.lps", "--task", "2", "--format", format]) == 0
    program = torch.export.load("model-task1.pt2").module()
    session = onnxruntime.InferenceSession("model-task1.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask"]
    for length in LENGTHS:
        batch = asked(length)
        answers = net(batch, task=1)
        torch.testing.assert_close(program(**batch), answers)
        found = session.run(None, {name: values.numpy() for name, values in batch.items()})[0]
        torch.testing.assert_close(torch.from_numpy(found), answers, rtol=1e-4, atol=1e-5)


def test_a_shape_for_several_inputs_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["model.lps", "--task", "1", "--format", "onnx", "--input-shape", "7"]) == 1
    assert "--input-shape: the file tells what task 1 reads, input_ids int64 [any]" in capsys.readouterr().err
