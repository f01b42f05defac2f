"""How weights lie in memory for the inference operators, and back.

Weights are packed once, when a task is cut out; operators and their references read the packed form. A linear layer
is stored in panels of 16 outputs, a convolution in panels of 6 filters, irregular weights in blocks of 256 rows and 128
columns with one bit per weight. Everything here is bookkeeping in torch: no values are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lps_kernels._checks import dtype_name
from lps_kernels.ops.bits import pack_bits, unpack_bits

PANEL = 16
FILTERS = 6
SPARSE_ROWS = 256
SPARSE_DEPTH = 128
# Kernels read whole vectors of values: this many zeros follow the last.
SPARSE_SLACK = 16


class SparseWeight(NamedTuple):
    """The nonzero weights of a matrix.

    By panels of 256 rows and in each by blocks of 128 columns. A block's rows are in the order of how many weights they
    have, so that a kernel's loop has the same length for many rows in a run: ``targets`` [rows x blocks] is the row's
    place in its panel, ``bits`` [rows x blocks, 16] marks its weights, ``offsets`` [panels x blocks] are where a
    block's ``values`` begin.
    """

    values: Tensor
    bits: Tensor
    targets: Tensor
    offsets: Tensor


def _check_matrix(function: str, weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.is_floating_point():
        got = f"{dtype_name(weight.dtype)} in {weight.dim()}"
        raise RuntimeError(f"lps_kernels.packing.{function}: weight: expected floats in 2 dimensions, got {got}")


def pack_linear(weight: Tensor) -> Tensor:
    """A matrix [rows, columns] as [ceil(rows / 16), columns, 16], zeros behind the last row."""
    _check_matrix("pack_linear", weight)
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -rows % PANEL))
    return padded.reshape(-(-rows // PANEL), PANEL, columns).transpose(1, 2).contiguous()


def unpack_linear(packed: Tensor, rows: int) -> Tensor:
    """The matrix [rows, columns] that :func:`pack_linear` packed."""
    panels, columns, _ = packed.shape
    return packed.transpose(1, 2).reshape(panels * PANEL, columns)[:rows]


def pack_conv(weight: Tensor) -> Tensor:
    """A matrix [rows, columns] as a flat tensor: six rows side by side, then the next six, the rest at the end."""
    _check_matrix("pack_conv", weight)
    rows = weight.shape[0]
    whole = rows - rows % FILTERS
    panels = weight[:whole].reshape(whole // FILTERS, FILTERS, weight.shape[1]).transpose(1, 2)
    return torch.cat([panels.reshape(-1), weight[whole:].t().reshape(-1)])


def unpack_conv(packed: Tensor, rows: int, columns: int) -> Tensor:
    """The matrix [rows, columns] that :func:`pack_conv` packed."""
    whole = rows - rows % FILTERS
    panels = packed[: whole * columns].reshape(whole // FILTERS, columns, FILTERS).transpose(1, 2)
    rest = packed[whole * columns :].reshape(columns, rows - whole).t()
    return torch.cat([panels.reshape(whole, columns), rest])


def pack_sparse(weight: Tensor) -> SparseWeight:
    """Pack the nonzero weights of a matrix [rows, columns]."""
    _check_matrix("pack_sparse", weight)
    rows, columns = weight.shape
    blocks = -(-columns // SPARSE_DEPTH)
    padded = torch.nn.functional.pad(weight, (0, blocks * SPARSE_DEPTH - columns))
    values, bits, targets, counts = [], [], [], []
    for top in range(0, rows, SPARSE_ROWS):
        for left in range(0, columns, SPARSE_DEPTH):
            block = padded[top : top + SPARSE_ROWS, left : left + SPARSE_DEPTH]
            present = block != 0
            order = present.sum(1).argsort(stable=True)
            targets.append(order.to(torch.uint8))
            bits.append(pack_bits(present[order].contiguous()).reshape(-1, SPARSE_DEPTH // 8))
            values.append(block[order][present[order]])
            counts.append(len(values[-1]))
    starts = torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)[:-1]
    slack = weight.new_zeros(SPARSE_SLACK)
    return SparseWeight(
        values=torch.cat([*values, slack]),
        bits=torch.cat([weight.new_empty((0, SPARSE_DEPTH // 8), dtype=torch.uint8), *bits]),
        targets=torch.cat([weight.new_empty(0, dtype=torch.uint8), *targets]),
        offsets=starts.to(weight.device),
    )


def unpack_sparse(packed: SparseWeight, rows: int, columns: int) -> Tensor:
    """The matrix [rows, columns] that :func:`pack_sparse` packed."""
    blocks = -(-columns // SPARSE_DEPTH)
    weight = packed.values.new_zeros(rows, blocks * SPARSE_DEPTH)
    offsets, at = packed.offsets.tolist(), 0
    for panel in range(0, rows, SPARSE_ROWS):
        height = min(SPARSE_ROWS, rows - panel)
        for block in range(blocks):
            start = offsets[panel // SPARSE_ROWS * blocks + block]
            present = unpack_bits(packed.bits[at : at + height].flatten(), [height, SPARSE_DEPTH])
            count = int(present.count_nonzero())
            sorted_rows = torch.zeros_like(present, dtype=weight.dtype)
            sorted_rows[present] = packed.values[start : start + count]
            columns_of = slice(block * SPARSE_DEPTH, (block + 1) * SPARSE_DEPTH)
            weight[panel + packed.targets[at : at + height].long(), columns_of] = sorted_rows
            at += height
    return weight[:, :columns]
