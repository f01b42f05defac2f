"""Convolutions for inference: some rows (filters) and columns (channel and tap) of the weight matrix.

The columns that are left are gathered while the input's patches are packed; filters that are gone leave their bias.
A residual is added before the ReLU, as in the last layer of a residual block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_shape
from lps_kernels._registry import Args, BadInput, Cost, Sample, declare
from lps_kernels._samples import EDGE_SIZES, Draw, strided
from lps_kernels.ops._matrix import (
    TOLERANCE,
    Convolution,
    check_ascending,
    check_conv_input,
    check_finish,
    check_floats,
    check_indices,
    finish,
    outputs_bad_inputs,
    patches,
)
from lps_kernels.ops.compose import opmath
from lps_kernels.ops.linear import some_of
from lps_kernels.packing import pack_conv, unpack_conv

SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? columns, Tensor? rows, Tensor? bias, Tensor? residual, int outputs, "
    "int[] kernel, int[] stride, int[] padding, int[] dilation, int groups, bool relu) -> Tensor"
)


def _reference(
    dims: int,
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
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
    """The convolution with the matrix ``W`` at ``rows`` and ``columns``; ``weight`` is ``pack_conv(W)``."""
    conv = Convolution(kernel, stride, padding, dilation)
    y = _fake(dims, x, weight, columns, rows, bias, residual, outputs, *conv, groups, relu)
    inputs, op = x.shape[1] * conv.taps, f"structured_conv{dims}d"
    check_ascending(op, "columns", columns, inputs)
    check_ascending(op, "rows", rows, outputs)
    height, depth = (limit if i is None else i.numel() for i, limit in ((rows, outputs), (columns, inputs)))
    met = patches(opmath(x), conv)
    product = opmath(unpack_conv(weight, height, depth)) @ (met if columns is None else met[:, columns.long()])
    if rows is not None:
        product = product.new_zeros(len(x), outputs, product.shape[2]).index_copy_(1, rows.long(), product)
    return finish(product.reshape(y.shape), bias, residual, relu, x.dtype)


def _fake(
    dims: int,
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
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
    del relu
    op, conv = f"structured_conv{dims}d", Convolution(kernel, stride, padding, dilation)
    check_conv_input(op, x, conv, groups, (dims,))
    inputs, result = x.shape[1] * conv.taps, (x.shape[0], outputs, *conv.output_size(x.shape[2:]))
    check_finish(op, x, inputs, outputs, bias, residual, result)
    depth = check_indices(op, "columns", columns, x, inputs)
    height = check_indices(op, "rows", rows, x, outputs)
    check_floats(op, "weight", weight, "x", x)
    check_shape(op, "weight", weight, [height * depth], f"{height} rows and {depth} columns, packed")
    return x.new_empty(result)


def conv_cases(dims: int) -> Iterator[tuple[str, tuple[int, ...], int, Convolution]]:
    """Name, shape of the input, outputs and convolution, around the edges of what kernels do."""

    def conv(kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> Convolution:
        return Convolution(*([number] * dims for number in (kernel, stride, padding, dilation)))

    for size in EDGE_SIZES[1:]:
        yield f"{size} positions", (1, 1, size) if dims == 1 else (1, 1, 1, size), 1, conv(1)
    yield "no images", (0, 2, *[5] * dims), 3, conv(3)
    yield "no outputs", (2, 2, *[5] * dims), 0, conv(3)
    yield "padded", (3, 4, *[9] * dims), 13, conv(3, padding=1)
    yield "more padding than input", (2, 3, *[2] * dims), 7, conv(3, padding=4, dilation=2)
    yield "strided", (2, 5, *[17] * dims), 70, conv(3, stride=2, padding=1)
    yield "dilated", (2, 3, *[15] * dims), 6, conv(3, stride=3, padding=2, dilation=2)
    yield "deep", (3, 110 if dims == 1 else 34, *[7] * dims), 20, conv(3, padding=1)
    yield "wide", (1, 3, *[70 if dims == 1 else 12] * dims), 9, conv(1)
    yield "rows in pieces", (3, 3, *[20] * dims), 7, conv(3)
    yield "rows in pieces, dilated", (1, 2, *[40] * dims), 70, conv(3, dilation=4)
    if dims == 2:
        yield "oblong", (2, 3, 5, 11), 8, Convolution([1, 4], [2, 1], [0, 3], [1, 2])


def _call(
    draw: Draw, dtype: torch.dtype, shape: Sequence[int], outputs: int, conv: Convolution, *, columns: bool, rows: bool
) -> Args:
    inputs, size = shape[1] * conv.taps, conv.output_size(shape[2:])
    read, written = some_of(inputs, draw) if columns else None, some_of(outputs, draw) if rows else None
    depth, height = inputs if read is None else read.numel(), outputs if written is None else written.numel()
    weight = pack_conv(draw.normal((height, depth), dtype))
    x, bias = draw.normal(shape, dtype), draw.normal((outputs,), dtype)
    residual = draw.normal((shape[0], outputs, *size), dtype) if rows else None
    return x, weight, read, written, bias, residual, outputs, *map(list, conv), 1, columns


def _samples(dims: int, dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for name, shape, outputs, conv in conv_cases(dims):
        for columns, rows in ((False, False), (True, False), (False, True), (True, True)):
            args = _call(draw, dtype, shape, outputs, conv, columns=columns, rows=rows)
            yield Sample(f"{name}, columns {columns}, rows {rows}", args)
    conv = Convolution([3] * dims, [1] * dims, [1] * dims, [1] * dims)
    x, weight, *_ = _call(draw, dtype, (2, 3, *[6] * dims), 5, conv, columns=False, rows=False)
    rest = (5, *map(list, conv), 1, True)
    yield Sample("plain", (x, weight, None, None, None, None, *rest))
    residual = draw.normal((2, 5, *[6] * dims), dtype)
    yield Sample("not contiguous", (strided(x), strided(weight), None, None, None, strided(residual), *rest))
    none = torch.empty(0, dtype=torch.int32)
    yield Sample("no rows", (x, weight[:0], None, none, draw.normal((5,), dtype), residual, *rest))
    yield Sample("no columns", (x, weight[:0], none, None, draw.normal((5,), dtype), None, *rest))
    odd = x.clone()
    odd[0, 1, 2], odd[1, 2, 0] = torch.nan, torch.inf
    yield Sample("NaN and Inf", (odd, weight, None, None, None, None, *rest))
    weight = weight.clone()
    weight[0], weight[7] = torch.inf, torch.nan
    yield Sample("NaN and Inf as weights, padded", (odd, weight, None, None, None, None, *rest))


def conv_bad_inputs(op: str, dims: int, call: Callable[[Sequence[Sequence[int]]], Args]) -> Iterator[BadInput]:
    """Convolutions of 3 channels of size 6 that are refused: numbers that do not fit, and those that would overflow."""
    most, size = 2**31 - 1, [6] * dims
    right: dict[str, list[int]] = {"kernel": [3], "stride": [1], "padding": [0], "dilation": [1]}

    def bad(name: str, change: dict[str, list[int]], sentence: str) -> BadInput:
        numbers = [many if len(many) > 1 else many * dims for many in (right | change).values()]
        return BadInput(name, call(numbers), f"{op}: {sentence}")

    for name in right:
        least = 0 if name == "padding" else 1
        for number in (least - 1, -(2**63), 2**31, 2**61, 2**63 - 1):
            sentence = f"{name}: expected {dims} ints from {least} to {most}, got {[number] * dims}"
            yield bad(f"{name} of {number}", {name: [number]}, sentence)
        sentence = f"{name}: expected {dims} ints from {least} to {most}, got {[1] * 3}"
        yield bad(f"{name} of three numbers", {name: [1] * 3}, sentence)
    yield bad("large kernel", {"kernel": [7]}, f"kernel: expected a kernel that fits into {size}, got {[7] * dims}")
    sentence = f"kernel: expected a kernel that fits into {size}, got {[3] * dims}"
    yield bad("large dilation", {"dilation": [most]}, sentence)
    expected = f"kernel: expected channels and kernel sizes that multiply to at most {most}"
    sentence = f"{expected}, got {[3, *[most] * dims]}"
    yield bad("large matrix", {"kernel": [most], "padding": [most]}, sentence)


def _bad_inputs(dims: int) -> Iterator[BadInput]:
    op, ones, zeros, threes = f"lps::structured_conv{dims}d", [1] * dims, [0] * dims, [3] * dims
    size = [6] * dims
    x, weight, taps = torch.zeros(2, 3, *size), torch.zeros(5 * 3 * 3**dims), 3 * 3**dims
    conv = (threes, ones, zeros, ones)
    index = torch.tensor([0, 3], dtype=torch.int32)
    plain = (None, None, None, None, 5)

    def bad(name: str, args: Args, sentence: str, *, reads_values: bool = False) -> BadInput:
        return BadInput(name, args, f"{op}: {sentence}", reads_values)

    expected = "x: expected dtype float32, float64, bfloat16 or float16, got int32"
    yield bad("x dtype", (x.int(), weight, *plain, *conv, 1, False), expected)
    yield bad("x rank", (x[0], weight, *plain, *conv, 1, False), f"x: expected {dims + 2} dimensions, got {dims + 1}")
    expected = "groups: expected 1 (grouped convolutions have no packed form), got 3"
    yield bad("groups", (x, weight, *plain, *conv, 3, False), expected)
    yield from conv_bad_inputs(op, dims, lambda conv: (x, weight, *plain, *conv, 1, False))
    expected = f"weight: expected shape [{5 * taps}] (5 rows and {taps} columns, packed), got [{5 * taps - 1}]"
    yield bad("weight", (x, weight[1:], *plain, *conv, 1, False), expected)
    expected = "weight: expected dtype float32 (that of x), got float64"
    yield bad("weight dtype", (x, weight.double(), *plain, *conv, 1, False), expected)
    expected = f"columns: expected ascending indices below {taps}, got {taps} at position 1"
    some = (weight[:10], index + (taps - 3), None, None, None, 5)
    yield bad("columns", (x, *some, *conv, 1, False), expected, reads_values=True)
    expected = "rows: expected ascending indices below 5, got 5 at position 1"
    unordered = (x, weight[: 2 * taps], None, index + 2, None, None, 5, *conv, 1, False)
    yield bad("rows", unordered, expected, reads_values=True)
    expected = "bias: expected shape [5] (one for each output), got [4]"
    yield bad("bias", (x, weight, None, None, torch.zeros(4), None, 5, *conv, 1, False), expected)
    expected = f"residual: expected shape {[2, 5, *[4] * dims]} (that of the result), got {[2, 5, *size]}"
    yield bad("residual", (x, weight, None, None, None, torch.zeros(2, 5, *size), 5, *conv, 1, False), expected)
    yield from outputs_bad_inputs(
        op, [2], [4] * dims, lambda outputs: (x, weight, *plain[:4], outputs, *conv, 1, False)
    )
    expected = f"columns: expected at most {taps} indices, got {taps + 1}"
    yield bad("more columns", (x, weight, torch.arange(taps + 1).int(), *plain[1:], *conv, 1, False), expected)


def workload_inputs(dims: int, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, tuple[int, ...], Convolution]]:
    """Outputs, input shape and convolution of layers of these shapes; those of another rank as pointwise ones."""
    for outputs, *rest in shapes:
        kernel = list(rest[1:]) if len(rest) == dims + 1 else [1] * dims
        channels = rest[0] if len(rest) == dims + 1 else prod(rest)
        half = [side // 2 for side in kernel]
        yield (
            outputs,
            (16, channels, *[32 if dims == 1 else 8] * dims),
            Convolution(kernel, [1] * dims, half, [1] * dims),
        )


def _workload(dims: int, shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    """A fifth of the columns of each layer."""
    draw, calls = Draw(), []
    for outputs, shape, conv in workload_inputs(dims, shapes):
        columns = torch.arange(0, shape[1] * conv.taps, 5, dtype=torch.int32)
        weight = pack_conv(draw.normal((outputs, columns.numel())))
        bias = draw.normal((outputs,))
        calls.append((draw.normal(shape), weight, columns, None, bias, None, outputs, *map(list, conv), 1, True))
    return calls


def _cost(dims: int, x: Tensor, weight: Tensor, *rest: Any) -> Cost:
    conv, outputs = Convolution(*rest[5:9]), rest[4]
    positions = x.shape[0] * prod(conv.output_size(x.shape[2:]))
    return Cost(x.nbytes + weight.nbytes + positions * outputs * x.element_size(), 2 * positions * weight.numel())


structured_conv1d, structured_conv2d = (
    declare(
        f"structured_conv{dims}d",
        schema=SCHEMA,
        reference=partial(_reference, dims),
        fake=partial(_fake, dims),
        dtypes=FLOATS,
        samples=partial(_samples, dims),
        bad_inputs=partial(_bad_inputs, dims),
        tolerance=TOLERANCE,
        cost=partial(_cost, dims),
        workload=partial(_workload, dims),
        sums="products",
        tensor_cores=True,
    )
    for dims in (1, 2)
)
