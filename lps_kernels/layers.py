"""Layers with packed weights, for inference: what a task that was cut out of a network is made of.

They hold buffers and no parameters, so nothing in them trains. Buffers are registered in the order of the operator's
arguments and passed in that order: looking each one up by its name takes a third of a small layer's time.

A layer's buffers are checked when it is made and when a state dict is loaded into it, their values too: kernels on a
GPU, which do not wait for values, take what these hold as indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from lps_kernels._registry import REGISTRY
from lps_kernels.ops import sparse_conv, sparse_linear, structured_conv1d, structured_conv2d, structured_linear
from lps_kernels.ops._matrix import check_ascending
from lps_kernels.ops.sparse import check_blocks, check_offsets
from lps_kernels.packing import SparseWeight, pack_conv, pack_linear, pack_sparse


def _indices(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.to(torch.int32)


def _copied(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().clone()


class _Packed(nn.Module, ABC):
    """A layer whose buffers are refused, all of them, where the operator would refuse one."""

    def _check(self, buffers: Mapping[str, Tensor | None]) -> None:
        """Shapes, dtypes and, unless they are on the meta device, values of the buffers."""
        meta = any(buffer is not None and buffer.is_meta for buffer in buffers.values())
        device = torch.device("meta" if meta else "cpu")
        tensors = [None if buffer is None else _readable(buffer, device) for buffer in buffers.values()]
        self._check_shapes(device, tensors)
        if not meta:
            self._check_indices(tensors)

    @abstractmethod
    def _check_shapes(self, device: torch.device, buffers: Sequence[Tensor | None]) -> None:
        """Refuse shapes and dtypes, by the operator's shape function."""

    @abstractmethod
    def _check_indices(self, buffers: Sequence[Any]) -> None:
        """Refuse values of the buffers that serve as indices."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        buffers = {name: state_dict.get(prefix + name, own) for name, own in self._buffers.items() if own is not None}
        try:
            for name, buffer in buffers.items():
                if not isinstance(buffer, Tensor):
                    raise RuntimeError(f"{name}: expected a tensor, got {type(buffer).__name__}")
            self._check({name: buffers.get(name) for name in self._buffers})
        except RuntimeError as error:
            # The last argument collects what load_state_dict raises in the end. Nothing of this layer is loaded.
            rest[-1].append(f"{prefix.removesuffix('.') or type(self).__name__}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _readable(buffer: Tensor, device: torch.device) -> Tensor:
    """Indices where their values can be read. Of floats nothing but the shape matters, and loading converts them."""
    if buffer.is_floating_point():
        return torch.empty(buffer.shape, device=device)
    return buffer.detach().to(device)


def _smallest(channels: int, shape: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """No images, each as large as the kernel."""
    kernel, _, _, dilation = shape
    size = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    return torch.empty((0, channels, *size), device=device)


class StructuredLinear(_Packed):
    """A linear layer of which only some rows and columns are left.

    ``weight`` [rows, columns] holds those; ``columns`` and ``rows`` say in ascending order which they are, None that
    all are left. Outputs whose row is gone hold their bias.
    """

    columns: Tensor | None
    rows: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        in_features: int,
        out_features: int,
        columns: Tensor | None = None,
        rows: Tensor | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.relu = in_features, out_features, relu
        self.register_buffer("weight", pack_linear(weight.detach()))
        self.register_buffer("columns", _indices(columns))
        self.register_buffer("rows", _indices(rows))
        self.register_buffer("bias", _copied(bias))
        self._check(self._buffers)

    def _check_shapes(self, device: torch.device, buffers: Sequence[Tensor | None]) -> None:
        x = torch.empty((0, self.in_features), device=device)
        REGISTRY["structured_linear"].fake(x, *buffers, self.out_features, self.relu)

    def _check_indices(self, buffers: Sequence[Any]) -> None:
        check_ascending("structured_linear", "columns", buffers[1], self.in_features)
        check_ascending("structured_linear", "rows", buffers[2], self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """As ``nn.Linear``, with ReLU if ``relu``."""
        y: Tensor = structured_linear(x, *self._buffers.values(), self.out_features, self.relu)
        return y

    def extra_repr(self) -> str:
        """Sizes as in ``nn.Linear``, and what is left."""
        return f"{self.in_features}, {self.out_features}, {_left(self.columns, self.rows)}, relu={self.relu}"


class StructuredConv(_Packed):
    """A convolution in one or two dimensions of which only some rows and columns of the weight matrix are left.

    A column is a channel and a tap: ``channel * taps + tap``. Otherwise as :class:`StructuredLinear`.
    """

    columns: Tensor | None
    rows: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        columns: Tensor | None = None,
        rows: Tensor | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.relu = in_channels, out_channels, relu
        self.shape = [list(kernel_size), list(stride), list(padding), list(dilation)]
        self.register_buffer("weight", pack_conv(weight.detach()))
        self.register_buffer("columns", _indices(columns))
        self.register_buffer("rows", _indices(rows))
        self.register_buffer("bias", _copied(bias))
        self._check(self._buffers)

    def _op(self) -> str:
        return f"structured_conv{len(self.shape[0])}d"

    def _check_shapes(self, device: torch.device, buffers: Sequence[Tensor | None]) -> None:
        x = _smallest(self.in_channels, self.shape, device)
        REGISTRY[self._op()].fake(x, *buffers, None, self.out_channels, *self.shape, 1, self.relu)

    def _check_indices(self, buffers: Sequence[Any]) -> None:
        check_ascending(self._op(), "columns", buffers[1], self.in_channels * prod(self.shape[0]))
        check_ascending(self._op(), "rows", buffers[2], self.out_channels)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """As ``nn.Conv1d`` or ``nn.Conv2d``; the residual is added before the ReLU, if the layer has one."""
        op = structured_conv1d if len(self.shape[0]) == 1 else structured_conv2d
        y: Tensor = op(x, *self._buffers.values(), residual, self.out_channels, *self.shape, 1, self.relu)
        return y

    def extra_repr(self) -> str:
        """Sizes as in ``nn.Conv2d``, and what is left."""
        kernel, stride, padding, dilation = self.shape
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={kernel}, stride={stride}, padding={padding}, "
            f"dilation={dilation}, {_left(self.columns, self.rows)}, relu={self.relu}"
        )


class SparseLinear(_Packed):
    """A linear layer that holds only the nonzero weights of ``weight`` [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        super().__init__()
        for name, tensor in pack_sparse(weight.detach())._asdict().items():
            self.register_buffer(name, tensor)
        self.register_buffer("bias", _copied(bias))
        self.out_features, self.in_features = weight.shape
        self.relu = relu
        self._check(self._buffers)

    def _check_shapes(self, device: torch.device, buffers: Sequence[Tensor | None]) -> None:
        x = torch.empty((0, self.in_features), device=device)
        REGISTRY["sparse_linear"].fake(x, *buffers, self.out_features, self.relu)

    def _check_indices(self, buffers: Sequence[Any]) -> None:
        check_offsets("sparse_linear", SparseWeight(*buffers[:4]))
        check_blocks("sparse_linear", SparseWeight(*buffers[:4]), self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """As ``nn.Linear``, with ReLU if ``relu``."""
        y: Tensor = sparse_linear(x, *self._buffers.values(), self.out_features, self.relu)
        return y

    def extra_repr(self) -> str:
        """Sizes as in ``nn.Linear``."""
        return f"{self.in_features}, {self.out_features}, relu={self.relu}"


class SparseConv(_Packed):
    """A convolution in one or two dimensions that holds only the nonzero weights of ``weight`` [out, in, *kernel]."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.out_channels, self.in_channels, self.relu = weight.shape[0], weight.shape[1], relu
        self.shape = [list(weight.shape[2:]), list(stride), list(padding), list(dilation)]
        for name, tensor in pack_sparse(weight.detach().flatten(1))._asdict().items():
            self.register_buffer(name, tensor)
        self.register_buffer("bias", _copied(bias))
        self._check(self._buffers)

    def _check_shapes(self, device: torch.device, buffers: Sequence[Tensor | None]) -> None:
        x = _smallest(self.in_channels, self.shape, device)
        REGISTRY["sparse_conv"].fake(x, *buffers, None, self.out_channels, *self.shape, 1, self.relu)

    def _check_indices(self, buffers: Sequence[Any]) -> None:
        inputs = self.in_channels * prod(self.shape[0])
        check_offsets("sparse_conv", SparseWeight(*buffers[:4]))
        check_blocks("sparse_conv", SparseWeight(*buffers[:4]), self.out_channels, inputs)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """As ``nn.Conv1d`` or ``nn.Conv2d``; the residual is added before the ReLU, if the layer has one."""
        y: Tensor = sparse_conv(x, *self._buffers.values(), residual, self.out_channels, *self.shape, 1, self.relu)
        return y

    def extra_repr(self) -> str:
        """Sizes as in ``nn.Conv2d``."""
        kernel, stride, padding, dilation = self.shape
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={kernel}, stride={stride}, padding={padding}, "
            f"dilation={dilation}, relu={self.relu}"
        )


class MaxPool2d(nn.Module):
    """``nn.MaxPool2d`` without padding, as maxima of slices: torch's own takes ten times as long on the CPU."""

    def __init__(self, kernel_size: Sequence[int], stride: Sequence[int]) -> None:
        super().__init__()
        self.kernel_size, self.stride = tuple(kernel_size), tuple(stride)

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each window; NaN where there is one."""
        for dim, kernel, stride in zip((-2, -1), self.kernel_size, self.stride, strict=True):  # whole rows first
            span = x.shape[dim] - kernel + 1
            slices = [x.narrow(dim, start, span) for start in range(kernel)]
            if stride > 1:
                slices = [part[..., ::stride, :] if dim == -2 else part[..., ::stride] for part in slices]
            x = reduce(torch.maximum, slices)
        return x

    def extra_repr(self) -> str:
        """Sizes as in ``nn.MaxPool2d``."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}"


def _left(columns: Tensor | None, rows: Tensor | None) -> str:
    count = {name: "all" if i is None else str(i.numel()) for name, i in (("columns", columns), ("rows", rows))}
    return ", ".join(f"{name}={number}" for name, number in count.items())
