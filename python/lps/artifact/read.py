"""Read a network back from ``model.lps``, after checking all of it; docs/format.md describes the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lps.artifact.write import CHECKSUM, FORMAT, VERSION, checksum, form
from lps.errors import ConfigError, FileFormatError, LPSError
from lps.lifelong import Lifelong
from lps.metadata import Metadata
from lps.models import create
from lps.partition import FREE, MAX_TASKS, Partition
from lps.task import Learnt
from lps_kernels import pack_bits, unpack_bits
from lps_kernels.ops.bits import packed_size

_TENSOR = {"name": str, "shape": [int], "dtype": str}

# What version 1 of the manifest holds: exactly these keys, and in a list all entries of one kind.
_MANIFEST: dict[str, Any] = {
    "format": str,
    "version": int,
    "written_by": str,
    "features": int,
    "pattern": str,
    "sharing": str,
    "exclude": [str],
    "layers": [{**_TENSOR, "spent": float, "init_std": float}],
    "common": [_TENSOR],
    "tasks": [{"name": str, "classes": int, "digest": str}],
    "architecture": object,
    "metadata": dict,
}
_ARCHITECTURE = {"name": str, "arguments": dict}
_KINDS = {str: "a text", int: "a whole number of at least 0", float: "a number of at least 0", dict: "an object"}


def load(path: str | Path, backbone: nn.Module | None = None) -> Lifelong:
    """The network that ``Lifelong.save`` wrote, in eval mode, ready to answer and to learn further tasks.

    The file names its network if that is one of ``lps.models``; any other must be given as ``backbone``, which then
    takes the weights of the file. Everything is checked first: a file that is damaged in a single bit is refused.
    """
    try:
        Path(path).open("rb").close()  # for the reasons in Python's own words
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata(), file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except OSError as error:
        raise LPSError(f"load: {path}: could not be read: {error.strerror or error}; check the path") from error
    except SafetensorError as error:
        raise FileFormatError(
            f"load: {path}: not a whole model file ({error}); copy it again from a whole one"
        ) from None
    try:
        return _load(metadata or {}, tensors, backbone)
    except FileFormatError as error:
        raise FileFormatError(f"load: {path}: {error}") from None


def _load(metadata: Mapping[str, str], tensors: dict[str, Tensor], backbone: nn.Module | None) -> Lifelong:
    text = metadata.get("manifest", "")
    manifest = _read_manifest(text)
    _check_checksum(text, tensors)
    owners = _check_tensors(manifest, tensors)
    net = _make(manifest, backbone)
    tasks = len(manifest["tasks"])
    for (partition, _), layer in zip(net.prunable(), manifest["layers"], strict=True):
        _fill(partition, owners.pop(partition.name), tensors, tasks)
        partition.spent, partition.init_std = float(layer["spent"]), float(layer["init_std"])
    # A backbone that was given is untouched up to here.
    _write_common(net, tensors)
    _add_heads(net, manifest["tasks"], tensors)
    net.requires_grad_(False)
    for number, learnt in enumerate(net.learnt, 1):
        if net.digest(number) != learnt.digest:
            _refuse(f"task {number} ({learnt.name}) does not have the digest that was taken when it was learnt")
    net.metadata = metadata_of(manifest["metadata"])
    net.activate(tasks)
    return net.eval()


def metadata_of(values: dict[str, Any]) -> Metadata:
    """The metadata of a file of version 1, which has one flat mapping for ours and the user's own."""
    known = {key: _with_options(values[key]) for key in ("stream", "from_task") if key in values}
    known |= {key: values[key] for key in ("input_shape", "accuracy") if key in values}
    user = values.get("user") or {key: value for key, value in values.items() if key not in known}
    return Metadata.from_json({**known, "user": user})


def _with_options(value: Any) -> Any:
    """A stream, or where a task comes from, in today's form: a benchmark's own options stand by themselves."""
    if not isinstance(value, dict):
        return value
    if "stream" in value:
        return {**value, "stream": _with_options(value["stream"])}
    rest = {key: item for key, item in value.items() if key != "window"}
    return {**rest, "options": {"window": value["window"]}} if value.get("window") is not None else rest


def _read_manifest(text: str) -> dict[str, Any]:
    if not text:
        _refuse("not a model.lps, because it has no manifest")
    try:
        manifest = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _refuse(f"the manifest is not JSON: {error}")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        _refuse(f"not a model.lps, because its manifest does not say format {FORMAT}")
    version = manifest.get("version")
    if type(version) is int and version > VERSION:
        _refuse(f"format version {version} was written by a newer version; update the package, which reads {VERSION}")
    if version != VERSION:
        _refuse(f"manifest.version: expected {VERSION}, got {version!r:.60}")
    _check_kind("manifest", manifest, _MANIFEST)
    if manifest["architecture"] is not None:
        _check_kind("manifest.architecture", manifest["architecture"], _ARCHITECTURE)
    if not 1 <= len(manifest["tasks"]) <= MAX_TASKS:
        _refuse(f"manifest.tasks: expected 1 to {MAX_TASKS}, got {len(manifest['tasks'])}")
    return manifest


def _check_kind(where: str, value: object, kind: Any) -> None:
    """Exactly the keys, and everywhere the types, that ``kind`` shows."""
    if isinstance(kind, dict):
        if not isinstance(value, dict) or value.keys() != kind.keys():
            _refuse(f"{where}: expected an object with {', '.join(kind)}, got {value!r:.60}")
        for key, inner in kind.items():
            _check_kind(f"{where}.{key}", value[key], inner)
    elif isinstance(kind, list):
        if not isinstance(value, list):
            _refuse(f"{where}: expected a list, got {value!r:.60}")
        for index, entry in enumerate(value):
            _check_kind(f"{where}[{index}]", entry, kind[0])
    elif kind in (int, float):
        number = type(value) is int or (kind is float and isinstance(value, float) and isfinite(value))
        if not number or value < 0:  # type: ignore[operator]
            _refuse(f"{where}: expected {_KINDS[kind]}, got {value!r:.60}")
    elif not isinstance(value, kind):
        _refuse(f"{where}: expected {_KINDS[kind]}, got {value!r:.60}")


def _check_checksum(text: str, tensors: dict[str, Tensor]) -> None:
    stored = tensors.pop(CHECKSUM, None)
    if stored is None or form(stored) != "uint8 [32]":
        _refuse("expected tensor checksum to be uint8 [32], got " + ("none" if stored is None else form(stored)))
    if bytes(stored.tolist()) != checksum(text, tensors):
        _refuse("the checksum does not match, so the file is damaged; copy it again from where it was saved")


def _check_tensors(manifest: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check names, dtypes and shapes of all tensors; returns the owner map of every layer."""
    layers, tasks = manifest["layers"], manifest["tasks"]
    if not layers:
        _refuse("manifest.layers: expected at least one, got none")
    got = {name: form(tensor) for name, tensor in tensors.items()}
    owners, expected = {}, {}
    for layer in layers:
        name, size = layer["name"], prod(layer["shape"])
        planes = {f"owner/{name}": f"uint8 [{len(tasks).bit_length()}, {packed_size(size)}]"}
        _compare("tensor", planes, {key: got[key] for key in planes if key in got})
        owner = owners[name] = _read_owner(name, tensors, size, len(tasks))
        expected.update(planes)
        counts = torch.bincount(owner, minlength=len(tasks) + 1).tolist()
        expected[f"values/{name}"] = f"{layer['dtype']} [{sum(counts[1:])}]"
        for task in range(2, len(tasks) + 1):
            expected[f"mask/{task}/{name}"] = f"uint8 [{packed_size(sum(counts[1:task]))}]"
    for number, task in enumerate(tasks, 1):
        dtype, classes = layers[0]["dtype"], task["classes"]
        expected[f"head/{number}/weight"] = f"{dtype} [{classes}, {manifest['features']}]"
        expected[f"head/{number}/bias"] = f"{dtype} [{classes}]"
    expected.update({f"common/{tensor['name']}": _form(tensor) for tensor in manifest["common"]})
    _compare("tensor", expected, got)
    return owners


def _read_owner(name: str, tensors: Mapping[str, Tensor], size: int, tasks: int) -> Tensor:
    """The flat owner map, put together from its planes of one bit."""
    owner = torch.zeros(size, dtype=torch.uint8)
    for bit, plane in enumerate(tensors[f"owner/{name}"]):
        owner += _unpack(f"owner/{name}", plane, size).to(torch.uint8) << bit
    if size and int(owner.max()) > tasks:
        _refuse(f"tensor owner/{name}: expected owners up to task {tasks}, got {int(owner.max())}")
    return owner


def _unpack(name: str, bits: Tensor, size: int) -> Tensor:
    flags: Tensor = unpack_bits(bits, [size])
    if not torch.equal(pack_bits(flags), bits):
        _refuse(f"tensor {name}: expected 0 in the unused bits after the first {size}, got 1")
    return flags


def _make(manifest: dict[str, Any], backbone: nn.Module | None) -> Lifelong:
    """A network without tasks whose layers and common tensors are those of the file."""
    if backbone is None:
        backbone = _create(manifest)
    try:
        modes = {key: manifest[key] for key in ("pattern", "sharing", "exclude")}
        net = Lifelong(backbone, manifest["features"], **modes)
        layers = [(partition.name, weight) for partition, weight in net.prunable()]
        for what, key, tensors in (("layer", "layers", layers), ("common tensor", "common", net.common_tensors())):
            got = {name: form(tensor) for name, tensor in tensors}
            _compare(what, {entry["name"]: _form(entry) for entry in manifest[key]}, got)
            names = [entry["name"] for entry in manifest[key]]
            if names != list(got):
                _refuse(f"expected each {what} once, in the order {', '.join(names)}, got {', '.join(got)}")
    except (ConfigError, FileFormatError) as error:
        _refuse(f"the backbone does not fit the file: {error}")
    return net


def _create(manifest: dict[str, Any]) -> nn.Module:
    architecture = manifest["architecture"]
    if architecture is None:
        _refuse("its network is not one that lps.models can make; make it yourself and pass it as backbone=")
    try:
        backbone = create(architecture["name"], **architecture["arguments"])
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]  # torch's messages may go on with a stack
        _refuse(f"its network cannot be made: {reason}; pass it as backbone=")
    return backbone.double() if manifest["layers"][0]["dtype"] == "float64" else backbone


def _compare(what: str, expected: Mapping[str, str], got: Mapping[str, str]) -> None:
    for name, wanted in expected.items():
        if got.get(name) != wanted:
            _refuse(f"expected {what} {name} to be {wanted}, got {got.get(name, 'none')}")
    for name, surplus in got.items():
        if name not in expected:
            _refuse(f"expected no {what} {name}, got {surplus}")


def _fill(partition: Partition, owner: Tensor, tensors: Mapping[str, Tensor], tasks: int) -> None:
    """Spread the packed values and masks over the coordinates that they belong to."""
    name, shape, device = partition.name, partition.shape, partition.owner.device
    owned = owner != FREE
    partition.owner.copy_(owner.reshape(shape))
    # `.to` before the scatter: the values are a view of the file, the network is wherever the backbone is.
    partition.w_bar.masked_scatter_(owned.reshape(shape).to(device), tensors[f"values/{name}"].to(device))
    partition.add_task(pack_bits(torch.zeros_like(owned)).to(device))  # task 1 has nothing to reuse
    for task in range(2, tasks + 1):
        earlier = owned & (owner < task)
        key = f"mask/{task}/{name}"
        bits = _unpack(key, tensors[key], int(earlier.count_nonzero()))
        reused = torch.zeros_like(owned).masked_scatter_(earlier, bits)
        partition.add_task(pack_bits(reused).to(device))


@torch.no_grad()
def _write_common(net: Lifelong, tensors: Mapping[str, Tensor]) -> None:
    for name, common in net.common_tensors():
        common.copy_(tensors[f"common/{name}"])
    for _, weight in net.prunable():
        weight.data = weight.data.contiguous()  # as `learn` leaves it, so that the same kernels run


@torch.no_grad()
def _add_heads(net: Lifelong, tasks: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    _, weight = next(net.prunable())
    for number, task in enumerate(tasks, 1):
        head = nn.Linear(net.features, task["classes"], device=weight.device, dtype=weight.dtype)
        for name, parameter in head.named_parameters():
            parameter.copy_(tensors[f"head/{number}/{name}"])
        net.heads.append(head)
        net.learnt.append(Learnt(**task))


def _form(entry: Mapping[str, Any]) -> str:
    return f"{entry['dtype']} {entry['shape']}"


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _refuse(message: str) -> NoReturn:
    raise FileFormatError(message)
