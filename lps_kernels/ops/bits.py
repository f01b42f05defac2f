"""Bit packing: eight booleans per byte, the lowest index in the lowest bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from lps_kernels._checks import check_dtype, check_shape, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided

EXACT = Tolerance({torch.bool: 0.0, torch.uint8: 0.0}, "bits are moved, never computed")


def packed_size(count: int) -> int:
    """Bytes that hold ``count`` bits."""
    return (count + 7) // 8


def pack_reference(x: Tensor) -> Tensor:
    """Flatten ``x`` and put element ``8 i + j`` into bit ``j`` of byte ``i``; unused bits of the last byte are 0."""
    check_dtype("pack_bits", "x", x, (torch.bool,))
    flat = x.reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=x.device)
    return (padded * weights).sum(1, dtype=torch.uint8)


def _pack_fake(x: Tensor) -> Tensor:
    check_dtype("pack_bits", "x", x, (torch.bool,))
    return x.new_empty((packed_size(x.numel()),), dtype=torch.uint8)


def unpack_reference(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The boolean tensor of this shape whose packed form is ``bits``."""
    _check_unpack(bits, shape)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    flat = (bits.unsqueeze(1) >> shifts) & 1
    return flat.reshape(-1)[: prod(shape)].to(torch.bool).reshape(tuple(shape))


def _unpack_fake(bits: Tensor, shape: Sequence[int]) -> Tensor:
    _check_unpack(bits, shape)
    return bits.new_empty(tuple(shape), dtype=torch.bool)


def _check_unpack(bits: Tensor, shape: Sequence[int]) -> None:
    check_dtype("unpack_bits", "bits", bits, (torch.uint8,))
    fits = all(size >= 0 for size in shape) and prod(shape) < 2**63
    expected = "sizes whose product is at least 0 and fits in 64 bits"
    refuse_unless(fits, "unpack_bits", "shape", expected, list(shape))
    check_shape("unpack_bits", "bits", bits, [packed_size(prod(shape))], f"the bits of shape {list(shape)}")


def _pack_samples(_: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in (*EDGE_SIZES, 255, 256, 257, LARGE_SIZE):
        yield Sample(f"size {size}", (draw.boolean((size,)),))
    yield Sample("matrix", (draw.boolean((5, 7)),))
    yield Sample("not contiguous", (strided(draw.boolean((5, 7))),))


def _unpack_samples(_: torch.dtype) -> Iterator[Sample]:
    for sample in _pack_samples(torch.bool):
        x = sample.args[0]
        yield Sample(sample.name, (pack_reference(x), list(x.shape)))
    yield Sample("not contiguous bits", (strided(pack_reference(Draw().boolean((100,)))), [100]))


def _pack_bad_inputs() -> Iterator[BadInput]:
    yield BadInput("dtype", (torch.zeros(3),), "lps::pack_bits: x: expected dtype bool, got float32")


def _unpack_bad_inputs() -> Iterator[BadInput]:
    bits = torch.zeros(2, dtype=torch.uint8)
    op = "lps::unpack_bits"
    fitting = "sizes whose product is at least 0 and fits in 64 bits"
    yield BadInput("dtype", (torch.zeros(2), [9]), f"{op}: bits: expected dtype uint8, got float32")
    yield BadInput("length", (bits, [17]), f"{op}: bits: expected shape [3] (the bits of shape [17]), got [2]")
    yield BadInput("rank", (bits[None], [9]), f"{op}: bits: expected shape [2] (the bits of shape [9]), got [1, 2]")
    yield BadInput("negative", (bits, [-1]), f"{op}: shape: expected {fitting}, got [-1]")
    yield BadInput("overflow", (bits, [2**32, 2**31]), f"{op}: shape: expected {fitting}, got [{2**32}, {2**31}]")


def _pack_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    return [(draw.boolean(shape),) for shape in shapes]


def _unpack_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    return [(pack_reference(args[0]), list(args[0].shape)) for args in _pack_workload(shapes)]


pack_bits = declare(
    "pack_bits",
    schema="(Tensor x) -> Tensor",
    reference=pack_reference,
    fake=_pack_fake,
    dtypes=(torch.bool,),
    samples=_pack_samples,
    bad_inputs=_pack_bad_inputs,
    tolerance=EXACT,
    cost=lambda x: Cost(x.numel() + packed_size(x.numel()), 0),
    workload=_pack_workload,
)

unpack_bits = declare(
    "unpack_bits",
    schema="(Tensor bits, int[] shape) -> Tensor",
    reference=unpack_reference,
    fake=_unpack_fake,
    dtypes=(torch.uint8,),
    samples=_unpack_samples,
    bad_inputs=_unpack_bad_inputs,
    tolerance=EXACT,
    cost=lambda bits, shape: Cost(prod(shape) + bits.numel(), 0),
    workload=_unpack_workload,
)
