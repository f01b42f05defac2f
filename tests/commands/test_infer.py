"""``python -m lps.infer``: classes of arrays and images, and the speed of a cut-out task."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from lps import Lifelong, LPSConfig, export, infer, load
from lps import data as benchmarks
from lps.data import digits
from lps.deploy.classify import TEXTS
from lps.metadata import Metadata, Source
from lps.models import create
from lps.sources import Arrays
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tests.command import ENVIRONMENT, command, refused, run
from tests.toy import QUICK, inputs_of, toy_task

INPUTS = inputs_of(toy_task(1)).numpy()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three files: trained on a benchmark, on a user's data, and on colour images."""
    place = tmp_path_factory.mktemp("infer")
    done = run(place, "lps.train", "--tasks", "2", "--epochs", "1,4,1", "--seed", "5", "--output", "run")
    assert done.returncode == 0, done.stderr
    (place / "run" / "model.lps").rename(place / "digits.lps")
    torch.manual_seed(0)
    own = Lifelong(create("mlp", inputs=12, hidden=[24, 16], dropout=0.1), features=16)
    for seed in range(2):
        own.learn(toy_task(seed), QUICK)
    own.save(place / "own.lps")
    colour = Lifelong(create("cifar-net"), features=512)
    colour.learn(toy_task(0, (3, 32, 32)), LPSConfig(alpha=0.3, epochs=(0, 1, 0)))
    colour.save(place / "colour.lps")
    return place


@pytest.fixture
def place(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds only the files."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "own", "colour"):
        (tmp_path / f"{name}.lps").write_bytes((models / f"{name}.lps").read_bytes())
    return tmp_path


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    """The rows of the CSV table."""
    capsys.readouterr()
    assert infer.main(list(arguments)) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return list(csv.DictReader(io.StringIO(shown.out)))


def probabilities(name: str, task: int, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        shares: Tensor = load(name)(inputs, task=task).double().softmax(1)
    return shares


def test_an_array_in_a_process_of_its_own(place: Path) -> None:
    np.save("inputs.npy", INPUTS)
    np.save("one.npy", INPUTS[7].astype(">f8"))  # a single example, of another type and byte order
    arguments = ("own.lps", "--task", "2", "inputs.npy", "one.npy", "--top", "2", "--batch-size", "16")
    done = run(place, "lps.infer", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "input,index,class,probability,class2,probability2"
    rows = list(csv.DictReader(lines))
    assert [(row["input"], int(row["index"])) for row in rows[-2:]] == [("inputs.npy", 59), ("one.npy", 0)]
    expected = probabilities("own.lps", 2, torch.from_numpy(INPUTS)).topk(2)
    assert [int(row["class"]) for row in rows[:60]] == expected.indices[:, 0].tolist()
    # Probabilities have six digits; float32 sums differ by rounding.
    for column, values in zip(("probability", "probability2"), expected.values.T, strict=True):
        shown = [float(row[column]) for row in rows[:60]]
        torch.testing.assert_close(torch.tensor(shown, dtype=torch.float64), values, rtol=1e-5, atol=1e-6)
    assert rows[60]["class"] == rows[7]["class"]


def test_json_into_a_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("inputs.npy", INPUTS[:3])
    arguments = ["own.lps", "--task", "1", "inputs.npy"]
    assert infer.main([*arguments, "--format", "json", "--output", "answers.json"]) == 0
    assert capsys.readouterr() == ("", "")
    rows = json.loads(Path("answers.json").read_text())
    assert [list(row) for row in rows] == 3 * [["input", "index", "class", "probability"]]
    assert [{key: str(value) for key, value in row.items()} for row in rows] == answered(capsys, *arguments)


def test_the_whole_network_gives_the_same_classes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("inputs.npy", INPUTS)
    small, dense = (answered(capsys, "own.lps", "--task", "2", "inputs.npy", *flag) for flag in ((), ("--dense",)))
    assert [row["class"] for row in small] == [row["class"] for row in dense]


@pytest.mark.parametrize("task", [1, 2])
def test_bytes_of_the_benchmark_are_prepared_as_in_training(
    place: Path, capsys: pytest.CaptureFixture[str], task: int
) -> None:
    test = benchmarks.stream("permuted-digits", tasks=2, seed=5)[task - 1].test
    assert isinstance(test, Arrays)
    raw = test.inputs.numpy()
    np.save("flat.npy", raw)
    np.save("square.npy", raw.reshape(-1, 8, 8))
    np.save("ready.npy", test.batch(torch.arange(len(test)))[0].numpy())
    flat, square, ready = (
        answered(capsys, "digits.lps", "--task", str(task), f"{name}.npy") for name in ("flat", "square", "ready")
    )
    for rows in (square, ready):
        assert [row["probability"] for row in rows] == [row["probability"] for row in flat]
    right = np.mean([int(row["class"]) == label for row, label in zip(flat, test.labels, strict=True)])
    recorded = load("digits.lps").metadata.accuracy
    assert recorded is not None
    assert abs(right - recorded[task - 1]) <= 1 / len(test)  # one may be a near tie


def test_images_are_prepared_as_in_training(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = digits.load()[1].inputs[:5].reshape(-1, 8, 8).numpy()
    Path("folder").mkdir()
    Path("folder/notes.txt").write_text("not an image")
    for number, image in enumerate(images):
        grey = Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8))
        large = grey.resize((24, 24), Image.Resampling.NEAREST).convert("RGB")
        # Bilinear reduction to a third mixes neighbours, so only the image of the right size must agree exactly.
        (large if number == 4 else grey).save(f"folder/{number}.png")
    np.save("raw.npy", images)
    rows = answered(capsys, "digits.lps", "--task", "2", "folder", "folder/0.png")
    assert [row["input"] for row in rows] == [*(f"folder/{number}.png" for number in range(5)), "folder/0.png"]
    known = answered(capsys, "digits.lps", "--task", "2", "raw.npy")
    for row, expected in zip(rows[:4], known, strict=False):
        assert row["class"] == expected["class"]
        # An image has 256 steps where the digits have 17: a pixel differs by 1/510 at most.
        assert float(row["probability"]) == pytest.approx(float(expected["probability"]), abs=0.02)
    assert rows[5]["probability"] == rows[0]["probability"]


def test_a_file_of_one_task_knows_how_its_data_were_prepared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("raw.npy", digits.load()[1].inputs[:50].numpy())
    assert export.main(["digits.lps", "--task", "2", "--format", "lps"]) == 0
    before = answered(capsys, "digits.lps", "--task", "2", "raw.npy")
    assert answered(capsys, "digits-task2.lps", "--task", "1", "raw.npy") == before


def test_images_of_unknown_origin_are_scaled(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("one.png")
    Image.fromarray(pixels).save("two.webp", lossless=True)
    assert infer.main(["colour.lps", "--task", "1", "one.png", "two.webp"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "colour.lps does not say how images become inputs: pixels are scaled to 0..1" in shown.err
    inputs = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    best, number = probabilities("colour.lps", 1, inputs).max(1)
    for row in csv.DictReader(io.StringIO(shown.out)):
        assert int(row["class"]) == int(number)
        assert float(row["probability"]) == pytest.approx(float(best), abs=1e-5)


def test_every_benchmark_prepares_its_data_without_having_it() -> None:
    """The transform is the stream's; for permuted and radio data it depends on seed and window."""
    for name, shape, read in (
        ("permuted-digits", (64,), (64,)),
        ("permuted-mnist", (784,), (784,)),
        ("split-cifar", (3, 32, 32), (3, 32, 32)),
        ("mixed", (784,), (3, 32, 32)),
    ):
        raw = benchmarks.raw(name, 3, seed=1)
        assert raw.shape == shape
        values = torch.randint(0, raw.top + 1, (2, *shape), dtype=torch.uint8)
        assert raw.transform(values).shape == (2, *read)
    assert benchmarks.raw("mixed", 2).shape == (3, 32, 32)
    radio = benchmarks.raw("synthetic-rf", 3, seed=1, options={"window": 100})
    task = benchmarks.stream("synthetic-rf", seed=1, options={"window": 100})[2]
    assert isinstance(task.test, Arrays)
    assert torch.equal(radio.transform(task.test.inputs[:4]), task.test.batch(torch.arange(4))[0])


def test_benchmark(place: Path) -> None:
    done = run(place, "lps.cli", "infer", "own.lps", "--task", "2", "--benchmark", "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    summary, table, how = done.stdout.split("\n\n")
    small = load("own.lps").extract(2, batch_size=128)
    assert summary == f"task 2 (clouds-1), cut out for batches of 128\n{small.summary()}"
    for text in ("latency, batch 1: cut-out", "throughput, batch 128: dense network", "speed-up of the cut-out"):
        assert text in table
    assert "1 thread, inputs of [12]" in how


def test_benchmark_of_inputs(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lps.deploy.speed.SECONDS", 0.05)
    np.save("inputs.npy", INPUTS)
    assert infer.main(["own.lps", "--task", "1", "--benchmark", "inputs.npy", "--batch-size", "9"]) == 0
    assert "throughput, batch 9: cut-out" in capsys.readouterr().out


def arrays_to_refuse() -> dict[str, tuple[bytes | NDArray[Any], str]]:
    """Content of an .npy file and a part of the expected message."""
    file = io.BytesIO()
    np.save(file, INPUTS)
    whole = file.getvalue()
    holed = INPUTS.copy()
    holed[3, 4] = np.nan
    return {
        "wrong.npy": (INPUTS[:, :11], "wrong.npy: shape: expected [any, 12] or [12], got [60, 11]"),
        "scalar.npy": (INPUTS[0, 0].reshape(()), "expected [any, 12] or [12], got []"),
        "empty.npy": (INPUTS[:0], "empty.npy: holds no examples"),
        "wide.npy": (INPUTS.astype(np.longdouble), "type: expected floats or uint8, got float128"),
        "whole numbers.npy": (INPUTS.astype(np.int64), "type: expected floats or uint8, got int64"),
        "bytes.npy": (np.zeros((2, 12), np.uint8), "bytes.npy: the model does not say how bytes become its inputs"),
        "objects.npy": (np.array([None, {}]), "objects.npy: cannot be read: "),
        "nan.npy": (holed, "nan.npy: example 3: expected finite numbers, got nan"),
        "large.npy": (INPUTS.astype(np.float64) * 1e300, "large.npy: example 0: expected finite numbers, got "),
        "cut.npy": (whole[:-100], "cut.npy: cannot be read: "),
        "header.npy": (whole[:40], "header.npy: cannot be read: "),
        "nothing.npy": (b"", "nothing.npy: cannot be read: "),
        "text.npy": (b"these are no numbers", "text.npy: cannot be read: "),
        "lies.npy": (whole.replace(b"(60, 12)", b"(99, 99)"), "lies.npy: cannot be read: "),
    }


@pytest.mark.parametrize("name", list(arrays_to_refuse()))
def test_arrays_that_cannot_be_used(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, words = arrays_to_refuse()[name]
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    else:
        np.save(name, content)
    np.save("good.npy", INPUTS)
    assert words in refused(infer, capsys, "own.lps", "--task", "2", "good.npy", name, "--output", "answers.csv")


def test_images_that_cannot_be_used(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (32, 32)).save("good.png")
    Path("cut.png").write_bytes(Path("good.png").read_bytes()[:60])
    Path("text.png").write_text("no image")
    Image.fromarray(np.zeros((32, 32), np.uint16)).save("wide.png")
    Path("none").mkdir()
    for model, name, words in (
        ("digits.lps", "cut.png", "cut.png: cannot be read: "),
        ("digits.lps", "text.png", "text.png: kind of file: expected an image"),
        ("digits.lps", "wide.png", "wide.png: image: expected 8 bits per channel, got mode I;16"),
        ("digits.lps", "missing.png", "missing.png: cannot be read: No such file"),
        ("digits.lps", "none", "none: the folder holds no images"),
        ("own.lps", "good.png", "images: the task reads inputs of shape [12], not images"),
    ):
        arguments = ("--task", "1", name, "--output", "answers.csv")
        assert words in refused(infer, capsys, model, *arguments)
    np.save("scale.npy", np.full((2, 64), 255, np.uint8))
    assert "scale.npy: bytes: expected 0 to 16, got 255" in refused(
        infer, capsys, "digits.lps", "--task", "1", "scale.npy"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("own.lps --task 3 inputs.npy", "task: expected 1 to 2, got 3"),
        ("own.lps --task 1", "INPUT: expected .npy files, images or folders of images, got none"),
        ("own.lps inputs.npy", "task"),
        ("--task 1", "arguments are required: FILE"),
        ("own.lps --task 1 inputs.npy --top 4", "--top: expected 1 to 3, the classes of task 1, got 4"),
        ("own.lps --task 1 inputs.npy --batch-size 0", "--batch-size: expected 1 to 2147483647, got 0"),
        ("own.lps --task 1 inputs.npy --format xml", "--format: expected one of csv, json, got xml"),
        ("own.lps --task 1 inputs.npy --input-shape 13", "the network cannot read inputs of shape [13]"),
        ("own.lps --task 1 inputs.npy --device abacus", "device: expected cpu, cuda or cuda:N, got abacus"),
        ("own.lps --task 1 inputs.npy --output no/where.csv", "no/where.csv: could not be written"),
        ("own.lps --task 1 inputs.npy --output ./own.lps", "--output: own.lps is a file to read from"),
        ("own.lps --task 1 inputs.npy --output inputs.npy", "--output: inputs.npy is a file to read from"),
        ("own.lps --task 1 inputs.npy --output=", "--output: expected a path, got an empty text"),
        ("own.lps --task 1 inputs.npy --input-shape 9223372036854775808", "--input-shape: expected whole numbers"),
        ("own.lps --task 1 --benchmark --output x", "--benchmark: it classifies nothing"),
        ("missing.lps --task 1 inputs.npy", "missing.lps: could not be read: No such file"),
        ("damaged.lps --task 1 inputs.npy", "damaged.lps: "),
        ("odd.lps --task 1 inputs.npy", "benchmark: expected one of permuted-digits"),
        ("bare.lps --task 1 inputs.npy", "bare.lps: does not tell the shape of its inputs; pass --input-shape"),
    ],
)
def test_refusals(place: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    np.save("inputs.npy", INPUTS)
    damaged = bytearray(Path("own.lps").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path("damaged.lps").write_bytes(damaged)
    net = load("own.lps")
    net.metadata.stream = Source("tea", 0, 3)
    net.save("odd.lps")
    net.metadata = Metadata()
    net.save("bare.lps")
    assert words in refused(infer, capsys, *arguments.split())


def test_logits_that_are_not_finite(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One example without an answer does not cost the others theirs, and JSON stays JSON."""
    inputs = np.zeros((4, 12), np.float32)
    inputs[2] = 3e38  # finite, but not the sums over it
    np.save("inputs.npy", inputs)
    arguments = ["own.lps", "--task", "1", "inputs.npy", "--top", "2"]
    assert infer.main([*arguments, "--format", "json"]) == 0
    shown = capsys.readouterr()
    rows = msgspec.json.decode(shown.out)  # which knows no NaN
    assert [row["class"] is None for row in rows] == [False, False, True, False]
    assert [rows[2][key] for key in ("probability", "class2", "probability2")] == [None] * 3
    first = "the first is inputs.npy, example 2"
    assert shown.err == f"lps.infer: no answer for 1 of 4 examples, whose logits are infinite or NaN; {first}\n"
    assert infer.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[3] == "inputs.npy,2,,,,"


def test_names_that_are_not_utf8(place: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n.npy")
    np.save(name, INPUTS[:1])
    arguments = ["own.lps", "--task", "1", name]
    for form in ("json", "csv"):
        assert infer.main([*arguments, "--format", form, "--output", f"answers.{form}"]) == 0
    assert msgspec.json.decode(Path("answers.json").read_bytes())[0]["input"] == "caf\\udce9\n.npy"
    done = subprocess.run(command("lps.infer", *arguments), env=ENVIRONMENT, capture_output=True, check=True)
    for table in (done.stdout, Path("answers.csv").read_bytes()):
        assert next(csv.DictReader(io.StringIO(table.decode())))["input"] == "caf\\udce9\n.npy"


def test_a_terminal_that_knows_ascii_only(place: Path) -> None:
    np.save("caf\u00e9.npy", INPUTS[:1])
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    arguments = command("lps.infer", "own.lps", "--task", "1", "caf\u00e9.npy")
    done = subprocess.run(arguments, env=environment, capture_output=True, check=True)
    assert done.stdout.splitlines()[1].startswith(b"caf\\xe9.npy,0,")


def test_tables_without_rows() -> None:
    assert TEXTS["csv"]([]) == "input,index,class,probability\n"
    assert json.loads(TEXTS["json"]([])) == []


def test_outputs_that_are_no_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming a file over a pipe or a device would replace it: over /dev/null for the whole machine."""
    np.save("inputs.npy", INPUTS)
    os.mkfifo("pipe")
    for output, shown in (("pipe", "pipe"), ("a\0b", r"'a\x00b'")):
        words = refused(infer, capsys, "own.lps", "--task", "1", "inputs.npy", "--output", output)
        assert f"--output: expected the path of a file, got {shown}; choose another path" in words
    assert Path("pipe").is_fifo()


def test_inputs_that_never_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.npy")
    Path("folder").mkdir()
    os.mkfifo("folder/pipe.png")
    for name in ("pipe.npy", "folder", "folder/pipe.png"):
        words = refused(infer, capsys, "digits.lps", "--task", "1", name, "--output", "answers.csv")
        assert "cannot be read: expected a file, got a pipe; check the path" in words
