"""Crafted states of a task being learnt, whose checksums are right: refused in one sentence, or learnt to the end."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong, train
from lps.errors import FileFormatError, LPSError, StoppedError
from lps.runs.checkpoint import FORMAT, VERSION, Checkpoint, decode, encode
from lps.runs.directory import STATE
from torch import Tensor

from tests.artifact.crafting import Raw, drop, get, places, put, safetensors, state_file, to_json, with_header
from tests.artifact.test_damage import small_mlp
from tests.command import ENVIRONMENT, run
from tests.runs.test_checkpoint import StopAt
from tests.toy import QUICK, toy_task

pytestmark = pytest.mark.slow

CONFIG = replace(QUICK, epochs=(1, 2, 1))  # 5 steps each
TASKS = [toy_task(0), toy_task(1)]
State = dict[str, Any]
ROOT = Path(__file__).parents[2]


def made() -> Lifelong:
    """A network with one task."""
    torch.manual_seed(0)
    net = Lifelong(small_mlp(), features=9)
    net.learn(TASKS[0], CONFIG)
    return net


@pytest.fixture(scope="module")
def net() -> Lifelong:
    return made()


@pytest.fixture(scope="module")
def whole(net: Lifelong, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The state of task 2 in the middle of ADMM."""
    directory = tmp_path_factory.mktemp("state")
    checkpoint = Checkpoint(directory)
    with pytest.raises(StoppedError):
        net.learn(TASKS[1], CONFIG, listener=StopAt(checkpoint, 12), checkpoint=checkpoint)
    (path,) = directory.iterdir()
    return path.read_bytes()


def attempt(net: Lifelong, content: bytes, directory: Path) -> str:
    """How learning goes on from a state: the refusal, which has to be a good one, or "" for a task that is learnt."""
    path = directory / "state-1.safetensors"
    path.write_bytes(content)
    twin = copy.deepcopy(net)
    before = copy.deepcopy(twin.state_dict())
    try:
        twin.learn(TASKS[1], CONFIG, checkpoint=Checkpoint(directory))
    except LPSError as error:
        message = str(error)
        assert len(message) < 500, f"{len(message)} characters: {message:.300}"
        assert message.isprintable(), f"not one line of readable characters: {message!r:.300}"
        after = twin.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), "the network has changed"
        return message
    finally:
        for file in directory.iterdir():
            file.unlink()
    assert twin.digest(1) == net.learnt[0].digest
    assert all(bool(tensor.isfinite().all()) for tensor in twin.state_dict().values() if tensor.is_floating_point())
    return ""


def test_a_whole_state_goes_on(net: Lifelong, whole: bytes, tmp_path: Path) -> None:
    """So that what is wrong below is refused for no other reason."""
    assert attempt(net, encode(decode(whole)), tmp_path) == ""


def setter(*keys: Any, value: Any) -> Callable[[State], object]:
    return lambda state: put(state, keys, value)


def changed(*keys: Any, change: Callable[[Any], Any]) -> Callable[[State], object]:
    return lambda state: put(state, keys, change(get(state, keys)))


def first(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


NAN = float("nan")
LEARNER = ("learner",)
MASKED = ("learner", "stepper", "masked", 0, "state", 0, "exp_avg")
PLAIN = ("learner", "stepper", "plain", "state", 0, "exp_avg")

STATES: dict[str, Callable[[State], object]] = {
    "a phase that there is not": setter("position", "phase", value=99),
    "a phase below 0": setter("position", "phase", value=-1),
    "an epoch that there is not": setter("position", "epoch", value=10**6),
    "an epoch below 0": setter("position", "epoch", value=-1),
    "a batch that there is not": setter("position", "batch", value=10**9),
    "a batch below 0": setter("position", "batch", value=-1),
    "a step that there is not": setter("position", "step", value=10**9),
    "a step below 0": setter("position", "step", value=-1),
    "a step as text": setter("position", "step", value="7"),
    "a position of other fields": setter("position", value={"x": 1}),
    "steps below 0": setter("position", "total", value=-1),
    "no position": lambda state: state.pop("position"),
    "weights of another shape": changed(*LEARNER, "v", 0, change=lambda t: t[1:]),
    "weights of one number": setter(*LEARNER, "v", 0, value=torch.zeros(())),
    "weights of another dtype": changed(*LEARNER, "v", 0, change=Tensor.double),
    "weights that are no tensor": setter(*LEARNER, "v", 0, value=1.0),
    "weights of NaN": changed(*LEARNER, "v", 0, change=first(NAN)),
    "weights of a layer too few": changed(*LEARNER, "v", change=lambda v: v[:1]),
    "a centre of another shape": changed(*LEARNER, "centre", 0, change=lambda t: t[1:]),
    "kept bits too few": changed(*LEARNER, "kept", 0, change=lambda t: t[1:]),
    "kept bits too many": changed(*LEARNER, "kept", 0, change=lambda t: torch.cat([t, t])),
    "kept bits of another dtype": changed(*LEARNER, "kept", 0, change=Tensor.float),
    "kept weights below 0": setter(*LEARNER, "keep", 0, value=[-1, -1]),
    "kept weights of 2^62": setter(*LEARNER, "keep", 0, value=[2**62, 2**62]),
    "kept weights as text": setter(*LEARNER, "keep", 0, value="ab"),
    "a head of other names": changed(*LEARNER, "head", change=lambda head: {"x": head["weight"], "bias": head["bias"]}),
    "a head of another shape": changed(*LEARNER, "head", "weight", change=lambda t: t[1:]),
    "a head of NaN": changed(*LEARNER, "head", "weight", change=first(NAN)),
    "an unknown phase of the learner": setter(*LEARNER, "phase", value="distil"),
    "a penalty of NaN": setter(*LEARNER, "rho", value=NAN),
    "moments of the masked step of another shape": setter(*MASKED, value=torch.zeros(3)),
    "moments of NaN": changed(*MASKED, change=first(NAN)),
    "no stepper": setter(*LEARNER, "stepper", value={}),
    "a generator of another size": setter("generators", value=[torch.zeros(3, dtype=torch.uint8)]),
    "a generator of another dtype": setter("generators", value=[torch.zeros(5056)]),
    "a generator of nonsense": setter("generators", value=[torch.full((5056,), 255, dtype=torch.uint8)]),
    "no generators": setter("generators", value=[]),
    "the order of examples of nonsense": setter("epoch_start", value=torch.full((5056,), 255, dtype=torch.uint8)),
    "the order of examples of another size": setter("epoch_start", value=torch.zeros(3, dtype=torch.uint8)),
    "losses of two numbers": setter("losses", value=torch.zeros(2)),
    "losses of NaN": setter("losses", value=torch.tensor(NAN)),
    "losses that are no tensor": setter("losses", value=0.0),
    "examples as text": setter("seen", value="7"),
    "seconds as text": setter("seconds", value="7"),
    "rows as text": setter("rows", value="7"),
    "a report of other fields": setter("report", value={"x": 1}),
    "inputs as text": setter("inputs", value="12"),
    "a shape of inputs below 0": setter("inputs", value=[{"dtype": "float32", "shape": [-12]}]),
    "inputs of an unknown type": setter("inputs", value=[{"dtype": "object", "shape": [12]}]),
    "patience as text": setter("patience", value=["0.5", 1]),
    "patience for epochs below 0": setter("patience", value=[0.5, -1]),
    "it belongs to nothing": setter("belongs_to", value=None),
    "it belongs to a list": setter("belongs_to", value=[]),
    "it belongs to another task": setter("belongs_to", "name", value="a\nb" * 10**5),
    "a state that is a list": lambda state: state.clear(),
}


@pytest.mark.parametrize("kind", list(STATES))
def test_each_state_is_refused(net: Lifelong, whole: bytes, tmp_path: Path, kind: str) -> None:
    state = decode(whole)
    STATES[kind](state)
    assert attempt(net, encode(state), tmp_path), "was learnt to the end"


def test_moments_of_another_shape_do_not_crash(net: Lifelong, whole: bytes, tmp_path: Path) -> None:
    """torch's fused Adam writes beyond the end of such moments; after a while the process crashes."""
    state = decode(whole)
    assert get(state, PLAIN).shape == (3, 9)
    put(state, PLAIN, torch.zeros(26))  # one number short, which does no harm here
    assert attempt(net, encode(state), tmp_path), "was learnt to the end"


VALUES: dict[str, Any] = {
    "null": None,
    "a text": "a\nb",
    "-1": -1,
    "2^63": 2**63,
    "NaN": NAN,
    "an empty list": [],
    "an empty dict": {},
    "a tensor": torch.zeros(3),
}


def test_every_value_of_a_state(whole: bytes, tmp_path: Path) -> None:
    """In a process of its own, because torch's optimisers crash on moments of another shape."""
    (tmp_path / "whole").write_bytes(whole)
    code = "import sys; from tests.artifact.test_crafted_states import sweep; sweep(*sys.argv[1:])"
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "whole"), str(tmp_path / "directory")],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, f"{child.returncode} {child.stderr[-3000:]}"
    assert child.stdout == ""


def sweep(whole: str, directory: str) -> None:
    """Put each of the values at each place of a state, and print what is neither refused nor learnt to the end."""
    content, net = Path(whole).read_bytes(), made()
    Path(directory).mkdir()
    for place in places(decode(content)):
        for name, value in {**VALUES, "missing": None}.items():
            state = as_lists(decode(content))
            if name == "missing":
                drop(state, place)
            else:
                put(state, place, value)
            where = f"{'.'.join(map(str, place))}: {name}"
            print(where, file=sys.stderr, flush=True)  # the last place, should it crash
            try:
                attempt(net, encode(state), Path(directory))
            except Exception as error:
                text = str(error).partition("\n")[0]
                print(f"{where}: {type(error).__name__}: {text:.200}")


def as_lists(value: Any) -> Any:
    """With lists for tuples, which can then be changed."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def manifest(state: Any, **values: Any) -> str:
    return to_json({"format": FORMAT, "version": VERSION, "state": state, **values})


A, B = torch.arange(6.0), torch.arange(3)
TWO = {"000000": A, "000001": B}
GOOD = {"dict": [["a", {"tensor": 0}], ["b", {"tuple": [1, {"tensor": 1}]}]]}

CONTENTS: dict[str, bytes] = {
    "no bytes": b"",
    "another format": state_file(manifest(GOOD, format="x" * 10**6), TWO),
    "a format of lines": state_file(manifest(GOOD, format="a\nb"), TWO),
    "another version": state_file(manifest(GOOD, version=99), TWO),
    "a version as text": state_file(manifest(GOOD, version="2"), TWO),
    "a version true": state_file(manifest(GOOD, version=True), TWO),
    "a version that is a float": state_file(manifest(GOOD, version=2.0), TWO),
    "a version of a million digits": state_file(manifest(GOOD, version=Raw("1" * 10**6)), TWO),
    "a list": state_file("[]", TWO),
    "null": state_file("null", TWO),
    "no JSON": state_file("x" * 10**6, TWO),
    "many brackets": state_file("[" * 10**5, TWO),
    "a deep state": state_file(manifest(Raw("[" * 10**5 + "]" * 10**5)), TWO),
    "a state that is null": state_file(manifest(None), TWO),
    "a state that is a number": state_file(manifest(7), TWO),
    "a state that is a tensor": state_file(manifest({"tensor": 0}), TWO),
    "a tensor below 0": state_file(manifest({"dict": [["a", {"tensor": -1}]]}), TWO),
    "a tensor that there is not": state_file(manifest({"dict": [["a", {"tensor": 2}]]}), TWO),
    "a tensor of 10^400": state_file(manifest({"dict": [["a", {"tensor": 10**400}]]}), TWO),
    "a tensor true": state_file(manifest({"dict": [["a", {"tensor": True}]]}), TWO),
    "a tensor as text": state_file(manifest({"dict": [["a", {"tensor": "0"}]]}), TWO),
    "a tensor as a fraction": state_file(manifest({"dict": [["a", {"tensor": 0.0}]]}), TWO),
    "a tuple of text": state_file(manifest({"dict": [["a", {"tuple": "abc"}]]}), TWO),
    "a tuple of an object": state_file(manifest({"dict": [["a", {"tuple": {"tensor": 0}}]]}), TWO),
    "a dict of text": state_file(manifest({"dict": "ab"}), TWO),
    "a dict of pairs of text": state_file(manifest({"dict": ["ab", "cd"]}), TWO),
    "a dict of an object": state_file(manifest({"dict": {"ab": 1}}), TWO),
    "a dict of triples": state_file(manifest({"dict": [["a", 1, 2]]}), TWO),
    "a dict whose key is a list": state_file(manifest({"dict": [[["a"], 1]]}), TWO),
    "a dict with a key twice": state_file(manifest({"dict": [["a", {"tensor": 0}], ["a", {"tensor": 1}]]}), TWO),
    "an object of no kind": state_file(manifest({"dict": [["a", {}]]}), TWO),
    "an object of two kinds": state_file(manifest({"dict": [["a", {"tensor": 0, "tuple": []}]]}), TWO),
    "an object of an unknown kind": state_file(manifest({"dict": [["a", {"pickle\n": "x" * 10**6}]]}), TWO),
    "a number of 10^5000": state_file(manifest({"dict": [["a", Raw("1" * 5000)]]}), TWO),
    "a tensor that nothing names": state_file(manifest({"dict": [["a", {"tensor": 0}]]}), TWO),
    "tensors of other names": state_file(manifest(GOOD), {"a": A, "b": B}),
    "tensors with a gap between their numbers": state_file(manifest(GOOD), {"000000": A, "000002": B}),
    "another checksum": state_file(manifest(GOOD), TWO, digest="0" * 64),
    "a checksum of lines": state_file(manifest(GOOD), TWO, digest="a\nb" * 10**5),
    "no checksum": safetensors(TWO, {"manifest": manifest(GOOD)}),
    "no manifest": safetensors(TWO, {"sha256": "0" * 64}),
    "no metadata": safetensors(TWO, {}, lambda header: header.pop("__metadata__")),
    "a header longer than the file": with_header(b"{}", b"", length=2**62),
    "a header of length 2^64 - 1": with_header(b"{}", b"", length=2**64 - 1),
    "a header of length 0": with_header(b"", b""),
    "a header that is a list": with_header(b"[]", b""),
    "a header that is no UTF-8": with_header(b'{"\xff":{}}', b""),
    "bytes after the tensors": state_file(manifest(GOOD), TWO) + b"x",
    "a model": (Path(__file__).parents[1] / "data" / "model-v2.lps").read_bytes(),
}


def test_a_good_state_can_be_crafted() -> None:
    """So that what is wrong below is refused for no other reason."""
    state = decode(state_file(manifest(GOOD), TWO))
    assert list(state) == ["a", "b"]
    assert torch.equal(state["a"], A)
    assert torch.equal(state["b"][1], B)


@pytest.mark.parametrize("kind", list(CONTENTS))
def test_each_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state-1.safetensors"
    path.write_bytes(CONTENTS[kind])
    with pytest.raises(FileFormatError) as refusal:
        Checkpoint(tmp_path).load()
    message = str(refusal.value)
    assert str(path) in message
    assert len(message) < 500, f"{len(message)} characters: {message:.300}"
    assert message.isprintable()
    assert path.read_bytes() == CONTENTS[kind]


RUN = ["--tasks", "1", "--epochs", "0,1,0", "--batch-size", "512", "--output", "run"]
BELONGS: dict[str, Any] = {
    "no fields": {},
    "belongs to null": {"belongs_to": None},
    "belongs to a list": {"belongs_to": [1]},
    "no number": {"belongs_to": {}},
    "a number as text": {"belongs_to": {"number": "2"}},
    "a number of null": {"belongs_to": {"number": None}},
    "a number of NaN": {"belongs_to": {"number": NAN}},
    "a number of 10^400": {"belongs_to": {"number": 10**400}},
    "a list": [1],
    "a number alone": 2,
}


@pytest.fixture(scope="module")
def run_of_one_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    trained = run(place, "lps.train", *RUN)
    assert trained.returncode == 0, trained.stderr
    return place


@pytest.mark.parametrize("kind", list(BELONGS))
def test_train_resumes_from_no_crafted_state(
    run_of_one_task: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    shutil.copytree(run_of_one_task / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    path = Path("run") / STATE / "state-1.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(BELONGS[kind]))
    code = train.main(["--resume", "--output", "run", "--tasks", "2"])
    shown = capsys.readouterr()
    assert code in (1, 2)
    assert shown.err.startswith("lps.train: ")
    assert shown.err.endswith("\n")
    assert shown.err[:-1].isprintable()
    assert path.exists()
