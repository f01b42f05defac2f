"""Write a network into one file, ``model.lps``; docs/format.md describes every byte of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from lps.artifact.atomic import write_atomically
from lps.artifact.bits import to_cells, to_planes
from lps.artifact.codes import RAW, deflated, narrowed
from lps.artifact.layout import (
    BEFORE_FROZEN,
    CHECKSUM,
    DTYPES,
    FORMAT,
    METHOD,
    PART,
    VERSION,
    Form,
    HeadEntry,
    Layer,
    Made,
    Manifest,
    Names,
    Part,
    Stored,
    TaskEntry,
    decoded,
    sha256,
    version_of,
)
from lps.errors import ConfigError, FileFormatError, in_a_sentence
from lps.metadata import Metadata
from lps.models import Architecture
from lps.observed import dtype_name
from lps.partition import Partition
from lps.reading import MOST_HEADER, MOST_TENSORS
from lps_kernels import __version__, pack_bits, unpack_bits
from lps_kernels.owner import TASK_BITS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

Coded = tuple[Tensor, str]  # bytes of a tensor, and how they give it


def save(net: Lifelong, path: Path) -> None:
    """Write all tasks of a network into one file, atomically: a failure leaves an existing file as it was."""
    _check(net)
    coded = dict(tensors_of(net))
    stored = {
        name: Stored(dtype_name(tensor), list(tensor.shape), code, sha256(tensor))
        for name, (tensor, code) in coded.items()
    }
    if len(stored) >= MOST_TENSORS:
        raise ConfigError(f"save: expected fewer than {MOST_TENSORS:,} tensors in a file, got {len(stored):,}")
    text = to_text(describe(net, stored))
    try:  # by the reader, so that nothing is written that it would refuse
        version_of(text)
        Metadata.from_json(decoded(text, Manifest).metadata)
    except FileFormatError as error:
        raise ConfigError(f"save: {in_a_sentence(error)}") from None
    if 2 * len(text) > MOST_HEADER:  # escaped, and the tensors' entries of the header beside it
        raise ConfigError(f"save: expected at most {MOST_HEADER // 2:,} bytes of names and metadata, got {len(text):,}")
    tensors = {CHECKSUM: checksum(text), **{name: tensor for name, (tensor, _) in coded.items()}}
    # As bytes in memory and not straight to disk: Python's own writing tells a full disk from a missing directory.
    write_atomically(path, to_safetensors(tensors, metadata={"manifest": text}))


def describe(net: Lifelong, stored: dict[str, Stored] | None = None) -> Manifest:
    """All that a network is beside its tensors; ``stored`` are those of a file."""
    common = [_form(name, tensor) for name, tensor in net.common_tensors()]
    part = Part(
        name=PART,
        architecture=_architecture(net.backbone),
        features=net.features,
        pattern=net.pattern,
        sharing=net.sharing,
        exclude=list(net.exclude),
        norms=net.norms,
        layers=[_layer(partition) for partition, _ in net.prunable()],
        common=common,
        private=[tensor.name for tensor in common if tensor.name in net.private_names],
        frozen=sorted(net.frozen),
    )
    tasks = [
        TaskEntry(task.name, task.classes, list(task.class_names), task.digest, PART, _head(head, part, task.classes))
        for task, head in zip(net.learnt, net.heads, strict=False)  # a task in learning has a head already
    ]
    metadata = net.metadata.to_json()
    version = VERSION if net.frozen else BEFORE_FROZEN  # earlier packages read what they can
    return Manifest(FORMAT, version, __version__, METHOD, [part], tasks, metadata, stored or {})


def to_text(manifest: Manifest) -> str:
    """The manifest as JSON."""
    try:
        return json.dumps(msgspec.to_builtins(manifest), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"save: metadata: expected values that JSON can hold, got a problem: {error}") from None


def checksum(text: str) -> Tensor:
    """The tensor that goes with a manifest."""
    return torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)


def _architecture(backbone: nn.Module) -> Made | None:
    known = getattr(backbone, "architecture", None)  # a user's own attribute of that name says nothing to us
    return Made(known.name, known.arguments) if isinstance(known, Architecture) else None


def _form(name: str, tensor: Tensor) -> Form:
    return Form(dtype_name(tensor), list(tensor.shape), name)


def _layer(partition: Partition) -> Layer:
    dtype, shape = dtype_name(partition.w_bar), list(partition.shape)
    return Layer(dtype, shape, partition.name, partition.spent, partition.init_std)


def _head(head: nn.Module, part: Part, classes: int) -> HeadEntry:
    plain = type(head) is nn.Linear and (head.out_features, head.in_features) == (classes, part.features)
    tensors = [_form(name, tensor) for name, tensor in head.state_dict().items()]
    return HeadEntry("linear" if plain else "custom", tensors)


def _check(net: Lifelong) -> None:
    """Refuse to write what could not be read again."""
    net.refuse_damaged()
    if not net.learnt:
        raise ConfigError("save: nothing to save, because no task has been learnt; call learn first")
    if net.learning:
        raise ConfigError("save: a task is being learnt; save when learn has returned")
    for number, task in enumerate(net.learnt, 1):
        if net.digest(number) != task.digest:
            raise ConfigError(
                f"save: task {number} ({task.name}) is not as it was learnt, because its weights, statistics or dtype "
                "were changed from outside; go back to the last saved file"
            )
    for name, tensor in [*net.common_tensors(), *net.heads.state_dict(prefix="heads.").items()]:
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ConfigError(f"save: {name}: expected one of {known}, got {dtype_name(tensor)}")


def tensors_of(net: Lifelong) -> Iterator[tuple[str, Coded]]:
    """All tensors of the file but the checksum, each with its code, on the CPU, in memory of their own."""
    names = Names(PART)
    for partition, _ in net.prunable():
        yield from _layer_tensors(names, partition, len(net.learnt))
    # Copies, because safetensors refuses tensors that share memory, as a buffer and a view of it do.
    for name, tensor in net.common_tensors():
        if name not in net.private_names:
            yield names.common(name), (_copied(tensor), RAW)
    for task, head in enumerate(net.heads, 1):
        for name, tensor in net.private_of(task).items():
            yield names.private(task, name), (_copied(tensor), RAW)
        for name, tensor in head.state_dict().items():
            yield names.head(task, name), narrowed(_copied(tensor))


def _layer_tensors(names: Names, partition: Partition, tasks: int) -> Iterator[tuple[str, Coded]]:
    """One layer of n weights; all its tensors are in the order of coordinates, rows first."""
    layer, w_bar = partition.name, partition.w_bar.cpu().flatten()
    owner = (partition.owner & TASK_BITS).cpu().flatten()
    yield names.owner(layer), deflated(to_cells(owner, tasks), to_planes(owner, tasks))
    earlier = torch.zeros_like(owner, dtype=torch.bool)
    for task in range(1, tasks + 1):
        own = owner == task
        yield names.values(task, layer), narrowed(w_bar[own])
        if task > 1:
            mask = pack_bits(unpack_bits(partition.mask(task).cpu(), owner.shape)[earlier])
            yield names.mask(task, layer), deflated(mask, mask)
        earlier |= own


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
