"""What is saved comes back: the same answers to the bit, in this process and in another, and learning goes on."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import Lifelong, Listener, Task
from lps.artifact.read import load
from lps.errors import ConfigError, DivergedError, FileFormatError, LPSError
from lps.models import mlp
from lps.task import Learnt
from torch import Tensor, nn

from lps_kernels import __version__, pack_bits
from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_mlp, toy_task

CONFIG = replace(QUICK, epochs=(1, 1, 1))


class Tied(nn.Module):
    """One weight used twice, a buffer that is a view of another, integers and a number without a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 12).to(torch.bfloat16))
        self.register_buffer("part", self.get_buffer("scale")[:6])
        self.register_buffer("count", torch.tensor(7), persistent=False)
        self.register_buffer("flags", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.second(torch.relu(self.first(x))) * self.get_buffer("scale")
        return features


# Backbone, features, settings, shape of an input.
NETS: dict[str, tuple[Callable[[], nn.Module], int, dict[str, str], tuple[int, ...]]] = {
    "mlp with batch norm": (toy_mlp, 16, {}, (12,)),
    "convolutions": (toy_convnet, 16, {"pattern": "column", "sharing": "structured"}, (3, 8, 8)),
    "tied weights": (Tied, 12, {"pattern": "filter"}, (12,)),
    "float64": (lambda: mlp(12, (24, 16), dropout=0.1).double(), 16, {}, (12,)),
    "known architecture": (lambda: mlp(12, (24, 16), dropout=0.1), 16, {}, (12,)),
    "norms per task": (toy_mlp, 16, {"norms": "per-task"}, (12,)),
    "known architecture, biases per task": (lambda: mlp(12, (24, 16), dropout=0.1), 16, {"norms": "per-task"}, (12,)),
}


def trained(kind: str, tasks: int = 3) -> tuple[Lifelong, list[Task]]:
    make, features, settings, shape = NETS[kind]
    torch.manual_seed(0)
    modes: dict[str, Any] = {"norms": "frozen", **settings}
    net = Lifelong(make(), features, **modes)
    dtype = next(net.parameters()).dtype
    stream = [toy_task(seed, shape, classes=3 + seed, dtype=dtype) for seed in range(tasks + 1)]
    stream[1] = replace(stream[1], class_names=("a", "b", "ü", "/"))
    for task in stream[:tasks]:
        net.learn(task, CONFIG)
    net.metadata.user = {"seed": 0, "note": 'ü "quoted"', "shares": [0.2, None, True]}
    return net, stream


@pytest.fixture(params=list(NETS))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Lifelong, list[Task], Path]:
    net, stream = trained(request.param)
    path = tmp_path / "model.lps"
    net.save(path)
    return request.param, net, stream, path


def loaded(kind: str, path: Path) -> Lifelong:
    torch.manual_seed(99)  # the backbone that is given starts from other weights
    return load(path) if "known" in kind or kind == "float64" else load(path, NETS[kind][0]())


def test_comes_back_bit_for_bit_and_goes_on(saved: tuple[str, Lifelong, list[Task], Path], tmp_path: Path) -> None:
    kind, net, stream, path = saved
    twin = loaded(kind, path)
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    for name in ("learnt", "metadata", "features", "pattern", "sharing", "exclude", "norms"):
        assert getattr(twin, name) == getattr(net, name), name
    assert net.state_dict().keys() == twin.state_dict().keys()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name]), name
    for (ours, _), (theirs, _) in zip(net.prunable(), twin.prunable(), strict=True):
        assert (ours.spent, ours.init_std, ours.tasks) == (theirs.spent, theirs.init_std, theirs.tasks)
    net.eval()
    inputs = inputs_of(stream[2])
    assert torch.equal(net(inputs, task=3), twin(inputs))  # without a number, the task learnt last
    assert all(map(torch.equal, answers(net, stream[:3]), answers(twin, stream[:3])))

    training = []
    for network in (net, twin):
        network.train()
        torch.manual_seed(5)  # of dropout
        training.append(network(inputs, task=2))
    assert torch.equal(*training)
    assert [m.training for m in net.modules()] == [m.training for m in twin.modules()]

    again = tmp_path / "again.lps"
    twin.save(again)
    assert again.read_bytes() == path.read_bytes()

    for network in (net, twin):
        network.learn(stream[3], CONFIG)
    assert net.learnt == twin.learnt
    assert all(map(torch.equal, answers(net, stream), answers(twin, stream)))


def test_channels_last_backbone_answers_the_same(tmp_path: Path) -> None:
    net, stream = trained("convolutions", tasks=2)
    net.save(tmp_path / "model.lps")
    backbone = toy_convnet()
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin = load(tmp_path / "model.lps", backbone)
    assert all(map(torch.equal, answers(net, stream[:2]), answers(twin, stream[:2])))


def test_one_task_and_layers_that_own_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Lifelong(toy_mlp(), 16, exclude=["0.weight"])
    net.backbone.architecture = "mine"  # type: ignore[assignment]  # a user's own attribute, which is left alone
    stream = [toy_task(0), toy_task(1)]
    net.learn(stream[0], replace(CONFIG, alpha=0.3))
    net.save(str(tmp_path / "one.lps"))
    assert torch.equal(answers(load(tmp_path / "one.lps", toy_mlp()), stream[:1])[0], answers(net, stream[:1])[0])
    net.learn(stream[1], replace(CONFIG, alpha=0.0))
    net.save(tmp_path / "two.lps")
    twin = load(tmp_path / "two.lps", toy_mlp())
    assert twin.exclude == ("0.weight",)
    assert all(map(torch.equal, answers(net, stream), answers(twin, stream)))


SECOND_PROCESS = """
import hashlib, sys, torch
from lps.artifact.read import load
net = load(sys.argv[1])
x = torch.linspace(-2, 2, 60).reshape(5, 12)
for task in (1, 2, 3):
    print(hashlib.sha256(net(x, task=task).numpy().tobytes()).hexdigest())
"""


def test_second_process_gives_the_same_bits(tmp_path: Path) -> None:
    net, _ = trained("known architecture")
    net.save(tmp_path / "model.lps")
    net.eval()
    x = torch.linspace(-2, 2, 60).reshape(5, 12)
    expected = [hashlib.sha256(net(x, task=task).numpy().tobytes()).hexdigest() for task in (1, 2, 3)]
    command = [sys.executable, "-c", SECOND_PROCESS, str(tmp_path / "model.lps")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.stdout.split() == expected, result.stderr


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def test_exact_size(tmp_path: Path) -> None:
    """Values of owned weights, three tasks in two bits per weight, masks over what was owned, heads, common tensors."""
    net, _ = trained("mlp with batch norm")
    net.save(tmp_path / "model.lps")
    _, data = header_of(tmp_path / "model.lps")
    expected = 32  # the manifest's sha256
    for size in (12 * 24, 24 * 16):
        owned = [int(size * share + 0.5) for share in (0.2, 0.4, 0.6)]
        expected += 4 * owned[2] + 2 * (size // 8) + sum((count + 7) // 8 for count in owned[:2])
    expected += 4 * sum(classes * 16 + classes for classes in (3, 4, 5))
    expected += 4 * (24 + 16 + 4 * 24) + 8  # biases, batch norm and its counter of batches
    assert len(data) == expected


@pytest.mark.parametrize("kind", ["mlp with batch norm", "norms per task"])
def test_a_reader_written_from_the_document_alone(tmp_path: Path, kind: str) -> None:
    net, _ = trained(kind)
    with torch.no_grad():
        next(net.prunable())[0].w_bar[0, 0] = -0.0
    net.learnt = [replace(task, digest=net.digest(number)) for number, task in enumerate(net.learnt, 1)]
    net.save(tmp_path / "model.lps")
    assert read_by_the_document(tmp_path / "model.lps") == {"raw"}


def read_by_the_document(path: Path) -> set[str]:
    """docs/format.md in numpy: weights composed, checksum and digests recomputed; returns the codes that were met."""
    header, data = header_of(path)
    text = header.pop("__metadata__")["manifest"]
    manifest = json.loads(text)
    assert (manifest["version"], manifest["written_by"]) == (2, __version__)
    names = {"F16": "float16", "F32": "float32", "I64": "int64", "U8": "uint8"}
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    codes = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = names[entry["dtype"]], entry["shape"]
        tensors[name] = np.frombuffer(data[begin:end], dtype).reshape(shape)
        sha256 = hashlib.sha256(data[begin:end]).hexdigest()
        if name != "checksum":
            codes[name] = manifest["tensors"][name]["code"]
            assert manifest["tensors"][name] == {"dtype": dtype, "shape": shape, "code": codes[name], "sha256": sha256}
            if codes[name] == "float32":
                tensors[name] = tensors[name].astype(np.float32)
            elif codes[name] == "deflate":
                tensors[name] = np.frombuffer(zlib.decompress(tensors[name].tobytes()), np.uint8)
    assert tensors.keys() == {*manifest["tensors"], "checksum"}
    assert hashlib.sha256(text.encode()).digest() == tensors["checksum"].tobytes()

    def bits(packed: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        return np.unpackbits(packed, count=count, bitorder="little")

    def owners(name: str, size: int) -> np.ndarray[Any, Any]:
        stored, width, found = tensors[name], len(manifest["tasks"]).bit_length(), np.zeros(size, np.uint8)
        if codes[name] == "deflate":
            shifts = width * np.arange(8 // width, dtype=np.uint8)
            found[:] = ((stored[:, None] >> shifts) & (2**width - 1)).reshape(-1)[:size]
        else:
            for j, plane in enumerate(stored):
                found += bits(plane, size) << j
        return found

    (part,) = manifest["parts"]
    for number, task in enumerate(manifest["tasks"], 1):
        digest = hashlib.sha256()
        for layer in part["layers"]:
            name, shape = layer["name"], layer["shape"]
            size = int(np.prod(shape))
            owner = owners(f"net/all/owner/{name}", size)
            values = np.zeros(size, layer["dtype"])
            for t in range(1, number + 1):
                values[owner == t] = tensors[f"net/{t}/values/{name}"]
            used = owner == number
            earlier = (owner > 0) & (owner < number)
            if number > 1:
                used[earlier] = bits(tensors[f"net/{number}/mask/{name}"], earlier.sum())
            weight = np.where(used, values, 0) + np.zeros((), layer["dtype"])
            digest.update(f"{name} torch.{layer['dtype']} {shape}\n".encode() + weight.tobytes())
        for common in part["common"]:
            digest.update(f"{common['name']} torch.{common['dtype']} {common['shape']}\n".encode())
            scope = f"{number}/private" if common["name"] in part["private"] else "all/common"
            digest.update(tensors[f"net/{scope}/{common['name']}"].tobytes())
        for entry in task["head"]["tensors"]:
            head = tensors[f"net/{number}/head/{entry['name']}"]
            digest.update(f"head.{entry['name']} torch.{head.dtype} {list(head.shape)}\n".encode() + head.tobytes())
        assert digest.hexdigest() == task["digest"]
    return set(codes.values())


def test_nothing_to_save_and_saving_while_learning(tmp_path: Path) -> None:
    path, net = tmp_path / "model.lps", Lifelong(toy_mlp(), 16)

    class Saves(Listener):
        def step(self, phase: str, examples: int) -> None:
            net.save(path)

    with pytest.raises(ConfigError, match="nothing to save"):
        net.save(path)
    net.learn(toy_task(0), CONFIG)
    with pytest.raises(ConfigError, match="a task is being learnt"):
        net.learn(toy_task(1), CONFIG, listener=Saves())
    assert list(tmp_path.iterdir()) == []


def test_refuses_what_could_not_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    net, _ = trained("mlp with batch norm", tasks=2)
    for user in ({"x": object()}, {"x": float("nan")}, {"x": np.float32(1)}):
        net.metadata.user = user
        with pytest.raises(ConfigError, match="metadata: expected values that JSON can hold"):
            net.save(path)
    net.metadata.user = {"text": "x" * 10**8}
    with pytest.raises(
        ConfigError, match=r"^save: manifest.metadata: expected at most 1,048,576 bytes of JSON, got 100,000,\d{3}$"
    ):
        net.save(tmp_path / "model.lps")
    net.metadata.user = {}
    net.backbone.train()
    net.backbone(torch.randn(8, 12))  # moves the running statistics behind the network's back
    with pytest.raises(ConfigError, match=r"task 1 \(clouds-0\) is not as it was learnt"):
        net.save(path)

    backbone = toy_mlp()
    backbone.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    other = Lifelong(backbone, 16)
    other.learn(toy_task(0), CONFIG)
    with pytest.raises(ConfigError, match=r"phase: expected one of float64, .*, got complex128"):
        other.save(path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def net() -> Lifelong:
    return trained("known architecture", tasks=2)[0]


def test_paths_that_cannot_be_written(net: Lifelong, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "directory").mkdir()
    for path, reason in (
        (tmp_path / "none" / "model.lps", "No such file or directory; make the directory first"),
        (tmp_path / "file" / "model.lps", "Not a directory; choose a path whose parents are directories"),
        (tmp_path / "directory", "Is a directory; choose the path of a file"),
        (tmp_path / ("x" * 300), "File name too long; choose another path"),
    ):
        with pytest.raises(LPSError) as refusal:
            net.save(path)
        assert str(refusal.value) == f"{path}: could not be written: {reason}"
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["directory", "file"]


def test_links_and_rights_are_those_of_a_plain_file(net: Lifelong, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    link, target, plain = tmp_path / "latest.lps", tmp_path / "store" / "model.lps", tmp_path / "plain"
    link.symlink_to(target)
    net.save(link)
    plain.touch()
    assert link.is_symlink()
    assert load(link).learnt == net.learnt
    assert target.stat().st_mode == plain.stat().st_mode


class Scaled(nn.Module):
    """A head with buffers, a statistic among them, and a tensor without a shape."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.out = nn.Linear(features, classes, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(x)) * self.scale
        return logits


def with_heads(path: Path) -> tuple[Lifelong, list[Task]]:
    """A network whose tasks have a Linear layer, one without a bias, and heads of two other kinds."""
    torch.manual_seed(0)
    net = Lifelong(mlp(12, (24, 16), dropout=0.0), 16)
    makers = [None, lambda f, c: nn.Linear(f, c, bias=False), Scaled, lambda f, c: nn.Sequential(nn.Linear(f, c))]
    stream = [replace(toy_task(seed), head=make) for seed, make in enumerate(makers)]
    for task in stream:
        net.learn(task, CONFIG)
    net.save(path)
    return net, stream


def test_heads_of_other_kinds_come_back(tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    net, stream = with_heads(path)
    assert stream[3].head is not None
    twin = load(path, heads={3: Scaled, 4: stream[3].head})
    assert [type(head) for head in twin.heads] == [nn.Linear, nn.Linear, Scaled, nn.Sequential]
    assert all(map(torch.equal, answers(net, stream), answers(twin, stream)))
    twin.save(tmp_path / "again.lps")
    assert (tmp_path / "again.lps").read_bytes() == path.read_bytes()


def test_heads_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    with_heads(path)
    asked: list[tuple[int, int]] = []

    def other(features: int, classes: int) -> nn.Module:
        asked.append((features, classes))
        return nn.Sequential(nn.Linear(features, classes))

    start = r"task 3 \(clouds-2\): head: "
    for heads, message in (
        (None, start + "it is not a Linear layer, .*; pass a factory for it as heads="),
        ({4: other}, start + "it is not a Linear layer, .*; pass a factory for it as heads="),
        (other, start + r"expected tensor scale to be float32 \[\], got none"),
        ({3: lambda *_: 7}, start + "expected the factory to make an nn.Module, got int"),
        ({3: Scaled, 4: Scaled}, r"task 4 \(clouds-3\): head: expected tensor 0.weight to be .*, got none"),
    ):
        backbone = mlp(12, (24, 16), dropout=0.0)
        before = copy.deepcopy(backbone.state_dict())
        with pytest.raises(FileFormatError, match=message):
            load(path, backbone, heads)  # type: ignore[arg-type]
        assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    assert asked == [(16, 3)]  # for the first task that needs it, and for no Linear layer


def test_norms_of_a_backbone_that_does_not_fit(tmp_path: Path) -> None:
    net, _ = trained("norms per task", tasks=1)
    net.save(tmp_path / "model.lps")
    backbone = toy_mlp()
    backbone[1] = Norm(24)
    with pytest.raises(FileFormatError, match=r"private tensors: expected 0.bias, 1.weight, .*, in this order, got 0"):
        load(tmp_path / "model.lps", backbone)


class Norm(nn.Module):
    """Has the tensors of a batch norm and is none: its weights would not be private."""

    def __init__(self, size: int) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(size)
        for name, parameter in norm.named_parameters():
            self.register_parameter(name, parameter)
        for name, buffer in norm.named_buffers():
            self.register_buffer(name, buffer)


def test_ten_tasks_of_the_mlp_take_at_most_30_mb(tmp_path: Path) -> None:
    """Weights owned at random, without learning: ten tasks of 10 %, which reuse half of what was there."""
    torch.manual_seed(0)
    net = Lifelong(mlp(), 2000)
    for number in range(1, 11):
        for partition, weight in net.prunable():
            chosen = (torch.rand(partition.shape) < 1 / (11 - number)) & partition.free()
            partition.owner[chosen] = number
            partition.w_bar[chosen] = weight.detach()[chosen]
            mask = (torch.rand(partition.shape) < 0.5) & (partition.owner > 0) & (partition.owner < number)
            partition.add_task(pack_bits(mask))
        net.heads.append(nn.Linear(2000, 10))
        net.add_private({})
        net.learnt.append(Learnt(f"task {number}", 10, net.digest(number)))
    path = tmp_path / "model.lps"
    net.save(path)
    assert path.stat().st_size < 30e6
    assert load(path).learnt == net.learnt


def test_infinities_in_buffers_come_back_and_nan_is_refused(tmp_path: Path) -> None:
    """Attention masks hold -inf; a NaN in a buffer is a task that diverged."""
    backbone = toy_mlp()
    backbone.register_buffer("hidden", torch.tensor([0.0, -torch.inf]))
    net = Lifelong(backbone, 16)
    net.learn(toy_task(0), CONFIG)
    net.save(tmp_path / "model.lps")
    fresh = toy_mlp()
    fresh.register_buffer("hidden", torch.zeros(2))
    assert torch.equal(load(tmp_path / "model.lps", fresh).backbone.get_buffer("hidden"), torch.tensor([0, -torch.inf]))
    backbone.get_buffer("hidden")[0] = torch.nan
    with pytest.raises(DivergedError, match="a weight became infinite or NaN"):
        net.learn(toy_task(1), CONFIG)


@pytest.mark.parametrize("pattern", ["filter", "column"])
def test_shares_that_round_down_may_sum_to_more_than_1(tmp_path: Path, pattern: str) -> None:
    net = Lifelong(toy_mlp(), 16, pattern=pattern)
    for seed in range(3):
        net.learn(toy_task(seed), replace(CONFIG, alpha=0.334))
    net.save(tmp_path / "model.lps")
    assert [partition.spent for partition, _ in load(tmp_path / "model.lps", toy_mlp()).prunable()] == [1.002, 1.002]


def test_what_load_would_refuse_is_not_saved(net: Lifelong, tmp_path: Path) -> None:
    """By the reader's own measure: text in which every letter is escaped, texts that no file can hold."""
    path = tmp_path / "model.lps"
    for user in ({"note": "\u0434" * 300_000}, {"note": "\ud800"}):
        net.metadata.user = user
        with pytest.raises(ConfigError, match=r"^(save: manifest|save: the manifest|metadata)"):
            net.save(path)
    net.metadata.user = {"note": "\u0434" * 100_000}
    net.save(path)
    assert load(path).metadata.user == net.metadata.user
    net.metadata.user = {}
    name, net.learnt[0] = net.learnt[0], replace(net.learnt[0], name="\udcff")
    with pytest.raises(ConfigError, match=r"^save: "):
        net.save(path)
    net.learnt[0] = name


class Fixed(nn.Module):
    """A head without tensors in the file: more classes than features."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("map", torch.ones(classes, features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.get_buffer("map").T


def test_a_head_without_stored_tensors_comes_back(tmp_path: Path) -> None:
    net = Lifelong(toy_mlp(), 16)
    net.learn(replace(toy_task(0), classes=20, head=Fixed), CONFIG)
    net.save(tmp_path / "model.lps")
    back = load(tmp_path / "model.lps", toy_mlp(), heads=Fixed)
    assert torch.equal(back(torch.ones(2, 12), task=1), net.eval()(torch.ones(2, 12), task=1))
