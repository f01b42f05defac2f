"""The Triton kernels of matrix products: reading, multiplying, finishing and writing tiles of [examples, rows].

Every product is ``out = finish(x @ weight.T)``. An example is a row of x, or for a convolution an image and a position
in it: the patch that the convolution meets there is gathered while a tile is read, and never written to memory.
``CONV`` is None for a linear layer, else what :func:`lps_kernels.backends.triton._matrix.conv_constant` made.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._numbers import narrow, widen
from lps_kernels.backends.triton._owners import task_of
from lps_kernels.packing import FILTERS, PANEL

INTERPRETING = tl.constexpr(_launch.INTERPRETING)
LINEAR_PANEL = tl.constexpr(PANEL)
CONV_PANEL = tl.constexpr(FILTERS)


@triton.jit
def read(pointer, known):
    """Floats where they are known, else 0. The interpreter, which gets 16-bit arithmetic wrong, goes on in fp32."""
    loaded = tl.load(pointer, mask=known, other=0)
    if INTERPRETING:
        loaded = widen(loaded)
    return loaded


@triton.jit
def multiply(x, weight, total, PRECISION: tl.constexpr):
    """``total + x @ weight``, summed in the dtype of the total; without tensor cores where the precision is None.

    NVIDIA's tensor cores cut off what their sums have too many digits for, so a long sum of fp32 that they go on with
    drifts towards zero. They sum one tile's depth; ordinary cores add it to the total, and round.
    """
    if PRECISION is None:
        total += tl.sum(x[:, :, None] * weight[None, :, :], 1)
    elif (
        PRECISION == "ieee"
    ):  # 16-bit floats, whose own rounding is coarser; fp64, AMD and the interpreter, which round
        total = tl.dot(x, weight, total, input_precision=PRECISION, out_dtype=total.dtype)
    else:
        # Triton makes `total + dot(x, weight)` one `dot(x, weight, total)`, unless a limit is set on how many products
        # may be summed with less than full precision. It has no other effect on fp32.
        total += tl.dot(x, weight, input_precision=PRECISION, max_num_imprecise_acc=x.shape[1])
    return total


@triton.jit
def finished(total, place, output, known, bias, residual, RELU: tl.constexpr):
    """The sum plus bias and residual, clipped at zero; a NaN stays one."""
    if bias is not None:
        total += widen(tl.load(bias + output, mask=known, other=0))
    if residual is not None:
        total += widen(tl.load(residual + place, mask=known, other=0))
    if RELU:
        total = tl.where(total < 0, 0, total)
    return total


@triton.jit
def finish_kernel(
    parts,  # [splits, images, height, positions] or None
    out,  # [images, outputs, positions]
    rows,
    bias,
    residual,
    count,
    height,
    outputs,
    positions,
    splits,
    RELU: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the parts of a product in their order and finish it; without any part, finish zeros."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    place = start * BLOCK + tl.arange(0, BLOCK)
    known = place < count
    compute: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BLOCK,), compute)
    if parts is not None:
        for _ in range(splits):
            total += tl.load(parts + place, mask=known, other=0)
            parts += count
    line = place // positions
    output = line % height
    image = (line // height).to(tl.int64)
    if rows is not None:
        output = tl.load(rows + output, mask=known, other=0)
    written = (image * outputs + output) * positions + place % positions
    total = finished(total, written, output, known, bias, residual, RELU)
    tl.store(out + written, narrow(total, out.dtype.element_ty), mask=known)


@triton.jit
def read_examples(
    x, example, column, known, inputs, image_height, image_width, out_width, positions, CONV: tl.constexpr
):
    """What the examples [E] have at the columns [D] of the weight, as [E, D]; 0 in the padding and where unknown."""
    if CONV is None:
        place = example.to(tl.int64)[:, None] * inputs + column[None, :]
    else:
        channel, tap = column // CONV[0], column % CONV[0]
        down, right = tap // CONV[1] * CONV[6], tap % CONV[1] * CONV[7]
        image, position = example // positions, example % positions
        top = position // out_width * CONV[2] - CONV[4]
        left = position % out_width * CONV[3] - CONV[5]
        corner = image.to(tl.int64) * inputs * image_height * image_width + top * image_width + left
        beside = channel.to(tl.int64) * image_height * image_width + down * image_width + right
        place = corner[:, None] + beside[None, :]
        line, along = top[:, None] + down[None, :], left[:, None] + right[None, :]
        known = known & (line >= 0) & (line < image_height) & (along >= 0) & (along < image_width)
    return read(x + place, known)


@triton.jit
def read_weight(weight, owner, bits, task, row, at, depth, height, CONV: tl.constexpr):
    """The weights of the rows [R] at the depths [D], as [D, R]: packed in panels, or under a task's mask."""
    if owner is not None:
        place = row.to(tl.int64)[None, :] * depth + at[:, None]
        known = (at[:, None] < depth) & (row[None, :] < height)
        owns = task_of(tl.load(owner + place, mask=known, other=0)) == task
        bit = (tl.load(bits + (place >> 3), mask=known, other=0) >> (place & 7).to(tl.uint8)) & 1
        known = known & (owns | (bit != 0))
    elif CONV is None:  # whole panels, zeros behind the last row: read whole or not at all, so in one load
        panel = row // LINEAR_PANEL
        start = panel.to(tl.int64) * LINEAR_PANEL * depth + row % LINEAR_PANEL
        place = start[None, :] + at.to(tl.int64)[:, None] * LINEAR_PANEL
        known = (at[:, None] < depth) & ((panel * LINEAR_PANEL)[None, :] < height)
    else:  # the last panel is narrower
        panel = row // CONV_PANEL
        width = tl.minimum(height - panel * CONV_PANEL, CONV_PANEL)
        start = panel.to(tl.int64) * CONV_PANEL * depth + row % CONV_PANEL
        place = start[None, :] + at.to(tl.int64)[:, None] * width[None, :]
        known = (at[:, None] < depth) & (row[None, :] < height)
    return read(weight + place, known)


@triton.jit
def write_tile(
    total,
    out,
    rows,
    bias,
    residual,
    example,
    row,
    examples,
    height,
    outputs,
    positions,
    SPLIT: tl.constexpr,
    RELU: tl.constexpr,
):
    """Put a finished tile [E, R] at its rows, or leave it as this split's part for :func:`finish_kernel`."""
    known = (example[:, None] < examples) & (row[None, :] < height)
    image, position = (example // positions).to(tl.int64)[:, None], (example % positions)[:, None]
    if SPLIT:
        part = tl.program_id(1).to(tl.int64) * examples * height
        tl.store(out + part + (image * height + row[None, :]) * positions + position, total, mask=known)
    else:
        output = row
        if rows is not None:
            output = tl.load(rows + row, mask=row < height, other=0)
        place = (image * outputs + output[None, :]) * positions + position
        total = finished(total, place, output[None, :], known, bias, residual, RELU)
        tl.store(out + place, narrow(total, out.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["size_class", "task"])
def product_kernel(
    x,  # [examples, inputs] or [images, inputs, image_height, image_width]
    weight,
    columns,
    owner,
    bits,
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
    each,  # the depth of one split: a multiple of every tile's, so that only the end of the whole depth cuts a tile
    task,
    size_class,  # for the tuner alone
    CONV: tl.constexpr,
    SPLIT: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    EXAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of a product with some rows and columns of a weight, or with the weights of a task's mask."""
    across = tl.cdiv(height, ROWS)
    example = tl.program_id(0) // across * EXAMPLES + tl.arange(0, EXAMPLES)
    row = tl.program_id(0) % across * ROWS + tl.arange(0, ROWS)
    compute: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((EXAMPLES, ROWS), compute)
    first = tl.program_id(1) * each
    for start in range(first, tl.minimum(first + each, depth), DEPTH):
        at = start + tl.arange(0, DEPTH)
        column = at
        if columns is not None:
            column = tl.load(columns + at, mask=at < depth, other=0)
        known = (example[:, None] < examples) & (at[None, :] < depth)
        met = read_examples(x, example, column, known, inputs, image_height, image_width, out_width, positions, CONV)
        held = read_weight(weight, owner, bits, task, row, at, depth, height, CONV)
        total = multiply(met, held, total, PRECISION)
    write_tile(total, out, rows, bias, residual, example, row, examples, height, outputs, positions, SPLIT, RELU)
