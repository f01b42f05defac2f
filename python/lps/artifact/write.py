"""Write a network into one file, ``model.lps``; docs/format.md describes every byte of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from lps.artifact.atomic import write_atomically
from lps.errors import ConfigError
from lps.models import Architecture
from lps.partition import FREE, TASK_BITS, Partition
from lps_kernels import __version__, pack_bits, unpack_bits

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

FORMAT = "learn-prune-share"
VERSION = 1
CHECKSUM = "checksum"  # the tensor with the sha256 of everything else

# What a common tensor may be; every reader of the format has to know these.
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def save(net: Lifelong, path: Path) -> None:
    """Write all tasks of a network into one file, atomically: a failure leaves an existing file as it was."""
    _check(net)
    manifest = _manifest(net)
    tensors = dict(_tensors(net))
    sha256 = bytearray(checksum(manifest, tensors))
    tensors[CHECKSUM] = torch.frombuffer(sha256, dtype=torch.uint8)
    # As bytes in memory and not straight to disk: Python's own writing tells a full disk from a missing directory.
    write_atomically(path, to_safetensors(tensors, metadata={"manifest": manifest}))


def checksum(manifest: str, tensors: Mapping[str, Tensor]) -> bytes:
    """sha256 of the manifest and of every tensor in the order of their names."""
    digest = hashlib.sha256(manifest.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {form(tensor)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def form(tensor: Tensor) -> str:
    """Dtype and shape, as in ``float32 [2, 3]``."""
    return f"{_dtype(tensor)} {list(tensor.shape)}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check(net: Lifelong) -> None:
    """Refuse to write what could not be read again."""
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
    for name, tensor in net.common_tensors():
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ConfigError(f"save: {name}: expected one of {known}, got {_dtype(tensor)}")


def _manifest(net: Lifelong) -> str:
    known = getattr(net.backbone, "architecture", None)  # a user's own attribute of that name says nothing to us
    architecture = {"name": known.name, "arguments": known.arguments} if isinstance(known, Architecture) else None
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "features": net.features,
        "pattern": net.pattern,
        "sharing": net.sharing,
        "exclude": net.exclude,
        "layers": [
            {**_described(p.name, p.w_bar), "spent": p.spent, "init_std": p.init_std} for p, _ in net.prunable()
        ],
        "common": [_described(name, tensor) for name, tensor in net.common_tensors()],
        "tasks": [{"name": task.name, "classes": task.classes, "digest": task.digest} for task in net.learnt],
        "architecture": architecture,
        "metadata": net.metadata.to_json(),
    }
    try:
        return json.dumps(manifest, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"save: metadata: expected values that JSON can hold, got a problem: {error}") from None


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": list(tensor.shape), "dtype": _dtype(tensor)}


def _tensors(net: Lifelong) -> Iterator[tuple[str, Tensor]]:
    tasks = len(net.learnt)
    for partition, _ in net.prunable():
        yield from _layer_tensors(partition, tasks)
    # Copies, because safetensors refuses tensors that share memory, as a buffer and a view of it do.
    for name, tensor in net.common_tensors():
        yield f"common/{name}", _copied(tensor)
    for task, head in enumerate(net.heads, 1):
        for name, parameter in head.named_parameters():
            yield f"head/{task}/{name}", _copied(parameter)


def _layer_tensors(partition: Partition, tasks: int) -> Iterator[tuple[str, Tensor]]:
    """One layer of n weights; all its tensors are in the order of coordinates, rows first."""
    name = partition.name
    owner = (partition.owner & TASK_BITS).cpu().flatten()
    owned = owner != FREE
    # ceil(log2(tasks + 1)) planes of one bit a weight.
    yield f"owner/{name}", torch.stack([pack_bits((owner >> bit) & 1 != 0) for bit in range(tasks.bit_length())])
    yield f"values/{name}", partition.w_bar.cpu().flatten()[owned]
    for task in range(2, tasks + 1):
        mask = unpack_bits(partition.mask(task).cpu(), owner.shape)
        yield f"mask/{task}/{name}", pack_bits(mask[owned & (owner < task)])


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
