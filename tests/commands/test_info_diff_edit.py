"""``lps.info``, ``lps.diff`` and ``lps.edit``: what a file holds, how two differ, and what can be changed in one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lps
import pytest
import torch
from lps import diff, edit, info
from lps.artifact.read import load_tensors
from lps.errors import ConfigError
from lps.metadata import Source
from lps.models import mlp
from lps.runs.metrics import capacity, density
from torch import Tensor

from tests.artifact.crafting import Crafted
from tests.command import refused, run
from tests.helpers import same_bits
from tests.toy import QUICK, inputs_of, toy_task

NAMES = ("faces", "birds\x1b[2J\n", "fish")
TASKS = [
    replace(toy_task(seed), name=name, class_names=("a", "b\x07", "c") if name == "fish" else ())
    for seed, name in enumerate(NAMES)
]
INPUTS = inputs_of(TASKS[0])


def answers(net: lps.Lifelong) -> list[Tensor]:
    with torch.no_grad():
        return [net.eval()(INPUTS, task=number) for number in range(1, len(net.learnt) + 1)]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three tasks, of a network with statistics, so that there are private tensors."""
    torch.manual_seed(0)
    net = lps.Lifelong(mlp(inputs=12, hidden=(16, 9), dropout=0.1), features=9, norms="per-task")
    for task in TASKS:
        net.learn(task, QUICK)
    net.metadata.accuracy = [0.9, 0.8, 0.7]
    net.metadata.stream = Source("synthetic-rf", 3, 5)
    path = tmp_path_factory.mktemp("learnt") / "model.lps"
    net.save(path)
    return path


@pytest.fixture
def place(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.lps").write_bytes(learnt.read_bytes())
    return tmp_path


def test_info_as_text_in_a_process_of_its_own(place: Path) -> None:
    done = run(place, "lps.cli", "info", "model.lps")
    assert (done.returncode, done.stderr) == (0, "")
    net = lps.load("model.lps")
    size = Path("model.lps").stat().st_size
    lines = done.stdout.splitlines()
    assert lines[0] == f"file      model.lps, {size:,} bytes"
    assert lines[1].startswith("network   mlp {'inputs': 12, 'hidden': [16, 9], 'dropout': 0.1}, 9 features")
    assert lines[2] == f"weights   336 prunable in 2 layers, {100 * (1 - sum(capacity(net))):.1f} % free"
    assert lines[4] == "input     float32 [12]"
    assert lines[5] == "data      synthetic-rf, seed 3"
    rows = [line.split() for line in lines[9:12]]
    assert [row[:2] for row in rows] == [["1", "faces"], ["2", r"'birds\x1b[2J\n'"], ["3", "fish"]]
    assert [row[3] for row in rows] == ["90.00", "80.00", "70.00"]
    assert [row[5] for row in rows] == [f"{100 * (task.validation or 0):.2f}" for task in net.tasks]
    assert [row[-1] for row in rows] == [task.digest[:16] for task in net.learnt]
    assert lines[-1] == r"task 3: a, b\x07, c"
    assert "\x1b" not in done.stdout


def test_info_as_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main(["model.lps", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    net = lps.load("model.lps")
    assert facts["architecture"] == "mlp"
    assert facts["bytes"] == Path("model.lps").stat().st_size
    assert facts["input_shape"] == [12]
    tasks = facts["tasks"]
    assert [task["name"] for task in tasks] == list(NAMES)
    assert [task["class_names"] for task in tasks] == [[], [], ["a", "b\x07", "c"]]
    assert [task["share"] for task in tasks] == capacity(net)
    assert [task["density"] for task in tasks] == density(net)
    assert [task["accuracy"] for task in tasks] == [0.9, 0.8, 0.7]
    assert [task["validation"] for task in tasks] == [task.validation for task in net.tasks]
    assert [task["inputs"] for task in tasks] == ["float32 [12]"] * 3
    stored = Crafted(Path("model.lps")).tensors
    for number, task in enumerate(tasks, 1):
        assert task["digest"] == net.learnt[number - 1].digest
        assert task["bytes"] == sum(t.nbytes for name, t in stored.items() if name.startswith(f"net/{number}/"))
    assert facts["common_bytes"] == sum(t.nbytes for name, t in stored.items() if name.startswith("net/all/"))


@pytest.mark.parametrize("version", [1, 2])
def test_info_of_files_of_every_version(version: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[1] / "data" / f"model-v{version}.lps"
    assert info.main([str(file), "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["digest"] for task in tasks] == [task.digest for task in lps.load(file).learnt]


def damage(content: bytearray) -> None:
    content[len(content) // 2] ^= 1


def cut(content: bytearray) -> None:
    del content[1000:]


@pytest.mark.parametrize("change", [damage, cut, bytearray.clear])
@pytest.mark.parametrize("command", [info, edit])
def test_files_that_are_not_whole(
    place: Path, capsys: pytest.CaptureFixture[str], change: Callable[[bytearray], None], command: object
) -> None:
    content = bytearray(Path("model.lps").read_bytes())
    change(content)
    Path("bad.lps").write_bytes(content)
    more = ("--drop-last", "-o", "out.lps") if command is edit else ()
    assert "load: bad.lps: " in refused(command, capsys, "bad.lps", *more)  # type: ignore[arg-type]


def crafted(change: Callable[[Crafted], object]) -> str:
    file = Crafted(Path("model.lps"))
    change(file)
    Path("crafted.lps").write_bytes(file.content())
    return "crafted.lps"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.part.update(norms="frozen"), "private tensors: expected none where norms are frozen"),
        (lambda c: c.part["layers"][0].update(dtype="float16"), "crafted.lps: expected tensor "),
        (lambda c: c.part["layers"][0].update(shape=[2**40, 2**20]), "expected tensor net/all/owner/1.weight to be "),
        (lambda c: c.part["common"][0].update(shape=[2**40, 2**20]), "expected tensor net/1/private/1.bias to be "),
        (lambda c: c.part.update(pattern="x\ny"), "pattern: expected one of"),
        (lambda c: c.manifest["tasks"][0].update(digest="0" * 64), "does not have the digest"),
        (lambda c: c.manifest["tasks"][0].update(classes=10**9), "head: expected tensor weight to be"),
    ],
)
def test_files_of_hostile_writers(
    place: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Crafted], object], words: str
) -> None:
    """The network's code is not there to compare with; what can be compared is."""
    assert words in refused(info, capsys, crafted(change))


def test_diff(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff.main(["model.lps", "model.lps"]) == 0
    capsys.readouterr()
    net = lps.load("model.lps")
    net.drop_last()
    net.rename(1, "people")
    net.learn(replace(toy_task(5), name="fish"), QUICK)
    net.learn(replace(toy_task(6), name="cars"), QUICK)
    net.save("other.lps")
    assert diff.main(["model.lps", "other.lps"]) == 1
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["1", "1", "faces / people", "alike, renamed"],
        ["2", "2", r"'birds\x1b[2J\n'", "alike"],
        ["3", "3", "fish", "differ"],
        ["-", "4", "cars", "only in B"],
    ]
    with pytest.raises(SystemExit) as code:
        raise SystemExit(diff.main(["model.lps", "none.lps"]))
    assert code.value.code == 2


def test_edit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = answers(lps.load("model.lps"))
    owned = json_of("model.lps", capsys)["tasks"][2]["share"] * 336
    arguments = ["model.lps", "--rename", "3=cars", "--rename", "faces=people", "--drop-last", "-o", "out.lps"]
    assert edit.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "task 3 (fish) is now task 3 (cars)",
        "task 1 (faces) is now task 1 (people)",
        f"task 3 (cars) was removed: {owned:.0f} weights are free again",
        f"out.lps  {Path('out.lps').stat().st_size:,} bytes  digests of tasks 1, 2 are unchanged",
    ]
    net = lps.load("out.lps")
    assert [task.name for task in net.learnt] == ["people", NAMES[1]]
    assert [task.digest for task in net.learnt] == [task.digest for task in lps.load("model.lps").learnt[:2]]
    assert all(same_bits(now, then) for now, then in zip(answers(net), before, strict=False))
    assert net.metadata.accuracy == [0.9, 0.8]
    assert net.metadata.stream == Source("synthetic-rf", 3, 2)  # task 3 will be another one
    net.learn(TASKS[2], QUICK)
    assert len(net.learnt) == 3
    assert all(same_bits(now, then) for now, then in zip(answers(net)[:2], before, strict=False))


def json_of(file: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, float]]]:
    capsys.readouterr()
    assert info.main([file, "--json"]) == 0
    facts: dict[str, list[dict[str, float]]] = json.loads(capsys.readouterr().out)
    return facts


def test_edit_in_place_and_back(place: Path) -> None:
    """A file that was edited and edited back is the same file."""
    before = Path("model.lps").read_bytes()
    assert edit.main(["model.lps", "--rename", "faces=people", "-o", "model.lps"]) == 0
    assert Path("model.lps").read_bytes() != before
    assert edit.main(["model.lps", "--rename", "people=faces", "-o", "model.lps"]) == 0
    assert Path("model.lps").read_bytes() == before
    assert [path.name for path in place.iterdir()] == ["model.lps"]


def test_edit_of_names_that_are_numbers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each could be meant as another task; numbers go through."""
    assert edit.main(["model.lps", "--rename", "1=2", "--rename", "2=1", "-o", "swapped.lps"]) == 0
    net = lps.load("swapped.lps")
    for text in ("1", "2"):
        with pytest.raises(ConfigError, match="is a number and the name of task"):
            net.check_task(text)
    assert edit.main(["swapped.lps", "--rename", "1=faces", "--rename", f"2={NAMES[1]}", "-o", "swapped.lps"]) == 0
    assert Path("swapped.lps").read_bytes() == Path("model.lps").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-o out.lps", "expected --rename T=NAME or --drop-last, got neither"),
        ("--drop-last", "the following arguments are required: -o/--output"),
        ("--rename 3 -o out.lps", "--rename: expected T=NAME, as in 3=faces, got 3"),
        ("--rename 3= -o out.lps", "--rename: expected T=NAME, as in 3=faces, got 3="),
        ("--rename 4=x -o out.lps", "task: expected 1 to 3, got 4"),
        ("--rename dogs=x -o out.lps", r"expected 1 to 3 or a name (faces, 'birds\x1b[2J\n', fish), got dogs"),
        ("--rename 3=faces -o out.lps", "name: faces is the name of task 1 already; choose another"),
        ("--rename 1=x --rename faces=y -o out.lps", "--rename: expected one new name per task, got two"),
        ("--drop-last -o no/out.lps", "no/out.lps: could not be written"),
    ],
)
def test_edits_that_are_refused(place: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert words in refused(edit, capsys, "model.lps", *arguments.split())


def test_the_only_task_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert edit.main(["model.lps", "--drop-last", "-o", "model.lps"]) == 0
    capsys.readouterr()
    assert "expected another task that is left" in refused(edit, capsys, "model.lps", "--drop-last", "-o", "model.lps")


def test_tensors_alone_answer_to_the_same_digests(place: Path) -> None:
    """Without making the network, which the file names."""
    net, whole = load_tensors("model.lps"), lps.load("model.lps")
    assert not net.can_run
    assert [net.digest(number) for number in (1, 2, 3)] == [whole.digest(number) for number in (1, 2, 3)]
    net.save("again.lps")
    assert Path("again.lps").read_bytes() == Path("model.lps").read_bytes()
