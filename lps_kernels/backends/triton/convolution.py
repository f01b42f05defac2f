"""Convolutions of inference in Triton: some rows (filters) and columns (channel and tap) of a weight matrix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import Kernels
from lps_kernels.backends.triton._matrix import TILES, Product, ahead_of_time, contiguous, conv_constant
from lps_kernels.backends.triton._products import product_kernel
from lps_kernels.ops._matrix import Convolution


def _structured_conv(
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
    """See :mod:`lps_kernels.ops.convolution`; the indices are trusted to be ascending and in range."""
    conv = Convolution(kernel, stride, padding, dilation)
    fake = REGISTRY[f"structured_conv{dims}d"].fake
    out = fake(x, weight, columns, rows, bias, residual, outputs, *conv, groups, relu)
    height = outputs if rows is None else rows.numel()
    depth = x.shape[1] * conv.taps if columns is None else columns.numel()
    product = Product(x, out, rows, bias, residual, height, outputs, depth, relu, conv)
    weights = {"weight": weight.contiguous(), "columns": contiguous(columns), "owner": None, "bits": None, "task": 0}
    return product.run(product_kernel, TILES, weights)


KERNELS: Kernels = {f"structured_conv{dims}d": partial(_structured_conv, dims) for dims in (1, 2)}

_PADDED = Convolution([3, 3], [1, 1], [1, 1], [1, 1])
_ARGUMENTS = {"columns": "*i32", "rows": "*i32", "owner": None, "bits": None, "task": 0}
AOT = ahead_of_time("structured_conv2d", product_kernel, TILES, _ARGUMENTS, conv_constant(_PADDED))
