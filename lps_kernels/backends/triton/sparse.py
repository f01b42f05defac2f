"""Layers with irregular weights in Triton: one bit per weight marks those stored.

A block's rows are packed in the order of how many weights they have. A small kernel first puts their bits in the order
of the outputs and counts where each word's values begin. Then every tile expands the bits of its rows, 32 columns at a
time, to a small dense matrix for the tensor cores. What the zeros in it meet must not matter, so Inf and NaN in the
input are left out of these products: a tile that met any goes over its depth a second time and adds the products
of the stored weights with them.
"""
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
from lps_kernels.backends.triton._matrix import Product, Tile, ahead_of_time, conv_constant
from lps_kernels.backends.triton._numbers import widen
from lps_kernels.backends.triton._products import multiply, read, read_examples, write_tile
from lps_kernels.ops._matrix import Convolution
from lps_kernels.packing import SPARSE_DEPTH, SPARSE_ROWS

PANEL_ROWS = tl.constexpr(SPARSE_ROWS)
BLOCK_DEPTH = tl.constexpr(SPARSE_DEPTH)
WORDS = tl.constexpr(SPARSE_DEPTH // 32)  # of a row's bits in a block

# The depth is that of one word of bits; rows divide a panel's.
TILES = {
    2: (Tile(64, 32, 32, 8, 2), Tile(16, 64, 32, 4, 2)),
    4: (Tile(64, 32, 32, 8, 2), Tile(16, 64, 32, 4, 2)),
    8: (Tile(16, 32, 32, 8, 1),),
}
SORT_CONSTANTS: dict[str, object] = {"PANEL": SPARSE_ROWS, "COUNT": SPARSE_DEPTH // 32}
SORT_OPTIONS: dict[str, object] = {"num_warps": 4}


@triton.jit
def ones_in(word):
    """How many bits of a uint32 are set: by pairs, nibbles and bytes, then all bytes added up by one product."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def sort_rows_kernel(words, targets, marks, starts, outputs, blocks, PANEL: tl.constexpr, COUNT: tl.constexpr):
    """The bits of one block's rows in the order of the outputs, as [words of the depth, outputs].

    With them go the places of each word's first value, counted from that of the block.
    """
    panel, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    tall = tl.minimum(outputs - panel * PANEL, PANEL)
    place = tl.arange(0, PANEL)
    line = panel.to(tl.int64) * PANEL * blocks + block * tall + place
    part = tl.arange(0, COUNT)[None, :]
    known = place < tall
    word = tl.load(words + line[:, None] * COUNT + part, mask=known[:, None], other=0)
    count = ones_in(word.to(tl.uint32, bitcast=True))
    weights = tl.sum(count, 1)
    start = (tl.cumsum(weights, 0) - weights)[:, None] + tl.cumsum(count, 1) - count
    row = panel * PANEL + tl.load(targets + line, mask=known, other=0).to(tl.int32)
    written = (block.to(tl.int64) * COUNT + part) * outputs + row[:, None]
    tl.store(marks + written, word, mask=known[:, None])
    tl.store(starts + written, start, mask=known[:, None])


@triton.jit
def read_word(marks, starts, offsets, row, step, panel, blocks, outputs):
    """One word of the bits of the rows [R] and where its values begin; no bits where there is no such row."""
    place = row.to(tl.int64) + step * outputs
    word = tl.load(marks + place, mask=row < outputs, other=0).to(tl.uint32, bitcast=True)
    start = tl.load(starts + place, mask=row < outputs, other=0)
    return word, start + tl.load(offsets + panel * blocks + step // WORDS)


@triton.jit
def read_present(values, start, word):
    """The weights [R, 32] that the rows' words mark, zeros between them. A row's weights stand side by side."""
    bit = tl.arange(0, 32).to(tl.uint32)[None, :]
    before = ones_in(word[:, None] & ((tl.full((1, 32), 1, tl.uint32) << bit) - 1))
    return read(values + start[:, None] + before, ((word[:, None] >> bit) & 1) != 0)


@triton.jit
def sign(x):
    """1, 0 or -1, and 0 for a NaN, exact on fp16 tensor cores."""
    return (x > 0).to(tl.float16) - (x < 0).to(tl.float16)


@triton.jit
def met_by(met, held, total):
    """The total plus the products of the stored weights [32, R] with each Inf and NaN among the examples [E, 32].

    A weight of the other sign turns an infinity around, and two that disagree make a NaN.
    """
    odd = ~(tl.abs(met) < float("inf"))
    direction = tl.where(odd, sign(met), 0)
    weighed = sign(held)
    nothing = tl.zeros(total.shape, tl.float32)
    # Infinities towards +Inf less those towards -Inf; all of them, with a NaN counting as more than there can be.
    balance = tl.dot(direction, weighed, nothing)
    is_nan = met != met  # noqa: PLR0124
    count = tl.dot(tl.where(is_nan, 64, tl.abs(direction)).to(tl.float16), tl.abs(weighed), nothing)
    agree = (count < 64) & (tl.abs(balance) == count)
    made = tl.where(count == 0, 0, tl.where(agree, balance * float("inf"), float("nan")))
    return total + made.to(total.dtype)


@triton.jit(do_not_specialize=["size_class"])
def sparse_kernel(
    x,  # [examples, inputs] or [images, inputs, image_height, image_width]
    values,
    marks,
    starts,
    offsets,
    out,
    rows,
    bias,
    residual,
    examples,
    height,
    outputs,
    depth,
    inputs,
    image_height,
    image_width,
    out_width,
    positions,
    each,  # the depth of one split: a multiple of a block's
    size_class,  # for the tuner alone
    CONV: tl.constexpr,
    SPLIT: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    EXAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of a product with irregular weights."""
    across = tl.cdiv(height, ROWS)
    example = tl.program_id(0) // across * EXAMPLES + tl.arange(0, EXAMPLES)
    row = tl.program_id(0) % across * ROWS + tl.arange(0, ROWS)
    panel = tl.program_id(0) % across * ROWS // PANEL_ROWS
    blocks = tl.cdiv(depth, BLOCK_DEPTH)
    first = tl.program_id(1) * (each // DEPTH)
    last = tl.minimum(first + each // DEPTH, tl.cdiv(depth, DEPTH))
    compute: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((EXAMPLES, ROWS), compute)
    odd = tl.zeros((EXAMPLES, DEPTH), tl.int1)
    for step in range(first, last):
        at = step * DEPTH + tl.arange(0, DEPTH)
        known = (example[:, None] < examples) & (at[None, :] < depth)
        met = read_examples(x, example, at, known, inputs, image_height, image_width, out_width, positions, CONV)
        word, start = read_word(marks, starts, offsets, row, step, panel, blocks, outputs)
        held = tl.trans(read_present(values, start, word))
        finite = tl.abs(widen(met)) < float("inf")
        odd = odd | ~finite
        total = multiply(tl.where(finite, met, 0), held, total, PRECISION)
    if tl.max(odd.to(tl.int32)) != 0:
        for step in range(first, last):
            at = step * DEPTH + tl.arange(0, DEPTH)
            known = (example[:, None] < examples) & (at[None, :] < depth)
            met = read_examples(x, example, at, known, inputs, image_height, image_width, out_width, positions, CONV)
            word, start = read_word(marks, starts, offsets, row, step, panel, blocks, outputs)
            held = tl.trans(read_present(values, start, word))
            total = met_by(widen(met), widen(held), total)
    write_tile(total, out, rows, bias, residual, example, row, examples, height, outputs, positions, SPLIT, RELU)


def _run(product: Product, values: Tensor, bits: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
    """Sort the rows, then multiply."""
    outputs, blocks = product.outputs, parts_of(product.depth, SPARSE_DEPTH)
    words = _words(bits)
    marks, starts = torch.empty_like(words), torch.empty_like(words)
    if words.numel() > 0 and product.out.numel() > 0:
        with on_device_of(product.x):
            sort_rows_kernel[(parts_of(outputs, SPARSE_ROWS) * blocks,)](
                words, targets.contiguous(), marks, starts, outputs, blocks, **SORT_CONSTANTS, **SORT_OPTIONS
            )
    packed = {"values": values.contiguous(), "marks": marks, "starts": starts, "offsets": offsets.contiguous()}
    return product.run(sparse_kernel, TILES, packed)


def _words(bits: Tensor) -> Tensor:
    """The bits as words of 32, which have to stand at multiples of four bytes."""
    bits = bits.contiguous()
    if bits.storage_offset() % 4 or bits.data_ptr() % 4:
        bits = bits.clone()
    return bits.view(torch.int32)


def sparse_linear(
    x: Tensor,
    values: Tensor,
    bits: Tensor,
    targets: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    """See :mod:`lps_kernels.ops.sparse`; the offsets are trusted."""
    out = REGISTRY["sparse_linear"].fake(x, values, bits, targets, offsets, bias, outputs, relu)
    product = Product(x, out, None, bias, None, outputs, outputs, x.shape[-1], relu)
    return _run(product, values, bits, targets, offsets)


def sparse_conv(
    x: Tensor,
    values: Tensor,
    bits: Tensor,
    targets: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    outputs: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    relu: bool,
) -> Tensor:
    """See :mod:`lps_kernels.ops.sparse`; the offsets are trusted."""
    conv = Convolution(kernel, stride, padding, dilation)
    fake = REGISTRY["sparse_conv"].fake
    out = fake(x, values, bits, targets, offsets, bias, residual, outputs, *conv, groups, relu)
    product = Product(x, out, None, bias, residual, outputs, outputs, x.shape[1] * conv.taps, relu, conv)
    return _run(product, values, bits, targets, offsets)


KERNELS: Kernels = {"sparse_linear": sparse_linear, "sparse_conv": sparse_conv}

_ARGUMENTS = {"marks": "*i32", "starts": "*i32", "offsets": "*i64", "rows": None}
_PADDED = Convolution([3, 3], [1, 1], [1, 1], [1, 1])
_SORT_TYPES = {"words": "*i32", "targets": "*u8", "marks": "*i32", "starts": "*i32", "outputs": "i32", "blocks": "i32"}
AOT = [
    Ahead("sort_rows", sort_rows_kernel, _SORT_TYPES, SORT_CONSTANTS, SORT_OPTIONS),
    *ahead_of_time("sparse_linear", sparse_kernel, TILES, {**_ARGUMENTS, "residual": None}),
    *ahead_of_time("sparse_conv", sparse_kernel, TILES, _ARGUMENTS, conv_constant(_PADDED)),
]
