"""Files of version 1, turned into what version 2 would hold; docs/format.md tells how they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from lps.artifact import layout
from lps.artifact.bits import from_planes
from lps_kernels.owner import FREE


class OldTask(layout.Record):
    """One task, whose head is an nn.Linear."""

    name: str
    classes: layout.Positive
    digest: str


class OldManifest(layout.Record):
    """The manifest of version 1."""

    format: str
    version: int
    written_by: str
    features: layout.Positive
    pattern: str
    sharing: str
    exclude: list[str]
    layers: list[layout.Layer]
    common: list[layout.Form]
    tasks: list[OldTask]
    architecture: layout.Made | None
    metadata: dict[str, Any]


def upgraded(text: str, tensors: dict[str, Tensor]) -> tuple[layout.Manifest, dict[str, Tensor]]:
    """Manifest and tensors in today's form, after a check of the checksum over all of them."""
    old = layout.decoded(text, OldManifest)
    stored = tensors.pop(layout.CHECKSUM)
    if bytes(stored.tolist()) != checksum(text, tensors):
        layout.refuse("the checksum does not match, so the file is damaged; copy it again from where it was saved")
    part = layout.Part(
        name=layout.PART,
        architecture=old.architecture,
        features=old.features,
        pattern=old.pattern,
        sharing=old.sharing,
        exclude=old.exclude,
        norms="frozen",
        layers=old.layers,
        common=old.common,
        private=[],
    )
    tasks = [
        layout.TaskEntry(task.name, task.classes, [], task.digest, layout.PART, _head(old, task)) for task in old.tasks
    ]
    manifest = layout.Manifest(
        old.format, old.version, old.written_by, layout.METHOD, [part], tasks, _metadata(old.metadata), {}
    )
    return manifest, _renamed(old, tensors)


def checksum(text: str, tensors: Mapping[str, Tensor]) -> bytes:
    """sha256 of the manifest and of every tensor in the order of their names."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {layout.form(tensor)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _head(old: OldManifest, task: OldTask) -> layout.HeadEntry:
    dtype = old.layers[0].dtype if old.layers else "float32"
    shapes = {"weight": [task.classes, old.features], "bias": [task.classes]}
    return layout.HeadEntry("linear", [layout.Form(dtype, shape, name) for name, shape in shapes.items()])


def _renamed(old: OldManifest, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under today's names; the values of a layer, one tensor then, split by owner."""
    names, tasks = layout.Names(layout.PART), range(1, len(old.tasks) + 1)
    today = {f"common/{tensor.name}": names.common(tensor.name) for tensor in old.common}
    today |= {f"head/{task}/{name}": names.head(task, name) for task in tasks for name in ("weight", "bias")}
    for layer in old.layers:
        today[f"owner/{layer.name}"] = names.owner(layer.name)
        today |= {f"mask/{task}/{layer.name}": names.mask(task, layer.name) for task in tasks}
    new = {today[name]: tensor for name, tensor in tensors.items() if name in today}
    for layer in old.layers:
        size, planes, values = prod(layer.shape), f"owner/{layer.name}", f"values/{layer.name}"
        packed_owner = layout.check_form(tensors, planes, layout.owner_form(size, len(tasks)))
        owner = from_planes(planes, packed_owner, size, len(tasks))
        owners = owner[owner != FREE]
        packed = layout.check_form(tensors, values, f"{layer.dtype} [{len(owners)}]")
        new |= {names.values(task, layer.name): packed[owners == task] for task in tasks}
        today[values] = ""  # it is several tensors now
    for name in tensors.keys() - today.keys():
        layout.refuse(f"expected no tensor {name}, got {layout.form(tensors[name])}")
    return new


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    """Metadata were one flat mapping for ours and the user's own."""
    ours = ("input_shape", "stream", "accuracy", "from_task")
    known = {key: _with_options(value) for key, value in values.items() if key in ours}
    return {**known, "user": {key: value for key, value in values.items() if key not in known}}


def _with_options(value: Any) -> Any:
    """A stream, or where a task comes from, in today's form: a benchmark's own options stand by themselves."""
    if not isinstance(value, dict):
        return value
    if "stream" in value:
        return {**value, "stream": _with_options(value["stream"])}
    rest = {key: item for key, item in value.items() if key != "window"}
    return {**rest, "options": {"window": value["window"]}} if value.get("window") is not None else rest
