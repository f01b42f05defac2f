"""Owner maps and masks as the file stores them: packed bits."""

from __future__ import annotations

import torch
from torch import Tensor

from lps.artifact.layout import refuse
from lps_kernels import pack_bits, unpack_bits


def to_planes(owner: Tensor, tasks: int) -> Tensor:
    """One row of packed bits for each binary digit of an owner."""
    return torch.stack([pack_bits((owner >> bit) & 1 != 0) for bit in range(tasks.bit_length())])


def from_planes(name: str, planes: Tensor, size: int, tasks: int) -> Tensor:
    """The flat owner map of a layer with this many weights."""
    owner = torch.zeros(size, dtype=torch.uint8)
    for bit, plane in enumerate(planes):
        owner += unpacked(name, plane, size).to(torch.uint8) << bit
    if size and int(owner.max()) > tasks:
        refuse(f"tensor {name}: expected owners up to task {tasks}, got {int(owner.max())}")
    return owner


def unpacked(name: str, bits: Tensor, size: int) -> Tensor:
    """The flags in these bits, whose unused ones must be 0."""
    flags: Tensor = unpack_bits(bits, [size])
    if not torch.equal(pack_bits(flags), bits):
        refuse(f"tensor {name}: expected 0 in the unused bits after the first {size}, got 1")
    return flags
