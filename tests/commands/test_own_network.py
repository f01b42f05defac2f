"""Files of a user's own network in every command: ``--backbone``, entry points, names of tasks and of classes."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lps
import numpy as np
import onnx
import pytest
import torch
from lps import eval as evaluation
from lps import export, infer
from lps.errors import ConfigError

from tests.command import refused, run
from tests.helpers import same_bits
from tests.toy import QUICK, inputs_of, toy_task

# A user's module, which notes that it was imported.
MODULE = """
from pathlib import Path
from torch import nn
Path("imported").touch()

class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 24), nn.Linear(24, width)

    def forward(self, x):
        return self.second(self.first(x).tanh()).relu()

def make():
    return Net()

def narrow():
    return Net(15)

class Sized(Net):
    def forward(self, x):
        return super().forward(x) if len(x) != 3 else super().forward(x[:2])

class Picky(Net):
    def forward(self, x):
        raise KeyError("too small")

def nothing():
    return "a network"

def broken():
    raise RuntimeError("no weights here\\nsecond line")

def head(features, classes):
    return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, classes))

ready, number = Net(), 3
"""

TASKS = [
    replace(toy_task(0), name="faces", class_names=("Ann", "Bob", "\x1b[31mEve\n")),
    replace(toy_task(1), name="birds"),
]
INPUTS = inputs_of(TASKS[0])
MAKE = ("--backbone", "own_net:make")


def names_of_module() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(MODULE.replace('Path("imported").touch()', ""), names)
    return names


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of the user's network: with heads of torch's and with the user's own."""
    place = tmp_path_factory.mktemp("own")
    (place / "own_net.py").write_text(MODULE)
    names = names_of_module()
    make, head = names["make"], names["head"]
    for file, tasks in (("own", TASKS), ("heads", [replace(TASKS[0], head=head)])):
        torch.manual_seed(0)
        net = lps.Lifelong(make(), features=16)
        for task in tasks:
            net.learn(task, QUICK)
        net.save(place / f"{file}.lps")
        if file == "own":
            with torch.no_grad():
                torch.save([net.eval()(INPUTS, task=number) for number in (1, 2)], place / "answers.pt")
    np.save(place / "inputs.npy", INPUTS.numpy())
    return place


@pytest.fixture
def place(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for file in files.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    yield tmp_path
    sys.modules.pop("own_net", None)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_infer_in_a_process_of_its_own(place: Path) -> None:
    arguments = ["infer", "own.lps", *MAKE, "--task", "faces", "inputs.npy"]
    done = run(place, "lps.cli", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    expected = torch.load(place / "answers.pt")[0].argmax(1).tolist()
    found = rows(done.stdout)
    assert list(found[0]) == ["input", "index", "class", "class_name", "probability"]
    assert [int(row["class"]) for row in found] == expected
    names = ["Ann", "Bob", "\\x1b[31mEve\\n"]  # nothing that a terminal would obey
    assert [row["class_name"] for row in found] == [names[number] for number in expected]


def test_class_names_as_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["own.lps", *MAKE, "--task", "1", "inputs.npy", "--top", "3", "--format", "json"]
    assert infer.main(arguments) == 0
    answers = json.loads(capsys.readouterr().out)
    assert list(answers[0])[2:8] == ["class", "class_name", "probability", "class2", "class_name2", "probability2"]
    for answer in answers:
        assert answer["class_name3"] == TASKS[0].class_names[answer["class3"]]
    assert infer.main(["own.lps", *MAKE, "--task", "birds", "inputs.npy"]) == 0  # whose classes have no names
    assert "class_name" not in capsys.readouterr().out


def test_export_onnx_with_names(place: Path) -> None:
    assert export.main(["own.lps", *MAKE, "--task", "faces", "--format", "onnx"]) == 0
    properties = {entry.key: entry.value for entry in onnx.load("own-task1.onnx").metadata_props}
    assert properties["task"] == "faces"
    assert json.loads(properties["class_names"]) == list(TASKS[0].class_names)


def test_export_torch_with_names(place: Path) -> None:
    assert export.main(["own.lps", *MAKE, "--task", "faces", "--format", "torch"]) == 0
    labels = {"task": "", "class_names": ""}
    program = torch.export.load("own-task1.pt2", extra_files=labels)
    assert labels["task"] == "faces"
    assert json.loads(labels["class_names"]) == list(TASKS[0].class_names)
    expected = torch.load("answers.pt")[0]
    torch.testing.assert_close(program.module()(INPUTS), expected, rtol=1e-4, atol=1e-4)


def test_eval_and_own_heads(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluation.main(["own.lps", *MAKE, "--task", "birds"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:3]] == [["birds", "ok"]]
    labels = TASKS[1].test.labels.numpy()  # type: ignore[union-attr]
    np.save("birds.npy", inputs_of(TASKS[1]).numpy())
    np.save("labels.npy", labels)
    measure = ("--task", "birds", "--inputs", "birds.npy", "--labels", "labels.npy")
    assert evaluation.main(["own.lps", *MAKE, *measure]) == 0
    net = lps.load("own.lps", names_of_module()["make"])
    expected = f"{100 * net.accuracy('birds', TASKS[1].test):.2f}"
    assert capsys.readouterr().out.splitlines()[2].split() == ["birds", expected, "%", "ok"]
    for wrong, words in (
        (labels[:-1], "labels.npy: labels: expected 60, one per example, got 59"),
        (labels + 1, "labels.npy: labels: expected 0 to 2, got 3"),
        (labels / 2, "labels.npy: labels: expected whole numbers in one row, got float64 [60]"),
    ):
        np.save("labels.npy", wrong)
        assert words in refused(evaluation, capsys, "own.lps", *MAKE, *measure)
    assert "--inputs: expected --task, --inputs and --labels together" in refused(
        evaluation, capsys, "own.lps", *MAKE, *measure[2:]
    )
    heads = ("--heads", "own_net:head")
    assert infer.main(["heads.lps", *MAKE, *heads, "--task", "faces", "inputs.npy"]) == 0
    assert len(rows(capsys.readouterr().out)) == len(INPUTS)


def test_nothing_is_imported_that_was_not_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the network a file is checked, and cut down to one task."""
    assert evaluation.main(["own.lps"]) == 0
    assert export.main(["own.lps", "--task", "birds", "--format", "lps"]) == 0
    capsys.readouterr()
    for command, arguments in (
        (infer, ("--task", "1", "inputs.npy")),
        (export, ("--task", "1", "--format", "torch", "--output", "x")),
    ):
        message = refused(command, capsys, "own.lps", *arguments)
        assert "make it yourself and pass it as lps.load(..., backbone=make) or, to a command, as --backbone" in message
    assert not Path("imported").exists()
    assert "own_net" not in sys.modules
    monkeypatch.syspath_prepend(place)
    whole, alone = (lps.load(file, "own_net:make") for file in ("own.lps", "own-task2.lps"))
    assert Path("imported").exists()
    with torch.no_grad():
        assert same_bits(alone(INPUTS, task="birds"), whole(INPUTS, task=2))


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_code_that_cannot_be_exported(place: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    """One sentence, and no word of flags that were not given."""
    arguments = ("own.lps", "--task", "faces", "--format", format, "--output", "out")
    assert export.main([*arguments, "--backbone", "own_net:Sized"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("lps.export: task 1: torch cannot export this network's code: ")
    assert "often it is len(x), for which x.shape[0] works" in message
    message = refused(export, capsys, *arguments, "--backbone", "own_net:Picky")
    words = "task 1: the network cannot read random inputs of the kind that the file tells, float32 [12]: KeyError: "
    assert f"{words}'too small'" in message
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        ("own_net", "expected package.module:function, or a name that an installed package declares in the group"),
        ("nowhere:make", "nowhere:make: there is no module nowhere; check its name"),
        ("own_net.inner:make", "own_net.inner:make: there is no module own_net"),
        ("own_net:gone", "own_net:gone: own_net has no gone"),
        ("own_net:Net.gone", "own_net:Net.gone: own_net has no Net.gone"),
        ("own_net:number", "own_net:number: expected a function or class that makes the network, got int"),
        ("own_net:ready", "own_net:ready: expected a function or class that makes the network, got the network itself"),
        ("own_net:nothing", "own_net:nothing() must return an nn.Module, got str"),
        ("own_net:broken", "own_net:broken() failed: RuntimeError: no weights here"),
        ("own_net:narrow", "the backbone does not fit the file: expected layer second.weight to be float32 [16, 24], "),
        ("bad_net:make", "bad_net:make: importing bad_net failed: NameError: name 'x' is not defined"),
        ("quits:make", "quits:make: importing quits failed: SystemExit: 3"),
        ("needs:make", "needs:make: importing needs failed: ModuleNotFoundError: No module named 'not_there'"),
        (":make", "expected package.module:function, got :make"),
        ("own_net:", "expected package.module:function, got own_net:"),
        ("../own_net:make", "expected package.module:function, got ../own_net:make"),
        ("own\x1b_net:make", "expected package.module:function, got 'own\\x1b_net:make'"),
        ("", "expected package.module:function, or a name"),
    ],
)
def test_backbones_that_cannot_be_used(
    place: Path, capsys: pytest.CaptureFixture[str], backbone: str, words: str
) -> None:
    for name, code in (("bad_net", "x"), ("quits", "raise SystemExit(3)"), ("needs", "import not_there")):
        Path(f"{name}.py").write_text(code)
    Path("imported").touch()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        assert words in refused(evaluation, capsys, "own.lps", "--backbone", backbone)
    finally:
        sys.dont_write_bytecode = before


def package(place: Path, body: str) -> None:
    """An installed package that declares a network of the group."""
    Path(place, "nets.py").write_text(body)
    about = place / "nets-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: our-nets\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lps.backbones]\nour-net = nets:our_net\n")


def test_networks_of_installed_packages(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that names one says so, and does not have it imported; the user's asking for it does."""
    package(
        place,
        "import lps.models\nfrom pathlib import Path\nfrom torch import nn\nPath('imported').touch()\n"
        "@lps.models.register('our-net')\n"
        "def our_net(width: int = 20):\n"
        "    return nn.Sequential(nn.Linear(12, width), nn.ReLU()), width\n",
    )
    learn = (
        "import lps, nets, tests.toy as toy\n"
        "net = lps.Lifelong(nets.our_net(width=18), 18)\n"
        "net.learn(toy.toy_task(0), toy.QUICK)\n"
        "net.save('ours.lps')\n"
    )
    Path("learn.py").write_text(learn)
    done = run(place, "learn")
    assert done.returncode == 0, done.stderr
    Path("imported").unlink()
    monkeypatch.syspath_prepend(place)
    arguments = ("ours.lps", "--task", "1", "inputs.npy")
    message = refused(infer, capsys, *arguments)
    assert "its network our-net is declared by the installed package our-nets: pass its name as" in message
    message = refused(infer, capsys, *arguments, "--backbone", "other-net")
    assert "declares in the group lps.backbones (our-net), got other-net" in message
    assert not Path("imported").exists()
    done = run(place, "lps.infer", *arguments, "--backbone", "our-net")
    assert (done.returncode, done.stderr) == (0, "")  # made with the file's own arguments: 18 units, not 20
    assert Path("imported").exists()


def test_a_handle_says_what_it_cannot_do(place: Path) -> None:
    net = lps.load("own.lps")
    assert [(task.name, task.classes) for task in net.learnt] == [("faces", 3), ("birds", 3)]
    assert [net.digest(task) for task in ("faces", "birds")] == [task.digest for task in net.learnt]
    for attempt in (
        lambda: net(INPUTS, task=1),
        lambda: net(INPUTS, task=["faces"] * len(INPUTS)),
        lambda: net.extract(1),
        lambda: net.export(1, "x.onnx"),
        lambda: net.learn(toy_task(3), QUICK),
        lambda: net.accuracy(1, TASKS[0].test),
        lambda: net.activate(1),
    ):
        with pytest.raises(ConfigError, match=r"own\.lps: its network is not one that lps\.models can make"):
            attempt()
    net.save("again.lps")
    assert Path("again.lps").read_bytes() == Path("own.lps").read_bytes()
    assert net.export("birds", "birds.lps") == "the digest is unchanged"
