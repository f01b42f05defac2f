"""``python -m lps.export``: one task for torch, for ONNX and as a model.lps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lps
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from lps import Lifelong, LPSConfig, export, load
from lps.metadata import Metadata
from lps.models import create
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.command import ENVIRONMENT, refused, run
from tests.toy import QUICK, inputs_of, toy_task

TASKS = [toy_task(seed) for seed in range(2)]
INPUTS = inputs_of(TASKS[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two tasks, of which the second reuses parts of the first and has whole columns free."""
    torch.manual_seed(0)
    backbone = create("mlp", inputs=12, hidden=[24, 16], dropout=0.1)
    net = Lifelong(backbone, features=16, pattern="column", sharing="structured")
    for task in TASKS:
        net.learn(task, QUICK)
    path = tmp_path_factory.mktemp("export") / "model.lps"
    net.save(path)
    return path


@pytest.fixture
def folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds only the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.lps").write_bytes(model.read_bytes())
    return tmp_path


def expected(model: Path, task: int = 2) -> Tensor:
    with torch.no_grad():
        logits: Tensor = load(model)(INPUTS, task=task)
    return logits


def test_torch_in_a_process_without_this_package(folder: Path) -> None:
    done = run(folder, "lps.export", "model.lps", "--task", "2", "--format", "torch")
    assert (done.returncode, done.stderr) == (0, "")
    size = (folder / "model-task2.pt2").stat().st_size
    assert done.stdout.startswith(f"model-task2.pt2  {size:,} bytes  differs from the network by ")
    assert {path.name for path in folder.iterdir()} == {"model.lps", "model-task2.pt2"}
    torch.save(INPUTS, folder / "inputs.pt")
    program = (
        "import sys, torch\n"
        "network = torch.export.load('model-task2.pt2').module()\n"
        "inputs = torch.load('inputs.pt')\n"
        "torch.save([network(inputs), network(inputs[:1])], 'logits.pt')\n"
        "assert not any(name.startswith('lps') for name in sys.modules)\n"
    )
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True)
    logits, first = torch.load(folder / "logits.pt")
    # Other batch sizes use other kernels: some ulps of float32.
    torch.testing.assert_close(logits, expected(folder / "model.lps"), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first, logits[:1], rtol=1e-5, atol=1e-5)


def test_onnx_in_onnx_runtime(folder: Path) -> None:
    done = run(folder, "lps.cli", "export", "model.lps", "--task", "2", "--format", "onnx", "--output", "small.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small.onnx  ")
    assert {path.name for path in folder.iterdir()} == {"model.lps", "small.onnx"}  # no file of weights beside it
    proto = onnx.load("small.onnx")
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 18)]
    assert not proto.functions
    session = onnxruntime.InferenceSession("small.onnx", providers=["CPUExecutionProvider"])
    for batch in (INPUTS, INPUTS[:1]):
        (logits,) = session.run(["logits"], {"input": batch.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(logits), expected(folder / "model.lps")[: len(batch)], rtol=1e-5, atol=1e-5
        )


def test_files_do_not_name_folders_of_the_machine(folder: Path) -> None:
    for kind in ("torch", "onnx"):
        assert export.main(["model.lps", "--task", "1", "--format", kind]) == 0
    for name in ("model-task1.pt2", "model-task1.onnx"):
        content = (folder / name).read_bytes()
        assert str(Path(torch.__file__).parent).encode() not in content
        assert str(Path(lps.__file__).parent).encode() not in content


def test_a_file_of_its_own(folder: Path) -> None:
    done = run(folder, "lps.export", "model.lps", "--task", "2", "--format", "lps")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("bytes  the digest is unchanged\n")
    whole, alone = load("model.lps"), load("model-task2.lps")
    assert alone.learnt == whole.learnt[1:]
    assert torch.equal(alone(INPUTS, task=1), whole(INPUTS, task=2))
    assert Path("model-task2.lps").stat().st_size < Path("model.lps").stat().st_size
    done = run(folder, "lps.eval", "model-task2.lps")  # it is not mistaken for the first task of a stream
    assert (done.returncode, done.stderr) == (0, "")


def test_a_convolutional_network(folder: Path) -> None:
    torch.manual_seed(0)
    net = Lifelong(create("cifar-net"), features=512, pattern="filter")
    task = toy_task(0, (3, 32, 32))
    net.learn(task, LPSConfig(alpha=0.3, epochs=(0, 1, 0)))
    net.save("conv.lps")
    net.eval()
    inputs = inputs_of(task)
    for kind in ("torch", "onnx"):
        assert export.main(["conv.lps", "--task", "1", "--format", kind]) == 0
    logits = net(inputs, task=1)
    torch.testing.assert_close(torch.export.load("conv-task1.pt2").module()(inputs), logits, rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession("conv-task1.onnx", providers=["CPUExecutionProvider"])
    answer = torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])
    torch.testing.assert_close(answer, logits, rtol=1e-4, atol=1e-5)


def test_the_shape_of_inputs_can_be_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = load("model.lps")
    known = net.metadata
    assert known == Metadata(input_shape=[12], accuracy=known.accuracy, validation=known.validation)
    net.metadata = Metadata()
    net.save("bare.lps")
    sentence = refused(export, capsys, "bare.lps", "--task", "1", "--format", "torch")
    assert "bare.lps: does not tell the shape of its inputs; pass --input-shape" in sentence
    assert export.main(["bare.lps", "--task", "1", "--format", "lps"]) == 0  # needs none
    assert load("bare-task1.lps").metadata.input_shape is None
    assert export.main(["bare.lps", "--task", "1", "--format", "lps", "--input-shape", "12"]) == 0
    assert load("bare-task1.lps").metadata.input_shape == [12]
    assert export.main(["bare.lps", "--task", "1", "--format", "torch", "--input-shape", "3,4"]) == 0
    network = torch.export.load("bare-task1.pt2").module()
    assert torch.equal(network(INPUTS.view(-1, 3, 4)).argmax(1), expected(folder / "model.lps", 1).argmax(1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--task 3 --format torch", "task: expected 1 to 2, got 3"),
        ("--task 0 --format lps", "task: expected 1 to 2, got 0"),
        ("--task 1 --format tflite", "--format: expected one of torch, onnx, lps, got tflite"),
        ("--task one --format lps", "task: expected 1 to 2 or a name (clouds-0, clouds-1), got one"),
        ("--format torch", "task"),
        ("--task 1 --format torch --input-shape 13", "--input-shape: the network cannot read inputs of shape [13]: "),
        ("--task 1 --format lps --input-shape 13", "--input-shape: the network cannot read inputs of shape [13]: "),
        ("--task 1 --format onnx --input-shape 3,x", "--input-shape: expected whole numbers above 0"),
        ("--task 1 --format torch --input-shape 0", "--input-shape: expected whole numbers above 0"),
        ("--task 1 --format torch --output no/where.pt2", "no/where.pt2: could not be written: No such file"),
        ("--task 1 --format lps --output no/where.lps", "no/where.lps: could not be written: No such file"),
        ("--task 1 --format lps --output ./model.lps", "--output: model.lps is a file to read from"),
    ],
)
def test_refusals(folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert words in refused(export, capsys, "model.lps", *arguments.split())


def test_files_that_cannot_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with safe_open("model.lps", framework="pt") as file:
        manifest = json.loads(file.metadata()["manifest"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    save_file(tensors, "newer.lps", metadata={"manifest": json.dumps({**manifest, "version": 9})})
    damaged = bytearray(Path("model.lps").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path("damaged.lps").write_bytes(damaged)
    for name, words in (
        ("newer.lps", "format version 9 was written by a newer version"),
        ("damaged.lps", "damaged.lps: "),
        ("missing.lps", "missing.lps: could not be read: No such file"),
    ):
        assert words in refused(export, capsys, name, "--task", "1", "--format", "torch")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_without_its_packages(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    sentence = refused(export, capsys, "model.lps", "--task", "1", "--format", "onnx")
    assert sentence.endswith("pip install learn-prune-share[export]\n")
    assert package in sentence


def test_what_differs_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Lifelong.extract

    def wrong(net: Lifelong, task: int, **options: bool) -> torch.nn.Module:
        """Cuts out the wrong task: a fault that the check before writing must find."""
        return whole(net, 3 - task, **options)

    monkeypatch.setattr(Lifelong, "extract", wrong)
    sentence = refused(export, capsys, "model.lps", "--task", "2", "--format", "torch")
    assert "task 2: the exported network differs from the one in the file by " in sentence


def test_learning_records_the_shape_of_inputs_once_and_only_if_it_succeeds() -> None:
    class StopError(Exception):
        pass

    class Stops(lps.Listener):
        def row(self, row: lps.Row) -> None:
            raise StopError

    net = Lifelong(create("mlp", inputs=12, hidden=[16]), features=16)
    net.metadata.user["mine"] = 1
    with pytest.raises(StopError):
        net.learn(toy_task(0), QUICK, listener=Stops())
    assert net.metadata == Metadata(user={"mine": 1})
    net.learn(toy_task(0, (3, 4)), QUICK)
    known = net.metadata
    figures: dict[str, Any] = {"accuracy": known.accuracy, "validation": known.validation}
    assert known == Metadata(input_shape=[3, 4], user={"mine": 1}, **figures)
    net.learn(toy_task(1), QUICK)
    assert net.metadata.input_shape == [3, 4]


def test_an_interrupt_between_the_record_and_the_commit_undoes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Lifelong(create("mlp", inputs=12, hidden=[16]), features=16)

    def interrupted(_net: Lifelong, _task: int) -> str:
        assert net.metadata.input_shape is not None
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lifelong, "digest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.learn(toy_task(0), QUICK)
    assert net.metadata == Metadata()
    assert not net.learnt
