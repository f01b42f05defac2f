"""Read a network back from ``model.lps``, after checking all of it; docs/format.md describes the file."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lps.artifact.bits import count_cells, from_cells, from_planes, unpacked
from lps.artifact.codes import DEFLATE, check_code, inflated, widened
from lps.artifact.layout import (
    CHECKSUM,
    EVERY_TASK,
    Manifest,
    Names,
    Part,
    TaskEntry,
    belongs_to,
    check_form,
    compare,
    decoded,
    expected_tensors,
    form,
    owner_form,
    refuse,
    sha256,
    version_of,
)
from lps.artifact.restore import add_learnt, check_fit, check_names, make_head, only_part
from lps.artifact.version1 import upgraded
from lps.artifact.write import checksum
from lps.backbones import Make, advice, find, made_by
from lps.errors import ConfigError, FileFormatError, LPSError, in_a_sentence
from lps.lifelong import Lifelong
from lps.metadata import Metadata
from lps.models import Architecture, create, is_registered
from lps.partition import Partition, is_sound
from lps.reading import open_regular, safetensors_header, size_of
from lps.skeleton import Skeleton
from lps.task import Head
from lps_kernels import pack_bits, unpack_bits
from lps_kernels.ops.bits import packed_size

Heads = Head | Mapping[int, Head]
Backbone = nn.Module | str | None  # None if the file tells; where it is not known, how to get it


def load(
    path: str | Path,
    backbone: nn.Module | Make | str | None = None,
    heads: Heads | None = None,
    *,
    salvage: bool = False,
) -> Lifelong:
    """The network that ``Lifelong.save`` wrote, in eval mode, ready to answer and to learn further tasks.

    The file names its network if that is one of ``lps.models``; any other must be given as ``backbone``, which then
    takes the weights of the file: the module, a function that makes it, or text that names such a function
    (``package.module:function``, or an entry point of an installed package). Heads that are not a Linear layer are made
    by ``heads(features, classes)``, or by ``heads[task](features, classes)``. Everything is checked first: a file that
    is damaged in a single bit is refused.

    A file whose network is neither known nor given is loaded without it: tasks, sizes and digests are there, can be
    edited and saved, and whatever would run the network is refused with a sentence that says how to get it.

    With ``salvage`` a file is loaded as long as the damage is in tensors of single tasks. Tasks that would not answer
    as they were learnt are refused when they are asked; all others answer bit for bit. Nothing more can be learnt or
    saved then; :func:`lps.artifact.one_task.one_task` makes a network of one task that can.
    """
    where = f"load: {in_a_sentence(path)}"
    metadata, tensors = _contents(path, where)
    try:
        damaged: list[str] = []
        manifest, tensors = _checked(metadata, tensors, damaged if salvage else None)
        given = _given(backbone, only_part(manifest), where)
        return _restored(manifest, tensors, given, heads, damaged if salvage else None)
    except FileFormatError as error:
        raise FileFormatError(f"{where}: {in_a_sentence(error)}") from None


def load_tensors(path: str | Path) -> Lifelong:
    """What a file holds, without its network, which is not even made where it is known; everything is checked."""
    where = f"load: {in_a_sentence(path)}"
    metadata, tensors = _contents(path, where)
    try:
        manifest, tensors = _checked(metadata, tensors, None)
        return _restored(manifest, tensors, f"{where}: its tensors alone were loaded", None, None)
    except FileFormatError as error:
        raise FileFormatError(f"{where}: {in_a_sentence(error)}") from None


def _given(backbone: nn.Module | Make | str | None, part: Part, where: str) -> Backbone:
    """The backbone that the user gives; a sentence on how to get it where it is not known; None if the file tells."""
    named = None if part.architecture is None else part.architecture.name
    make = find(backbone) if isinstance(backbone, str) else backbone
    if make is None:
        return None if named is not None and is_registered(named) else f"{where}: {advice(named)}"
    if isinstance(make, nn.Module):
        return make
    if named is not None and is_registered(named, make):
        return None  # the file tells its arguments
    return made_by(make)


def _skeleton(part: Part, how: str) -> Skeleton:
    """Room for the tensors of the network that the file describes."""
    if part.private and part.norms == "frozen":
        refuse(f"private tensors: expected none where norms are frozen, got {', '.join(part.private)}")
    skeleton = Skeleton(how, part.layers, part.common, part.private)
    if part.architecture is not None:
        made = part.architecture
        skeleton.architecture = Architecture(made.name, made.arguments, part.features)  # type: ignore[assignment]
    return skeleton


def _contents(path: str | Path, where: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata of the header, and all tensors."""
    try:
        with open_regular(path) as header:
            metadata = safetensors_header(header, size_of(header))
        with safe_open(path, framework="pt") as file:
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except OSError as error:
        raise LPSError(f"{where}: could not be read: {error.strerror or error}; check the path") from error
    except (SafetensorError, ValueError) as error:
        reason = in_a_sentence(error)
        raise FileFormatError(f"{where}: not a whole model file ({reason}); copy it again from a whole one") from None


def _checked(
    metadata: Mapping[str, str], tensors: dict[str, Tensor], damaged: list[str] | None
) -> tuple[Manifest, dict[str, Tensor]]:
    """Manifest and tensors of an undamaged file of any version, in the form of the latest one.

    If there is a list ``damaged``, damaged tensors of single tasks are added to it instead of being refused.
    """
    text = metadata.get("manifest")
    if not text:
        refuse("not a model.lps, because it has no manifest")
    if len(metadata) > 1:
        refuse(f"expected nothing in the header's metadata beside the manifest, got {', '.join(sorted(metadata))}")
    version = version_of(text)
    stored_checksum = check_form(tensors, CHECKSUM, "uint8 [32]")
    if version == 1:
        return upgraded(text, tensors)
    if not torch.equal(stored_checksum, checksum(text)):
        refuse("the manifest or its checksum is damaged; copy the file again from where it was saved")
    manifest = decoded(text, Manifest)
    del tensors[CHECKSUM]
    expected = {name: str(stored) for name, stored in manifest.tensors.items()}
    compare("tensor", expected, {name: form(tensor) for name, tensor in tensors.items()})
    for name, stored in manifest.tensors.items():
        check_code(name, tensors[name], stored.code)
        whole = sha256(tensors[name]) == stored.sha256
        tensors[name] = widened(tensors[name], stored.code)
        if whole:
            continue
        if damaged is not None and belongs_to(name) != EVERY_TASK:
            damaged.append(name)
            continue
        salvage = "" if belongs_to(name) == EVERY_TASK else ", or load the others with lps.load(..., salvage=True)"
        refuse(
            f"tensor {name}, which belongs to {belongs_to(name)}, is damaged, because its sha256 is not the one in "
            f"the manifest; copy the file again from where it was saved{salvage}"
        )
    return manifest, tensors


@torch.no_grad()
def _restored(
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    backbone: Backbone,
    heads: Heads | None,
    damaged: Sequence[str] | None,
) -> Lifelong:
    part, tasks = only_part(manifest), manifest.tasks
    if not tasks:
        refuse("manifest.tasks: expected at least one, got none")
    metadata = Metadata.from_json(manifest.metadata)
    check_names(part, tasks)
    if backbone is None:
        # First without memory: a few bytes can name a network of many gigabytes, which is then not the file's.
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # of pretrained values that are not copied
            _wrapped(part, _create(part))
    streams = {name for name, stored in manifest.tensors.items() if stored.code == DEFLATE}
    owners = _read_owners(part, len(tasks), tensors, streams)
    owned = {name: torch.bincount(owner, minlength=len(tasks) + 1).tolist()[1:] for name, owner in owners.items()}
    expected = expected_tensors(part, tasks, owned)
    forms = {name: form(tensor) for name, tensor in tensors.items()}
    # How many bytes a stream has says nothing; those in it are counted where they are needed.
    compare("tensor", expected, forms | {name: expected[name] for name in streams & expected.keys()})
    if isinstance(backbone, str):
        backbone = _skeleton(part, backbone)
    net = _wrapped(part, _create(part) if backbone is None else backbone)
    like = net.like
    made = []
    for number, task in enumerate(tasks, 1):
        factory = heads.get(number) if isinstance(heads, Mapping) else heads
        if factory is None and isinstance(backbone, Skeleton):
            factory = partial(_skeleton_head, task, backbone.how)
        made.append(make_head(number, task, net.features, like, factory, "pass a factory for it as heads="))
    names = Names(part.name)
    _check_values(_buffers(net, made, names), tensors, damaged or ())
    for (partition, _), layer in zip(net.prunable(), part.layers, strict=True):
        _fill(partition, owners.pop(layer.name), tensors, streams, names, len(tasks), damaged or ())
        partition.spent, partition.init_std = layer.spent, layer.init_std
    # A backbone that was given is untouched up to here.
    _write_common(net, tensors, names)
    for number, head in enumerate(made, 1):
        for name, tensor in head.state_dict().items():
            tensor.copy_(tensors[names.head(number, name)])
        net.heads.append(head)
        net.add_private({name: tensors[names.private(number, name)].to(like.device) for name in part.private})
    net.requires_grad_(False)
    add_learnt(net, tasks, damaged)
    net.metadata = metadata
    if net.can_run:
        net.activate(max(number for number, task in enumerate(net.learnt, 1) if not task.damage))
    return net.eval()


def _skeleton_head(task: TaskEntry, how: str, _features: int, _classes: int) -> Skeleton:
    return Skeleton(how, (), task.head.tensors)


def _check_values(buffers: Container[str], tensors: Mapping[str, Tensor], damaged: Container[str]) -> None:
    """Refuse numbers that no task can have learnt: NaN, and infinities outside buffers, where masks may use them."""
    for name, tensor in tensors.items():
        if name not in damaged and not is_sound(tensor, infinite=name in buffers):
            expected = "no NaN" if name in buffers else "finite numbers"
            refuse(f"tensor {name}: expected {expected}, got another; go back to a file of a network that answers")


def _buffers(net: Lifelong, heads: Sequence[nn.Module], names: Names) -> set[str]:
    """The names in the file of all tensors that are not parameters."""
    inside = [name for name, _ in net.backbone.named_buffers()]
    found = {names.common(name) for name in inside}
    for task, head in enumerate(heads, 1):
        found |= {names.private(task, name) for name in inside}
        found |= {names.head(task, name) for name, _ in head.named_buffers()}
    return found


def _read_owners(part: Part, tasks: int, tensors: Mapping[str, Tensor], streams: Container[str]) -> dict[str, Tensor]:
    """The flat owner map of every layer."""
    owners = {}
    for layer in part.layers:
        name, size = Names(part.name).owner(layer.name), prod(layer.shape)
        if name in streams:
            cells = inflated(name, tensors[name], count_cells(size, tasks))
            owners[layer.name] = from_cells(name, cells, size, tasks)
        else:
            planes = check_form(tensors, name, owner_form(size, tasks))
            owners[layer.name] = from_planes(name, planes, size, tasks)
    return owners


def _wrapped(part: Part, backbone: nn.Module) -> Lifelong:
    """A network without tasks, if its layers and common tensors are those of the file."""
    try:
        net = Lifelong(
            backbone,
            part.features,
            pattern=part.pattern,
            sharing=part.sharing,
            exclude=part.exclude,
            norms=part.norms,
            frozen=part.frozen,
            quiet=True,
        )
        check_fit(net, part)
    except (ConfigError, FileFormatError) as error:
        refuse(f"the backbone does not fit the file: {error}")
    return net


def _create(part: Part) -> nn.Module:
    if part.architecture is None:
        refuse("its network is not one that lps.models can make; make it yourself and pass it as backbone=")
    try:
        backbone = create(part.architecture.name, **part.architecture.arguments)
    except Exception as error:  # a builder of the user's, with arguments of the file
        reason = str(error).partition("\n")[0]  # torch's messages may go on with a stack
        how = "" if isinstance(error, ConfigError) else " (from a file it is made on the meta device first)"
        refuse(f"its network cannot be made: {reason}; pass it as backbone={how}")
    features = cast("Architecture", backbone.architecture).features
    if features != part.features:
        refuse(f"manifest.features: expected {features}, those of its network, got {part.features}")
    weights = part.layers or part.common  # every task has its own network if there are no layers to split
    return backbone.double() if any(tensor.dtype == "float64" for tensor in weights) else backbone


def _fill(
    partition: Partition,
    owner: Tensor,
    tensors: Mapping[str, Tensor],
    streams: Container[str],
    names: Names,
    tasks: int,
    damaged: Container[str],
) -> None:
    """Spread the packed values and masks over the coordinates that they belong to."""
    layer, shape, device = partition.name, partition.shape, partition.owner.device
    partition.owner.copy_(owner.reshape(shape))
    earlier = torch.zeros_like(owner, dtype=torch.bool)
    for task in range(1, tasks + 1):
        own = owner == task
        # `.to` before the scatter: the values are a view of the file, the network is wherever the backbone is.
        values = tensors[names.values(task, layer)].to(device)
        partition.w_bar.masked_scatter_(own.reshape(shape).to(device), values)
        reused = torch.zeros_like(own)
        if task > 1:  # task 1 has nothing to reuse
            name = names.mask(task, layer)
            size = int(earlier.count_nonzero())
            if name not in damaged:
                bits = inflated(name, tensors[name], packed_size(size)) if name in streams else tensors[name]
                reused.masked_scatter_(earlier, unpacked(name, bits, size))
            elif name not in streams:  # of a damaged one all that can be saved
                reused.masked_scatter_(earlier, unpack_bits(tensors[name], [size]))
        partition.add_task(pack_bits(reused).to(device))
        earlier |= own


def _write_common(net: Lifelong, tensors: Mapping[str, Tensor], names: Names) -> None:
    for name, common in net.common_tensors():
        if name not in net.private_names:
            common.copy_(tensors[names.common(name)])
    for _, weight in net.prunable() if net.can_run else ():
        weight.data = weight.data.contiguous()  # as `learn` leaves it, so that the same kernels run
