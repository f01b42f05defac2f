"""How the weights of one layer are held: the choice between formats, and the layers themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from lps.deploy.extraction.ops import Convs
from lps_kernels.costs import Format, Work, seconds
from lps_kernels.cutout import LayerSummary
from lps_kernels.layers import SparseConv, SparseLinear, StructuredConv, StructuredLinear

Choice = Format | Literal["gather"]
KERNEL_FORMATS = ("structured", "sparse")
FORMATS: tuple[Format, ...] = ("dense", "structured", "sparse")  # the earlier one wins a tie
# Of a layer's weights, the share that whole rows and columns may leave for it to be `structured` on a GPU.
GPU_STRUCTURED = 0.5
GPU_NOTE = (
    "on a GPU scattered weights are held dense, and so is a layer of which whole rows and columns leave more than "
    f"{100 * GPU_STRUCTURED:.0f} %: the model of costs is fitted to CPUs, and tensor cores should do dense products "
    "faster; the speed-ups of this table are those of a CPU, nothing was measured on a GPU"
)


@dataclass(frozen=True)
class Target:
    """What a cut-out is made for: batches of a size on a kind of device; if ``portable``, with torch's layers alone."""

    batch_size: int
    portable: bool
    device: torch.device

    @property
    def notes(self) -> list[str]:
        """What is said of every cut-out for it."""
        return [GPU_NOTE] if self.on_gpu and not self.portable else []

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU runs it."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Shrunk:
    """A layer on the channels that are left, before its format is chosen."""

    template: nn.Linear | Convs  # as it was; stride, padding and dilation stay
    weight: Tensor
    bias: Tensor | None
    positions: int  # how often the weight is applied to a batch

    @property
    def matrix(self) -> Tensor:
        """The weight as a GEMM matrix."""
        return self.weight.flatten(1)

    @property
    def work(self) -> Work:
        """Sizes and counts that the cost model reads, for one batch."""
        used = self.matrix != 0
        return Work(
            outputs=used.shape[0],
            inputs=used.shape[1],
            rows=int(used.any(1).sum()),
            columns=int(used.any(0).sum()),
            nonzeros=int(used.sum()),
            positions=self.positions,
            taps=prod(self.weight.shape[2:]),
        )


def choose(shrunk: Shrunk, target: Target) -> Choice:
    """The format that is expected to be fastest on the target.

    A portable layer is dense; behind a selection of its inputs if it ignores more than half of them. There is no model
    of costs for GPUs: a layer there is a smaller dense product, or it stays dense.
    """
    if target.portable or shrunk.weight.dtype != torch.float32:  # in float64 our layers are plain loops
        ignores_most = 0 < 2 * int(shrunk.matrix.any(0).sum()) < shrunk.matrix.shape[1]
        return "gather" if isinstance(shrunk.template, nn.Linear) and ignores_most else "dense"
    work = shrunk.work
    if work.nonzeros == 0:  # a constant: only the bias is left
        return "dense"
    if target.on_gpu:
        smaller = work.rows * work.columns <= GPU_STRUCTURED * work.outputs * work.inputs
        return "structured" if smaller else "dense"
    return min(FORMATS, key=lambda format: seconds(format, work))


def build(shrunk: Shrunk, format: Choice, relu: bool) -> nn.Module:
    """The layer in this format; ``relu`` is for :data:`KERNEL_FORMATS` only.

    In format `gather` the indices of the inputs it reads are its buffer `columns`.
    """
    template, weight, bias = shrunk.template, shrunk.weight, shrunk.bias
    if format == "dense":
        return _torch_layer(template, weight, bias)
    used = shrunk.matrix != 0
    rows, columns = used.any(1).nonzero().flatten(), used.any(0).nonzero().flatten()
    if format == "gather":
        layer = _torch_layer(template, weight[:, columns], bias)
        layer.register_buffer("columns", columns)
        return layer
    if format == "sparse":
        return _sparse_layer(template, weight, bias, relu)
    packed = shrunk.matrix[rows][:, columns].contiguous()
    left_rows = None if len(rows) == used.shape[0] else rows
    left_columns = None if len(columns) == used.shape[1] else columns
    if isinstance(template, nn.Linear):
        sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0]}
        return StructuredLinear(packed, bias, columns=left_columns, rows=left_rows, relu=relu, **sizes)
    return StructuredConv(
        packed,
        bias,
        in_channels=weight.shape[1],
        out_channels=weight.shape[0],
        kernel_size=weight.shape[2:],
        stride=template.stride,
        padding=_padding(template),
        dilation=template.dilation,
        columns=left_columns,
        rows=left_rows,
        relu=relu,
    )


def _sparse_layer(template: nn.Linear | Convs, weight: Tensor, bias: Tensor | None, relu: bool) -> nn.Module:
    if isinstance(template, nn.Linear):
        return SparseLinear(weight, bias, relu=relu)
    places = {"stride": template.stride, "padding": _padding(template), "dilation": template.dilation}
    return SparseConv(weight, bias, relu=relu, **places)


def _padding(conv: Convs) -> tuple[int, ...]:
    assert not isinstance(conv.padding, str)  # ops.is_layer checks it
    return conv.padding


def _torch_layer(template: nn.Linear | Convs, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """torch's layer with these weights, made on the meta device so that the user's random generator is not advanced."""
    outputs, inputs = weight.shape[:2]
    layer: nn.Module
    if isinstance(template, nn.Linear):
        layer = nn.Linear(inputs, outputs, bias is not None, device="meta")
    else:
        make: type[nn.Module] = type(template)
        geometry = (weight.shape[2:], template.stride, _padding(template), template.dilation)
        layer = make(inputs, outputs, *geometry, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def summarise(name: str, shrunk: Shrunk, format: Choice, layer: nn.Module) -> LayerSummary:
    """What became of the layer."""
    before, after = shrunk.template.weight, shrunk.work
    whole = (after.rows, after.columns) == (after.outputs, after.inputs)
    rows, columns = before.shape[0], before[0].numel()
    dense = Work(rows, columns, rows, columns, before.numel(), shrunk.positions, after.taps)
    if format == "gather":
        after = replace(after, inputs=after.columns)
    return LayerSummary(
        name=name,
        format="packed" if format == "structured" and whole else format,
        before=tuple(before.shape),
        after=tuple(shrunk.weight.shape),
        nonzeros=after.nonzeros,
        held_bytes=_bytes([*layer.parameters(), *layer.buffers()]),
        dense_bytes=_bytes([*shrunk.template.parameters()]),
        seconds=seconds("dense" if format == "gather" else format, after),
        dense_seconds=seconds("dense", dense),
        work=after,
        dense_work=dense,
    )


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
