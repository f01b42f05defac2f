"""Bit packing in Triton."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import Ahead, Kernels, on_device_of, parts_of

# Bytes of packed bits, and booleans, that one program moves.
_PACK_BLOCK, _UNPACK_BLOCK = 512, 2048
_OPTIONS: dict[str, object] = {"num_warps": 4}


@triton.jit
def packed(flags):
    """Eight flags per byte, the lowest index in the lowest bit: [n] to [n / 8]."""
    by_byte = tl.reshape(flags.to(tl.int32), (flags.shape[0] // 8, 8))
    return tl.sum(by_byte << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit
def _pack(x, out, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first * 8 + tl.arange(0, BLOCK * 8)
    flags = tl.load(x + index, mask=index < count, other=0) != 0
    byte = first + tl.arange(0, BLOCK)
    tl.store(out + byte, packed(flags), mask=byte * 8 < count)


@triton.jit
def _unpack(bits, out, count, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    byte = tl.load(bits + (index >> 3), mask=inside, other=0).to(tl.int32)
    tl.store(out + index, ((byte >> (index & 7).to(tl.int32)) & 1).to(tl.uint8), mask=inside)


def pack_bits(x: Tensor) -> Tensor:
    """Element ``8 i + j`` goes to bit ``j`` of byte ``i``."""
    out: Tensor = REGISTRY["pack_bits"].fake(x)
    count = x.numel()
    if count > 0:
        with on_device_of(x):
            _pack[(parts_of(count, 8 * _PACK_BLOCK),)](
                x.contiguous().view(torch.uint8), out, count, BLOCK=_PACK_BLOCK, **_OPTIONS
            )
    return out


def unpack_bits(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The boolean tensor of this shape whose packed form is ``bits``."""
    out: Tensor = REGISTRY["unpack_bits"].fake(bits, shape)
    count = out.numel()
    if count > 0:
        with on_device_of(bits):
            _unpack[(parts_of(count, _UNPACK_BLOCK),)](
                bits.contiguous(), out.view(torch.uint8), count, BLOCK=_UNPACK_BLOCK, **_OPTIONS
            )
    return out


KERNELS: Kernels = {"pack_bits": pack_bits, "unpack_bits": unpack_bits}
AOT = [
    Ahead(name, kernel, {pointer: "*u8", "out": "*u8", "count": "i64"}, {"BLOCK": block}, _OPTIONS)
    for name, kernel, pointer, block in (
        ("pack_bits", _pack, "x", _PACK_BLOCK),
        ("unpack_bits", _unpack, "bits", _UNPACK_BLOCK),
    )
]
