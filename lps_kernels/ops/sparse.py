"""Layers with irregular weights for inference: one bit per weight marks those stored.

A weight that is not stored is not multiplied, so an Inf or NaN in the input reaches only the outputs that read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_device, check_dtype, check_shape, refuse, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, declare
from lps_kernels._samples import EDGE_SIZES, Draw, strided
from lps_kernels.ops._matrix import (
    TOLERANCE,
    Convolution,
    check_conv_input,
    check_finish,
    check_floats,
    check_linear_input,
    finish,
    multiply_present,
    outputs_bad_inputs,
    patches,
)
from lps_kernels.ops.bits import unpack_bits
from lps_kernels.ops.compose import opmath
from lps_kernels.ops.convolution import conv_bad_inputs, conv_cases, workload_inputs
from lps_kernels.ops.linear import BATCH
from lps_kernels.packing import SPARSE_DEPTH, SPARSE_ROWS, SPARSE_SLACK, SparseWeight, pack_sparse, unpack_sparse


def sparse_linear_reference(
    x: Tensor,
    values: Tensor,
    bits: Tensor,
    targets: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    """``x @ W.T`` plus bias, ReLU; the four tensors are ``pack_sparse(W)``."""
    y = _linear_fake(x, values, bits, targets, offsets, bias, outputs, relu)
    packed, inputs = SparseWeight(values, bits, targets, offsets), x.shape[-1]
    check_offsets("sparse_linear", packed)
    if y.numel() == 0:
        return y
    check_blocks("sparse_linear", packed, outputs, inputs)
    read = opmath(x.flatten(0, -2) if x.dim() > 1 else x[None])
    product = multiply_present(*_spread(packed, outputs, inputs), read)
    return finish(product, bias, None, relu, x.dtype).reshape(y.shape)


def _linear_fake(
    x: Tensor,
    values: Tensor,
    bits: Tensor,
    targets: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    del relu
    op = "sparse_linear"
    check_linear_input(op, x)
    result = (*x.shape[:-1], outputs)
    check_finish(op, x, x.shape[-1], outputs, bias, None, result)
    _check_packed(op, x, SparseWeight(values, bits, targets, offsets), outputs, x.shape[-1])
    return x.new_empty(result)


def sparse_conv_reference(
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
    """The convolution (one or two dimensions) with the matrix ``W``; the four tensors are ``pack_sparse(W)``."""
    conv = Convolution(kernel, stride, padding, dilation)
    y = _conv_fake(x, values, bits, targets, offsets, bias, residual, outputs, *conv, groups, relu)
    packed, inputs = SparseWeight(values, bits, targets, offsets), x.shape[1] * conv.taps
    check_offsets("sparse_conv", packed)
    if y.numel() == 0:
        return y
    check_blocks("sparse_conv", packed, outputs, inputs)
    met = patches(opmath(x), conv).transpose(1, 2)
    product = multiply_present(*_spread(packed, outputs, inputs), met.flatten(0, 1))
    product = product.reshape(len(x), met.shape[1], outputs).transpose(1, 2)
    return finish(product.reshape(y.shape), bias, residual, relu, x.dtype)


def _conv_fake(
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
    del relu
    op, conv = "sparse_conv", Convolution(kernel, stride, padding, dilation)
    check_conv_input(op, x, conv, groups, (1, 2))
    inputs, result = x.shape[1] * conv.taps, (x.shape[0], outputs, *conv.output_size(x.shape[2:]))
    check_finish(op, x, inputs, outputs, bias, residual, result)
    _check_packed(op, x, SparseWeight(values, bits, targets, offsets), outputs, inputs)
    return x.new_empty(result)


def _check_packed(op: str, x: Tensor, packed: SparseWeight, outputs: int, inputs: int) -> None:
    blocks = -(-inputs // SPARSE_DEPTH)
    check_floats(op, "values", packed.values, "x", x)
    expected = f"1 dimension of at least {SPARSE_SLACK} values"
    fits = packed.values.dim() == 1 and packed.values.numel() >= SPARSE_SLACK
    refuse_unless(fits, op, "values", expected, list(packed.values.shape))
    why = f"{outputs} rows and {inputs} columns, packed"
    shapes = ([outputs * blocks, SPARSE_DEPTH // 8], [outputs * blocks], [-(-outputs // SPARSE_ROWS) * blocks])
    dtypes = (torch.uint8, torch.uint8, torch.int64)
    for name, tensor, shape, dtype in zip(packed._fields[1:], packed[1:], shapes, dtypes, strict=True):
        check_device(op, name, tensor, "x", x)
        check_dtype(op, name, tensor, (dtype,))
        check_shape(op, name, tensor, shape, why)


def check_offsets(op: str, packed: SparseWeight) -> None:
    """Where blocks begin: in order, within the values. Not for tracing, which has no values."""
    before, count = 0, packed.values.numel() - SPARSE_SLACK
    for at, offset in enumerate(packed.offsets.tolist()):
        expected = f"offsets from 0 to {count} in ascending order"
        refuse_unless(before <= offset <= count, op, "offsets", expected, f"{offset} at position {at}")
        before = offset


def check_blocks(op: str, packed: SparseWeight, outputs: int, inputs: int) -> None:
    """What kernels rely on, offsets checked: a block's targets are its rows, its bits those of inputs that exist, and
    no more than there are values behind its offset. Not for tracing, which has no values.
    """
    blocks, count, first = -(-inputs // SPARSE_DEPTH), packed.values.numel() - SPARSE_SLACK, 0
    for number, offset in enumerate(packed.offsets.tolist()):
        panel, block = divmod(number, blocks)
        rows = min(SPARSE_ROWS, outputs - panel * SPARSE_ROWS)
        present = unpack_bits(packed.bits[first : first + rows].flatten(), [rows, SPARSE_DEPTH])
        behind = present[:, inputs - block * SPARSE_DEPTH :].any(1).tolist()
        seen = set()
        for row, target in enumerate(packed.targets[first : first + rows].tolist()):
            if target >= rows or target in seen:
                refuse(op, "targets", f"each of 0 to {rows - 1} once in a block", f"{target} at position {first + row}")
            seen.add(target)
            if behind[row]:
                refuse(op, "bits", f"none behind those of {inputs} inputs", f"one in row {first + row}")
        weights = int(present.count_nonzero())
        if weights > count - offset:
            expected = f"at most {count - offset} in block {number} (the values behind its offset)"
            refuse(op, "bits", expected, weights)
        first += rows


def _spread(packed: SparseWeight, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """The matrix, and where it has weights: one of 0 may be stored."""
    ones = packed._replace(values=torch.ones_like(packed.values))
    return opmath(unpack_sparse(packed, outputs, inputs)), unpack_sparse(ones, outputs, inputs) != 0


def sparse_matrix(draw: Draw, rows: int, columns: int, dtype: torch.dtype, density: float = 0.3) -> Tensor:
    """Normal weights of which about this share is not zero."""
    return torch.where(draw.uniform((rows, columns)) < density, draw.normal((rows, columns), dtype), 0)


def _linear_call(
    draw: Draw, dtype: torch.dtype, batch: Sequence[int], inputs: int, outputs: int, density: float = 0.3
) -> Args:
    packed = pack_sparse(sparse_matrix(draw, outputs, inputs, dtype, density))
    return draw.normal((*batch, inputs), dtype), *packed, draw.normal((outputs,), dtype), outputs, True


def _linear_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in EDGE_SIZES:
        yield Sample(f"{size} inputs", _linear_call(draw, dtype, (3,), size, 5))
        yield Sample(f"{size} outputs", _linear_call(draw, dtype, (1,), 11, size))
        yield Sample(f"{size} examples", _linear_call(draw, dtype, (size,), 9, 20))
    few = ((1, 0.1), (1, 0.6), (2, 0.2), (2, 1.0), (3, 0.0), (4, 0.1), (4, 0.5))
    for batch, density in (*few, (5, 0.9), (70, 0.2), (130, 0.5)):
        name = f"{batch} examples, {100 * density:.0f} % of 270 x 260"
        yield Sample(name, _linear_call(draw, dtype, (batch,), 260, 270, density))
    yield Sample("no inputs, many examples", _linear_call(draw, dtype, (9,), 0, 5))
    x, *packed, _, _, _ = _linear_call(draw, dtype, (2, 3), 12, 20)
    yield Sample("plain, three dimensions", (x, *packed, None, 20, False))
    yield Sample("not contiguous", (strided(x), *map(strided, packed), strided(draw.normal((20,), dtype)), 20, True))
    odd = x.clone()
    odd[0, 0, 3], odd[1, 1, 4] = torch.nan, torch.inf
    yield Sample("NaN and Inf", (odd, *packed, None, 20, False))
    yield Sample("NaN and Inf in one example", (odd[0, 0] + odd[1, 1], *packed, None, 20, False))
    values, *marks = packed
    yield Sample("NaN and Inf as weights", (odd, not_finite(values), *marks, None, 20, False))


def not_finite(values: Tensor) -> Tensor:
    """The same with an Inf and a NaN among the first; the last ones, which may be slack, are as they were."""
    out = values.clone()
    out[0], out[3] = torch.inf, torch.nan
    return out


def packed_bad_inputs(op: str, x: Tensor, rest: Args) -> Iterator[BadInput]:
    """Values of packed weights [7, 5], which only reading them shows; ``rest`` are the arguments behind them."""

    def bad(name: str, packed: SparseWeight, sentence: str) -> BadInput:
        return BadInput(name, (x, *packed, *rest), f"{op}: {sentence}", reads_values=True)

    packed = pack_sparse(torch.ones(7, 5))
    expected = "offsets: expected offsets from 0 to 35 in ascending order"
    for name, offset in (("offset", 36), ("offset below 0", -1)):
        changed = packed._replace(offsets=packed.offsets + offset)
        yield bad(name, changed, f"{expected}, got {offset} at position 0")
    for name, at, target in (("target beyond", 6, 7), ("target far beyond", 2, 255), ("target twice", 4, 1)):
        targets = packed.targets.clone()
        targets[at] = target
        sentence = f"targets: expected each of 0 to 6 once in a block, got {target} at position {at}"
        yield bad(name, packed._replace(targets=targets), sentence)
    bits = packed.bits.clone()
    bits[3, 0] |= 1 << 5
    yield bad("bit", packed._replace(bits=bits), "bits: expected none behind those of 5 inputs, got one in row 3")
    bits = packed.bits.clone()
    bits[6, 15] = 0x80
    yield bad("last bit", packed._replace(bits=bits), "bits: expected none behind those of 5 inputs, got one in row 6")
    behind = "(the values behind its offset)"
    short = packed._replace(values=packed.values[:-1])
    yield bad("fewer values than bits", short, f"bits: expected at most 34 in block 0 {behind}, got 35")
    none = packed._replace(values=packed.values[:16])
    yield bad("bits without values", none, f"bits: expected at most 0 in block 0 {behind}, got 35")
    late = packed._replace(offsets=packed.offsets + 2)
    yield bad("offset too late", late, f"bits: expected at most 33 in block 0 {behind}, got 35")


def _linear_bad_inputs() -> Iterator[BadInput]:
    op, x, packed = "lps::sparse_linear", torch.zeros(2, 5), pack_sparse(torch.ones(7, 5))
    values, bits, targets, offsets = packed
    rest = (None, 7, False)
    why = "7 rows and 5 columns, packed"
    yield BadInput(
        "x dtype",
        (x.int(), *packed, *rest),
        f"{op}: x: expected dtype float32, float64, bfloat16 or float16, got int32",
    )
    yield BadInput(
        "values dtype",
        (x, values.double(), bits, targets, offsets, *rest),
        f"{op}: values: expected dtype float32 (that of x), got float64",
    )
    yield BadInput(
        "values",
        (x, values[:10], bits, targets, offsets, *rest),
        f"{op}: values: expected 1 dimension of at least 16 values, got [10]",
    )
    yield BadInput(
        "bits",
        (x, values, bits[1:], targets, offsets, *rest),
        f"{op}: bits: expected shape [7, 16] ({why}), got [6, 16]",
    )
    yield BadInput(
        "targets",
        (x, values, bits, targets.int(), offsets, *rest),
        f"{op}: targets: expected dtype uint8, got int32",
    )
    yield BadInput(
        "offsets",
        (x, values, bits, targets, offsets[1:], *rest),
        f"{op}: offsets: expected shape [1] ({why}), got [0]",
    )
    yield from packed_bad_inputs(op, x, rest)
    yield from outputs_bad_inputs(op, [2], [], lambda outputs: (x, *packed, None, outputs, False))
    yield BadInput(
        "bias",
        (x, *packed, torch.zeros(6), 7, False),
        f"{op}: bias: expected shape [7] (one for each output), got [6]",
    )


def _conv_call(
    draw: Draw, dtype: torch.dtype, shape: Sequence[int], outputs: int, conv: Convolution, residual: bool
) -> Args:
    packed = pack_sparse(sparse_matrix(draw, outputs, shape[1] * conv.taps, dtype))
    added = draw.normal((shape[0], outputs, *conv.output_size(shape[2:])), dtype) if residual else None
    bias = draw.normal((outputs,), dtype)
    return draw.normal(shape, dtype), *packed, bias, added, outputs, *map(list, conv), 1, residual


def _conv_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for dims in (1, 2):
        for number, (name, shape, outputs, conv) in enumerate(conv_cases(dims)):
            args = _conv_call(draw, dtype, shape, outputs, conv, residual=number % 2 == 0)
            yield Sample(f"{name}, {dims} dimensions", args)
    conv = Convolution([3], [1], [1], [1])
    yield Sample("no channels", _conv_call(draw, dtype, (2, 0, 6), 5, conv, residual=False))
    yield Sample("many outputs", _conv_call(draw, dtype, (2, 50, 40), 300, conv, residual=True))
    x, *packed = _conv_call(draw, dtype, (2, 3, 6), 5, conv, residual=False)[:5]
    rest = (None, None, 5, *map(list, conv), 1, True)
    yield Sample("not contiguous", (strided(x), *map(strided, packed), *rest))
    odd = x.clone()
    odd[0, 1, 2], odd[1, 2, 0] = torch.nan, torch.inf
    yield Sample("NaN and Inf", (odd, *packed, *rest))
    values, *marks = packed
    yield Sample("NaN and Inf as weights, padded", (odd, not_finite(values), *marks, *rest))


def _conv_bad_inputs() -> Iterator[BadInput]:
    op, x, packed = "lps::sparse_conv", torch.zeros(2, 3, 6), pack_sparse(torch.ones(5, 9))
    conv = ([3], [1], [0], [1])
    yield BadInput(
        "x rank",
        (x[0], *packed, None, None, 5, *conv, 1, False),
        f"{op}: x: expected 3 or 4 dimensions, got 2",
    )
    yield BadInput(
        "groups",
        (x, *packed, None, None, 5, *conv, 3, False),
        f"{op}: groups: expected 1 (grouped convolutions have no packed form), got 3",
    )
    yield BadInput(
        "kernel",
        (x, *packed, None, None, 5, [3, 3], [1], [0], [1], 1, False),
        f"{op}: kernel: expected 1 ints from 1 to 2147483647, got [3, 3]",
    )
    yield from conv_bad_inputs(op, 1, lambda conv: (x, *packed, None, None, 5, *conv, 1, False))
    narrow = torch.zeros(2, 5, 6)
    yield from packed_bad_inputs(op, narrow, (None, None, 7, [1], [1], [0], [1], 1, False))
    yield from outputs_bad_inputs(op, [2], [4], lambda outputs: (x, *packed, None, None, outputs, *conv, 1, False))
    yield BadInput(
        "bits",
        (x, *packed, None, None, 4, *conv, 1, False),
        f"{op}: bits: expected shape [4, 16] (4 rows and 9 columns, packed), got [5, 16]",
    )
    yield BadInput(
        "residual",
        (x, *packed, None, torch.zeros(2, 5, 6), 5, *conv, 1, False),
        f"{op}: residual: expected shape [2, 5, 4] (that of the result), got [2, 5, 6]",
    )


def _linear_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    """A fifth of the weights of each layer, for 128 examples."""
    draw = Draw()
    return [_linear_call(draw, torch.float32, (BATCH,), prod(shape[1:]), shape[0], 0.2) for shape in shapes]


def _conv_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw, calls = Draw(), []
    for layer in shapes:
        dims = 2 if len(layer) == 4 else 1
        for outputs, shape, conv in workload_inputs(dims, [layer]):
            calls.append(_conv_call(draw, torch.float32, shape, outputs, conv, residual=False))
    return calls


def _weights(values: Tensor) -> int:
    return values.numel() - SPARSE_SLACK


def _linear_cost(x: Tensor, values: Tensor, bits: Tensor, *rest: Any) -> Cost:
    batch, outputs = prod(x.shape[:-1]), rest[3]
    moved = x.nbytes + values.nbytes + bits.nbytes + batch * outputs * x.element_size()
    return Cost(moved, 2 * batch * _weights(values))


def _conv_cost(x: Tensor, values: Tensor, bits: Tensor, *rest: Any) -> Cost:
    outputs, conv = rest[4], Convolution(*rest[5:9])
    positions = x.shape[0] * prod(conv.output_size(x.shape[2:]))
    moved = x.nbytes + values.nbytes + bits.nbytes + positions * outputs * x.element_size()
    return Cost(moved, 2 * positions * _weights(values))


sparse_linear = declare(
    "sparse_linear",
    schema="(Tensor x, Tensor values, Tensor bits, Tensor targets, Tensor offsets, Tensor? bias, int outputs, "
    "bool relu) -> Tensor",
    reference=sparse_linear_reference,
    fake=_linear_fake,
    dtypes=FLOATS,
    samples=_linear_samples,
    bad_inputs=_linear_bad_inputs,
    tolerance=TOLERANCE,
    cost=_linear_cost,
    workload=_linear_workload,
    sums="products",
)

sparse_conv = declare(
    "sparse_conv",
    schema="(Tensor x, Tensor values, Tensor bits, Tensor targets, Tensor offsets, Tensor? bias, Tensor? residual, "
    "int outputs, int[] kernel, int[] stride, int[] padding, int[] dilation, int groups, bool relu) -> Tensor",
    reference=sparse_conv_reference,
    fake=_conv_fake,
    dtypes=FLOATS,
    samples=_conv_samples,
    bad_inputs=_conv_bad_inputs,
    tolerance=TOLERANCE,
    cost=_conv_cost,
    workload=_conv_workload,
    sums="products",
)
