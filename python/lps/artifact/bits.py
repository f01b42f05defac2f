"""Owner maps and masks as the file stores them: packed bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from lps.artifact.layout import refuse
from lps_kernels import pack_bits, unpack_bits

BYTE = 8  # bits


def to_planes(owner: Tensor, tasks: int) -> Tensor:
    """One row of packed bits for each binary digit of an owner."""
    return torch.stack([pack_bits((owner >> bit) & 1 != 0) for bit in range(tasks.bit_length())])


def from_planes(name: str, planes: Tensor, size: int, tasks: int) -> Tensor:
    """The flat owner map of a layer with this many weights."""
    owner = torch.zeros(size, dtype=torch.uint8)
    for bit, plane in enumerate(planes):
        owner += unpacked(name, plane, size).to(torch.uint8) << bit
    return _known(name, owner, tasks)


def to_cells(owner: Tensor, tasks: int) -> Tensor:
    """As many whole owners in every byte as there is room for, the first one lowest: what is worth coding."""
    each = BYTE // tasks.bit_length()
    return (pad(owner, (0, -len(owner) % each)).view(-1, each) << _shifts(tasks)).sum(1, dtype=torch.uint8)


def count_cells(size: int, tasks: int) -> int:
    """The bytes of the cells of so many weights."""
    return -(-size // (BYTE // tasks.bit_length()))


def from_cells(name: str, cells: Tensor, size: int, tasks: int) -> Tensor:
    """The flat owner map of a layer with this many weights."""
    owner = ((cells[:, None] >> _shifts(tasks)) & ((1 << tasks.bit_length()) - 1)).view(-1)[:size]
    if not torch.equal(to_cells(owner, tasks), cells):
        refuse(f"tensor {name}: expected 0 in the unused bits of its bytes, got 1")
    return _known(name, owner, tasks)


def unpacked(name: str, bits: Tensor, size: int) -> Tensor:
    """The flags in these bits, whose unused ones must be 0."""
    flags: Tensor = unpack_bits(bits, [size])
    if not torch.equal(pack_bits(flags), bits):
        refuse(f"tensor {name}: expected 0 in the unused bits after the first {size}, got 1")
    return flags


def _shifts(tasks: int) -> Tensor:
    """By how many bits each owner in a byte is shifted."""
    bits = tasks.bit_length()
    return torch.arange(BYTE // bits, dtype=torch.uint8) * bits


def _known(name: str, owner: Tensor, tasks: int) -> Tensor:
    if len(owner) and int(owner.max()) > tasks:
        refuse(f"tensor {name}: expected owners up to task {tasks}, got {int(owner.max())}")
    return owner
