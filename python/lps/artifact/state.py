"""The state_dict of a :class:`lps.Lifelong`: a description of its tasks goes with the tensors, as JSON in bytes.

It lets a network that knows none of the tasks take all of them over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lps.artifact.layout import Manifest, compare, decoded, form, refuse, version_of
from lps.artifact.restore import add_learnt, check_fit, make_head, only_part
from lps.artifact.write import describe, to_text
from lps.errors import ConfigError, FileFormatError
from lps.metadata import Metadata
from lps_kernels.ops.bits import packed_size

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

ENTRY = "_extra_state"  # torch's name for what get_extra_state returns


def description(net: Lifelong) -> Tensor:
    """All that a network is beside its tensors: the JSON of a manifest as bytes, which any format can hold."""
    return torch.frombuffer(bytearray(to_text(describe(net)).encode()), dtype=torch.uint8)


def fill(net: Lifelong, state: Mapping[str, Any], heads: Sequence[nn.Module]) -> None:
    """Give a network without tasks those of a state_dict, after checking that it fits.

    Heads that are not a Linear layer are copies of the one in ``heads`` at the same place.
    """
    try:
        _fill(net, state, heads)
    except (ConfigError, FileFormatError) as error:
        raise ConfigError(f"Lifelong: load_state_dict: {error}") from None


@torch.no_grad()
def _fill(net: Lifelong, state: Mapping[str, Any], heads: Sequence[nn.Module]) -> None:
    entry = state.get(ENTRY)
    if not (isinstance(entry, Tensor) and entry.dtype == torch.uint8):
        refuse(f"expected the entry {ENTRY}, which describes the tasks, got none; make the state_dict anew")
    text = entry.cpu().numpy().tobytes().decode(errors="replace")
    version_of(text)
    manifest = decoded(text, Manifest)
    part, tasks = only_part(manifest), manifest.tasks
    ours = {
        "features": net.features,
        "exclude": list(net.exclude),
        "norms": net.norms,
        "frozen": sorted(net.frozen),
    }
    for name, got in ours.items():
        if got != getattr(part, name):
            refuse(f"{name}: the state has {getattr(part, name)}, this network {got}; make it with the same")
    check_fit(net, part)
    net.pattern, net.sharing = part.pattern, part.sharing
    net.check_settings()
    net.metadata = Metadata.from_json(manifest.metadata)
    private = {name: tensor for name, tensor in net.common_tensors() if name in net.private_names}
    like = net.like
    for (partition, _), layer in zip(net.prunable(), part.layers, strict=True):
        partition.spent, partition.init_std = layer.spent, layer.init_std
        for _ in tasks:
            partition.add_task(partition.owner.new_empty((packed_size(partition.owner.numel()),)))
    for number, task in enumerate(tasks, 1):
        known = heads[number - 1] if number <= len(heads) else None
        factory = None if known is None else lambda *_, known=known: deepcopy(known)
        net.heads.append(make_head(number, task, net.features, like, factory, "put one like it into net.heads first"))
        net.add_private(private)
    mine, theirs = _tensors(net.state_dict()), _tensors(state)
    compare("entry", _forms(mine), _forms(theirs))
    for name, tensor in mine.items():
        tensor.copy_(theirs[name])
    add_learnt(net, tasks)


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Without the entries that are not parameters or buffers: ours, and what a user's module may add."""
    return {name: value for name, value in state.items() if not name.endswith(ENTRY)}


def _forms(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: form(v) if isinstance(v, Tensor) else type(v).__name__ for name, v in state.items()}
