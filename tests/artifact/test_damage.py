"""Damaged and faulty files are refused in one sentence that names them; a failed save leaves the old file."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong
from lps.artifact.read import load
from lps.artifact.write import CHECKSUM, checksum
from lps.errors import FileFormatError, LPSError
from lps.models import mlp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.artifact.test_write import header_of
from tests.toy import QUICK, toy_task

Manifest = dict[str, Any]
Tensors = dict[str, Tensor]
Edit = Callable[[Manifest, Tensors], object]


def small_mlp() -> nn.Module:
    """Layers of 84 and 63 weights: neither fills its last byte of bits."""
    return mlp(inputs=12, hidden=(7, 9), dropout=0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a network with three tasks."""
    torch.manual_seed(0)
    net = Lifelong(small_mlp(), features=9)
    for seed in range(3):
        net.learn(toy_task(seed), replace(QUICK, epochs=(0, 1, 0)))
    path = tmp_path_factory.mktemp("whole") / "model.lps"
    net.save(path)
    return path


def refusal(path: Path, backbone: nn.Module | None = None) -> str:
    """What the refusal says, without the part that all of them have."""
    with pytest.raises(FileFormatError) as error:
        load(path, backbone)
    message = str(error.value)
    start = f"load: {path}: "
    assert message.startswith(start)
    assert "\n" not in message
    return message.removeprefix(start)


def test_every_flipped_bit_is_noticed(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    header, data = header_of(whole)
    begin = len(content) - len(data)
    draw = random.Random(0)
    positions = [draw.randrange(8 * len(content)) for _ in range(400)]
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] < entry["data_offsets"][1]:
            # The first, a middle and the last bit of every tensor: the last is often an unused one.
            first, last = (8 * (begin + offset) for offset in entry["data_offsets"])
            positions += [first, draw.randrange(first, last), last - 1]
    positions += range(0, 8 * 40, 3)  # the length of the header and its beginning
    positions += range(8 * begin - 64, 8 * begin)  # the end of the header, with its padding
    path = tmp_path / "model.lps"
    for position in positions:
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        refusal(path)


def test_every_truncation_is_noticed(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    path = tmp_path / "model.lps"
    lengths = {0, 1, 7, 8, 9, 100, len(content) - 1, *range(0, len(content), 53)}
    for length in lengths:
        path.write_bytes(content[:length])
        assert refusal(path).startswith("not a whole model file")
    path.write_bytes(content + b"\0")
    assert refusal(path).startswith("not a whole model file")


def test_files_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert refusal(path).startswith("not a whole model file")
    torch.save({"a": torch.zeros(3)}, path)
    assert refusal(path).startswith("not a whole model file")
    save_file({"a": torch.zeros(3)}, path)
    assert refusal(path) == "not a model.lps, because it has no manifest"
    save_file({"a": torch.zeros(4).to(torch.float8_e5m2)}, path, metadata={"manifest": "{}"})
    assert refusal(path) == "not a model.lps, because its manifest does not say format learn-prune-share"
    header = b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    refusal(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "none.lps", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "file" / "model.lps", "Not a directory"),
    ):
        with pytest.raises(LPSError) as error:
            load(path)
        assert str(error.value) == f"load: {path}: could not be read: {reason}; check the path"


def rewritten(whole: Path, path: Path, edit: Edit, *, manifest_text: str | None = None) -> Path:
    """A file with some change in it and the checksum that goes with it: what only a faulty writer makes."""
    with safe_open(whole, framework="pt") as file:
        manifest = json.loads(file.metadata()["manifest"])
    tensors = load_file(whole)
    del tensors[CHECKSUM]
    edit(manifest, tensors)
    text = json.dumps(manifest) if manifest_text is None else manifest_text
    tensors.setdefault(CHECKSUM, torch.tensor(list(checksum(text, tensors)), dtype=torch.uint8))
    save_file(tensors, path, metadata={"manifest": text})
    return path


def setter(*keys: Any, value: object) -> Edit:
    """Change one value of the manifest."""

    def edit(manifest: Manifest, _: Tensors) -> None:
        inner: Any = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return edit


def tensor_setter(name: str, change: Callable[[Tensor], Tensor]) -> Edit:
    """Change one tensor."""

    def edit(_: Manifest, tensors: Tensors) -> None:
        tensors[name] = change(tensors[name])

    return edit


def flipped(index: tuple[int, ...], bit: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor[index] ^= 1 << bit
        return tensor

    return change


MANIFESTS: list[tuple[Edit, str]] = [
    (setter("format", value="other"), "not a model.lps, because its manifest does not say format learn-prune-share"),
    (setter("version", value=2), "format version 2 was written by a newer version; update the package, which reads 1"),
    (setter("version", value="1"), "manifest.version: expected 1, got '1'"),
    (setter("features", value="9"), "manifest.features: expected a whole number of at least 0, got '9'"),
    (setter("features", value=True), "manifest.features: expected a whole number of at least 0, got True"),
    (setter("features", value=8), "expected tensor head/1/weight to be float32 [3, 8], got float32 [3, 9]"),
    (setter("exclude", value="a"), "manifest.exclude: expected a list, got 'a'"),
    (setter("exclude", value=[1]), "manifest.exclude[0]: expected a text, got 1"),
    (setter("metadata", value=[]), "manifest.metadata: expected an object, got []"),
    (setter("surplus", value=1), "manifest: expected an object with format, version"),
    (setter("architecture", value={"name": "mlp"}), "manifest.architecture: expected an object with name, arguments"),
    (setter("architecture", "name", value="gone"), "its network cannot be made: unknown network 'gone'"),
    (setter("architecture", "arguments", value={"x": 1}), "its network cannot be made: network 'mlp' takes"),
    (setter("architecture", "arguments", "hidden", value=[10**18]), "its network cannot be made: "),
    (setter("architecture", value=None), "its network is not one that lps.models can make; make it yourself and pass"),
    (setter("layers", value=[]), "manifest.layers: expected at least one, got none"),
    (setter("layers", 0, "shape", value=[7, -12]), "manifest.layers[0].shape[1]: expected a whole number of at least"),
    (setter("layers", 0, "shape", value=[70, 12]), "expected tensor owner/1.weight to be uint8 [2, 105], got uint8 [2"),
    (setter("layers", 0, "shape", value=[12, 7]), "the backbone does not fit the file: expected layer 1.weight to be "),
    (setter("layers", 0, "dtype", value="float64"), "expected tensor values/1.weight to be float64 [50], got float32"),
    (setter("layers", 0, "spent", value=-0.1), "manifest.layers[0].spent: expected a number of at least 0, got -0.1"),
    (setter("layers", 1, "name", value="1.weight"), "expected tensor owner/1.weight to be uint8 [2, 8], got uint8 [2,"),
    (setter("common", 0, "shape", value=[8]), "expected tensor common/1.bias to be float32 [8], got float32 [7]"),
    (setter("common", 0, "name", value="x"), "expected tensor common/x to be float32 [7], got none"),
    (setter("tasks", value=[]), "manifest.tasks: expected 1 to 127, got 0"),
    (setter("tasks", 2, "classes", value=4), "expected tensor head/3/weight to be float32 [4, 9], got float32 [3, 9]"),
    (setter("tasks", 1, "digest", value="0" * 64), "task 2 (clouds-1) does not have the digest that was taken"),
    (setter("pattern", value="diagonal"), "the backbone does not fit the file: Lifelong: pattern: expected one of"),
    (setter("exclude", value=["9.*"]), "the backbone does not fit the file: Lifelong: exclude: expected patterns of"),
    (lambda m, _: m.pop("sharing"), "manifest: expected an object with format, version"),
    (lambda m, _: m["tasks"].pop(), "tensor owner/1.weight: expected owners up to task 2, got 3"),
    (lambda m, _: m["layers"].append(m["layers"][0]), "the backbone does not fit the file: expected each layer once"),
    (lambda m, _: m["layers"].reverse(), "the backbone does not fit the file: expected each layer once, in the order"),
]

TENSORS: list[tuple[Edit, str]] = [
    (lambda _, t: t.pop("mask/2/1.weight"), "expected tensor mask/2/1.weight to be uint8 [3], got none"),
    (lambda _, t: t.update(surplus=torch.zeros(1)), "expected no tensor surplus, got float32 [1]"),
    (lambda _, t: t.update(checksum=torch.zeros(31)), "expected tensor checksum to be uint8 [32], got float32 [31]"),
    (tensor_setter("values/1.weight", lambda x: x[1:].clone()), "expected tensor values/1.weight to be float32 [50], "),
    (tensor_setter("values/1.weight", lambda x: x.double()), "expected tensor values/1.weight to be float32 [50], got"),
    (tensor_setter("values/1.weight", lambda x: x + 1), "task 1 (clouds-0) does not have the digest"),
    (tensor_setter("mask/3/1.weight", lambda x: ~x[:-1]), "expected tensor mask/3/1.weight to be uint8 [5], got uint8"),
    (tensor_setter("head/2/bias", lambda x: x + 1), "task 2 (clouds-1) does not have the digest"),
    (tensor_setter("owner/1.weight", lambda x: x[:1].clone()), "expected tensor owner/1.weight to be uint8 [2, 11], "),
    # 84 = 8 * 10 + 4 weights: bit 7 of the last byte stands for none; 17 weights are task 1's.
    (
        tensor_setter("owner/1.weight", flipped((0, 10), 7)),
        "tensor owner/1.weight: expected 0 in the unused bits after",
    ),
    (
        tensor_setter("mask/2/1.weight", flipped((2,), 7)),
        "tensor mask/2/1.weight: expected 0 in the unused bits after ",
    ),
]


@pytest.mark.parametrize(("edit", "message"), [*MANIFESTS, *TENSORS], ids=[m[:50] for _, m in [*MANIFESTS, *TENSORS]])
def test_faulty_writers_are_refused(whole: Path, tmp_path: Path, edit: Edit, message: str) -> None:
    assert refusal(rewritten(whole, tmp_path / "model.lps", edit)).startswith(message)


@pytest.mark.parametrize("text", ["{", "[1]", "NaN", '{"version": NaN}', "[" * 100_000, '"\\ud800"', "1" * 5000])
def test_manifests_that_are_not_ours(whole: Path, tmp_path: Path, text: str) -> None:
    path = rewritten(whole, tmp_path / "model.lps", lambda _, __: None, manifest_text=text)
    assert "manifest" in refusal(path)


def test_backbones_that_do_not_fit(whole: Path) -> None:
    def backbone(*layers: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *layers)

    first, second, relu = nn.Linear(12, 7), nn.Linear(7, 9), nn.ReLU()
    start = "the backbone does not fit the file: "
    for given, message in (
        (nn.ReLU(), "Lifelong: backbone: expected a Linear, Conv or attention layer to prune, got none"),
        (backbone(first), "expected layer 4.weight to be float32 [9, 7], got none"),
        (backbone(nn.Linear(13, 7), relu, relu, second), "expected layer 1.weight to be float32 [7, 12], got float32 "),
        (small_mlp().double(), "expected layer 1.weight to be float32 [7, 12], got float64 "),
        (backbone(first, relu, relu, second, nn.Linear(9, 9)), "expected no layer 5.weight, got float32 [9, 9]"),
        (backbone(nn.Linear(12, 7), relu, relu, nn.Linear(7, 9, bias=False)), "expected common tensor 4.bias to be "),
        (backbone(nn.Linear(12, 7), nn.BatchNorm1d(7), relu, second), "expected no common tensor 2.weight, got float"),
    ):
        before = [tensor.clone() for tensor in given.state_dict().values()]
        assert refusal(whole, given).startswith(start + message)
        assert all(map(torch.equal, before, given.state_dict().values()))


def test_limit_on_file_sizes_leaves_the_old_file(whole: Path, tmp_path: Path) -> None:
    path, net = tmp_path / "model.lps", load(whole)
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(LPSError, match="could not be written: File too large; raise the limit"):
            net.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk(whole: Path, tmp_path: Path) -> None:
    """A real disk of one page, mounted by a process in a namespace of its own and reached through that process."""
    mount = f"mount -t tmpfs -o size=4k tmpfs {tmp_path} && echo ready && read line"
    command = [shutil.which("unshare") or "false", "--map-root-user", "--mount", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"ready\n":
            pytest.skip("this system does not let us mount a small disk")
        disk = Path(f"/proc/{keeper.pid}/root{tmp_path}")
        path = disk / "model.lps"
        path.write_text("old")
        with pytest.raises(LPSError) as error:
            load(whole).save(path)
        assert str(error.value) == (
            f"{path}: could not be written: No space left on device; free some space or choose another disk"
        )
        assert path.read_text() == "old"
        assert list(disk.iterdir()) == [path]


def test_interrupt_leaves_the_old_file(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    path, net = tmp_path / "model.lps", load(whole)
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        net.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
