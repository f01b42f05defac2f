"""Damaged and faulty files are refused in one sentence that names them; a failed save leaves the old file."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong
from lps.artifact.layout import CHECKSUM, sha256
from lps.artifact.read import load
from lps.artifact.write import checksum
from lps.errors import FileFormatError, LPSError
from lps.models import mlp
from lps.observed import dtype_name
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
    assert refusal(path).startswith(
        "not a whole model file (tensor a: expected one of BOOL, U8, I8, I16, I32, I64, F16,"
    )
    save_file({"a": torch.zeros(4)}, path, metadata={"manifest": "{}"})
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


def test_pipes_devices_and_names_with_nul(tmp_path: Path) -> None:
    """Without waiting for somebody to write into the pipe, and without reading a device that never ends."""
    os.mkfifo(tmp_path / "pipe")
    socket.socket(socket.AF_UNIX).bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to("/dev/zero")
    for path, reason in (
        (str(tmp_path / "pipe"), "expected a file, got a pipe"),
        (str(tmp_path / "socket"), "expected a file, got a socket"),
        (str(tmp_path / "link"), "expected a file, got a device"),
        ("a\0b", "its name holds a NUL character"),
    ):
        with pytest.raises(LPSError) as error:
            load(path)
        shown = path.replace("\0", "\\x00")
        assert str(error.value) == f"load: {shown}: could not be read: {reason}; check the path"


def rewritten(whole: Path, path: Path, edit: Edit, *, manifest_text: str | None = None) -> Path:
    """A file with some change in it and the hashes that go with it: what only a faulty writer makes."""
    with safe_open(whole, framework="pt") as file:
        manifest = json.loads(file.metadata()["manifest"])
    tensors = load_file(whole)
    del tensors[CHECKSUM]
    edit(manifest, tensors)
    if type(manifest.get("tensors")) is dict:
        stored = {name: {"dtype": dtype_name(t), "shape": list(t.shape), "code": "raw"} for name, t in tensors.items()}
        stored = {name: {**entry, "sha256": sha256(tensors[name])} for name, entry in stored.items()}
        if "checksum" not in tensors:
            manifest["tensors"] = {name: {**stored[name], **manifest["tensors"].get(name, {})} for name in stored}
    text = json.dumps(manifest) if manifest_text is None else manifest_text
    tensors.setdefault(CHECKSUM, checksum(text))
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

    def edit(manifest: Manifest, tensors: Tensors) -> None:
        tensors[name] = change(tensors[name]).clone()
        del manifest["tensors"][name]

    return edit


def flipped(index: tuple[int, ...], bit: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor[index] ^= 1 << bit
        return tensor

    return change


ARCHITECTURE = ("parts", 0, "architecture")
LAYER = ("parts", 0, "layers", 0)
MISFIT = "the backbone does not fit the file: "

MANIFESTS: list[tuple[Edit, str]] = [
    (setter("format", value="other"), "not a model.lps, because its manifest does not say format learn-prune-share"),
    (setter("version", value=4), "format version 4 was written by a newer version; update the package, which reads 3"),
    (setter("version", value="2"), "manifest.version: expected 1 to 3, got '2'"),
    (setter("version", value=0), "manifest.version: expected 1 to 3, got 0"),
    (setter("version", value=1), "manifest: object contains unknown field method"),
    (setter("method", value="single"), "manifest.method: expected lps, got 'single'; update the package"),
    (setter("parts", value=[]), "manifest.parts: expected one for method lps, got 0"),
    (setter("parts", 0, "name", value="other"), "manifest.tasks[0].part: expected other, got 'net'"),
    (setter("parts", 0, "features", value="9"), "manifest: parts[0].features: expected int, got str"),
    (setter("parts", 0, "features", value=True), "manifest: parts[0].features: expected int, got bool"),
    (setter("parts", 0, "features", value=10**400), "manifest: parts[0].features: expected int <= "),
    (setter("parts", 0, "features", value=8), "manifest.features: expected 9, those of its network, got 8"),
    (setter("parts", 0, "exclude", value="a"), "manifest: parts[0].exclude: expected array, got str"),
    (setter("parts", 0, "exclude", value=[1]), "manifest: parts[0].exclude[0]: expected str, got int"),
    (setter("metadata", value=[]), "manifest: metadata: expected object, got array"),
    (setter("metadata", value={"input_shape": [0]}), "metadata: input_shape[0]: expected int >= 1; write the file"),
    (setter("surplus", value=1), "manifest: object contains unknown field surplus"),
    (setter(*ARCHITECTURE, value={"name": "mlp"}), "manifest: parts[0].architecture: object missing required field "),
    (setter(*ARCHITECTURE, "arguments", value={"x": 1}), "its network cannot be made: network 'mlp' takes"),
    (setter(*ARCHITECTURE, "arguments", "hidden", value=[10**18]), "its network cannot be made: "),
    (setter("parts", 0, "layers", value=[]), "the backbone does not fit the file: expected no layer 1.weight"),
    (setter(*LAYER, "shape", value=[7, -12]), "manifest: parts[0].layers[0].shape[1]: expected int >= 0"),
    (setter(*LAYER, "shape", value=[70, 12]), MISFIT + "expected layer 1.weight to be float32 [70, 12], got float32 "),
    (setter(*LAYER, "shape", value=[12, 7]), MISFIT + "expected layer 1.weight to be float32 [12, 7], got float32 "),
    (setter(*LAYER, "dtype", value="float64"), MISFIT + "expected layer 4.weight to be float32 [9, 7], got float64 "),
    (setter(*LAYER, "spent", value=-0.1), "manifest: parts[0].layers[0].spent: expected float >= 0.0"),
    (
        setter("parts", 0, "layers", 1, "name", value="1.weight"),
        "manifest.layers: expected names that differ, got one twice",
    ),
    (setter("parts", 0, "common", 0, "shape", value=[8]), MISFIT + "expected common tensor 1.bias to be float32 [8], "),
    (
        setter("parts", 0, "common", 0, "name", value="x"),
        MISFIT + "expected common tensor x to be float32 [7], got none",
    ),
    (
        setter("parts", 0, "private", value=["1.bias"]),
        MISFIT + "private tensors: expected 1.bias, in this order, got none",
    ),
    (
        setter("parts", 0, "private", value=["x"]),
        MISFIT + "private tensors: expected x, in this",
    ),
    (
        setter("parts", 0, "norms", value="per-task"),
        MISFIT + "private tensors: expected none, in thi",
    ),
    (
        setter("parts", 0, "norms", value="none"),
        MISFIT + "Lifelong: norms: expected one of frozen, per-task, network, got none",
    ),
    (setter("parts", 0, "pattern", value="diagonal"), MISFIT + "Lifelong: pattern: expected one of"),
    (setter("parts", 0, "exclude", value=["9.*"]), MISFIT + "Lifelong: exclude: expected patterns of"),
    (setter("tasks", value=[]), "manifest.tasks: expected at least one, got none"),
    (lambda m, _: m.update(tasks=m["tasks"] * 43), "manifest.tasks: expected at most 127, got 129"),
    (setter("tasks", 1, "part", value="x"), "manifest.tasks[1].part: expected net, got 'x'"),
    (setter("tasks", 1, "class_names", value=["a"]), "manifest.tasks[1].class_names: expected none or 3, got 1"),
    (setter("tasks", 2, "classes", value=4), "task 3 (clouds-2): head: expected tensor weight to be float32 [4, 9], "),
    (setter("tasks", 2, "classes", value=2**61), "task 3 (clouds-2): head: expected tensor weight to be float32 [2305"),
    (setter("tasks", 1, "head", "kind", value="x"), "manifest: tasks[1].head.kind: invalid enum value 'x'"),
    (
        setter("tasks", 1, "head", "kind", value="custom"),
        "task 2 (clouds-1): head: it is not a Linear layer, so",
    ),
    (lambda m, _: m["tasks"][1]["head"]["tensors"].pop(), "expected no tensor net/2/head/bias, got float32 [3]"),
    (setter("tasks", 1, "digest", value="0" * 64), "task 2 (clouds-1) does not have the digest that was taken"),
    (lambda m, _: m["parts"][0].pop("sharing"), "manifest: parts[0]: object missing required field sharing"),
    (lambda m, _: m["tasks"].pop(), "tensor net/all/owner/1.weight: expected owners up to task 2, got 3"),
    (lambda m, _: m["parts"].append(m["parts"][0]), "manifest.parts: expected one for method lps, got 2"),
    (
        lambda m, _: m["parts"][0]["layers"].append(m["parts"][0]["layers"][0]),
        "manifest.layers: expected names that differ, got one twice",
    ),
    (
        lambda m, _: m["parts"][0]["layers"].reverse(),
        f"{MISFIT}layers: expected 4.weight, 1.weight, in this ord",
    ),
]

BITS = "expected 0 in the unused bits after the first "

TENSORS: list[tuple[Edit, str]] = [
    (lambda _, t: t.pop("net/2/mask/1.weight"), "expected tensor net/2/mask/1.weight to be uint8 [3], got none"),
    (lambda _, t: t.update(surplus=torch.zeros(1)), "expected no tensor surplus, got float32 [1]"),
    (lambda _, t: t.update(checksum=torch.zeros(31)), "expected tensor checksum to be uint8 [32], got float32 [31]"),
    (tensor_setter("net/1/values/1.weight", lambda x: x[1:]), "expected tensor net/1/values/1.weight to be float32 [1"),
    (tensor_setter("net/1/values/1.weight", Tensor.double), "expected tensor net/1/values/1.weight to be float32 [17]"),
    (tensor_setter("net/1/values/1.weight", lambda x: x + 1), "task 1 (clouds-0) does not have the digest"),
    (tensor_setter("net/3/mask/1.weight", lambda x: ~x[:-1]), "expected tensor net/3/mask/1.weight to be uint8 [5], g"),
    (tensor_setter("net/2/head/bias", lambda x: x + 1), "task 2 (clouds-1) does not have the digest"),
    (tensor_setter("net/all/owner/1.weight", lambda x: x[:1]), "expected tensor net/all/owner/1.weight to be uint8 [2"),
    # 84 = 8 * 10 + 4 weights: bit 7 of the last byte stands for none; 17 weights are task 1's.
    (tensor_setter("net/all/owner/1.weight", flipped((0, 10), 7)), f"tensor net/all/owner/1.weight: {BITS}84, got 1"),
    (tensor_setter("net/2/mask/1.weight", flipped((2,), 7)), f"tensor net/2/mask/1.weight: {BITS}17, got 1"),
]


@pytest.mark.parametrize(("edit", "message"), [*MANIFESTS, *TENSORS], ids=[m[:50] for _, m in [*MANIFESTS, *TENSORS]])
def test_faulty_writers_are_refused(whole: Path, tmp_path: Path, edit: Edit, message: str) -> None:
    assert refusal(rewritten(whole, tmp_path / "model.lps", edit)).startswith(message)


def test_a_damaged_tensor_is_named_with_its_task(whole: Path, tmp_path: Path) -> None:
    header, data = header_of(whole)
    content, path = whole.read_bytes(), tmp_path / "model.lps"
    for name, whose in (
        ("net/all/owner/1.weight", "all tasks"),
        ("net/all/common/4.bias", "all tasks"),
        ("net/1/values/4.weight", "task 1"),
        ("net/2/mask/1.weight", "task 2"),
        ("net/3/head/bias", "task 3"),
    ):
        damaged = bytearray(content)
        damaged[len(content) - len(data) + header[name]["data_offsets"][0]] ^= 1
        path.write_bytes(damaged)
        assert refusal(path).startswith(f"tensor {name}, which belongs to {whose}, is damaged, because its sha256")


def test_a_damaged_manifest_is_named(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.lps"
    path.write_bytes(whole.read_bytes().replace(b"clouds-1", b"clouds-9"))
    assert refusal(path).startswith("the manifest or its checksum is damaged; copy the file again")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "code",
            "rans",
            "tensor net/2/mask/1.weight: expected the code raw, deflate, float32, float64, got 'rans'; update the",
        ),
        ("sha256", "0" * 64, "tensor net/2/mask/1.weight, which belongs to task 2, is damaged"),
        ("dtype", "int8", "expected tensor net/2/mask/1.weight to be int8 [3], got uint8 [3]"),
        ("shape", [4], "expected tensor net/2/mask/1.weight to be uint8 [4], got uint8 [3]"),
    ],
)
def test_faulty_entries_of_tensors(whole: Path, tmp_path: Path, key: str, value: object, message: str) -> None:
    edit = setter("tensors", "net/2/mask/1.weight", key, value=value)
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
