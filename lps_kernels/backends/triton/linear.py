"""Linear layers of inference in Triton: some rows and columns of a weight, or the weights of a task's mask."""

from __future__ import annotations

import torch
from torch import Tensor

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import Kernels
from lps_kernels.backends.triton._matrix import (
    TILES,
    Product,
    Tile,
    Tiles,
    ahead_of_time,
    contiguous,
    finish_ahead_of_time,
)
from lps_kernels.backends.triton._products import product_kernel

# Triton 3.7 fails on an fp64 product whose factor was masked by bytes.
NO_TENSOR_CORES = torch.float64
# A weight under a mask takes three loads, so its tiles are smaller.
MASKED_TILES: Tiles = {
    2: (Tile(128, 64, 32, 8, 2), Tile(64, 32, 32, 4, 2), Tile(16, 32, 32, 4, 2)),
    4: (Tile(128, 64, 16, 8, 2), Tile(64, 64, 16, 4, 2), Tile(16, 32, 16, 4, 2)),
    8: (Tile(16, 32, 16, 4, 1),),
}


def structured_linear(
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    """See :mod:`lps_kernels.ops.linear`; the indices are trusted to be ascending and in range."""
    out = REGISTRY["structured_linear"].fake(x, weight, columns, rows, bias, outputs, relu)
    height = outputs if rows is None else rows.numel()
    product = Product(x, out, rows, bias, None, height, outputs, weight.shape[1], relu)
    weights = {"weight": weight.contiguous(), "columns": contiguous(columns), "owner": None, "bits": None, "task": 0}
    return product.run(product_kernel, TILES, weights)


def masked_linear(
    x: Tensor, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, bias: Tensor | None, relu: bool
) -> Tensor:
    """See :mod:`lps_kernels.ops.linear`."""
    out = REGISTRY["masked_linear"].fake(x, w_bar, owner, bits, task, bias, relu)
    outputs, inputs = w_bar.shape
    product = Product(x, out, None, bias, None, outputs, outputs, inputs, relu)
    weights = {
        "weight": w_bar.contiguous(),
        "columns": None,
        "owner": owner.contiguous(),
        "bits": bits.contiguous(),
        "task": task,
    }
    return product.run(product_kernel, MASKED_TILES, weights, tensor_cores=x.dtype != NO_TENSOR_CORES)


KERNELS: Kernels = {"structured_linear": structured_linear, "masked_linear": masked_linear}

_STRUCTURED = {"columns": "*i32", "rows": "*i32", "owner": None, "bits": None, "task": 0, "residual": None}
_MASKED = {"columns": None, "rows": None, "owner": "*u8", "bits": "*u8", "residual": None}
AOT = [
    *finish_ahead_of_time(),
    *ahead_of_time("structured_linear", product_kernel, TILES, _STRUCTURED),
    *ahead_of_time("masked_linear", product_kernel, MASKED_TILES, _MASKED, without_tensor_cores=NO_TENSOR_CORES),
]
