"""What the operators of matrix products share: checks, convolution shapes, finishing, sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_device, check_dtype, check_shape, dtype_name, refuse_unless
from lps_kernels._registry import Args, BadInput, Tolerance

# A sum of n products errs by at most n roundings of half a unit of its largest partial sum; the samples sum up to a few
# hundred products of terms below 16. Kernels, references and cuBLAS-like libraries all take their own order.
# 16-bit floats are multiplied and summed in fp32; the result is rounded once, by a unit in the last place at most.
TOLERANCE = Tolerance(
    {torch.float32: 4e-6, torch.float64: 8e-15, torch.bfloat16: 7.9e-3, torch.float16: 9.8e-4},
    "sums of products in an order of their own",
)


# Most values of any tensor or matrix, sizes of 0 counted as 1: sums and products of a few such sizes fit in 64 bits.
MOST_VALUES = 2**60
# Most of an int of a convolution, and of the columns of its matrix, which 32-bit indices name.
MOST_PLACES = 2**31 - 1


class Convolution(NamedTuple):
    """Kernel size, stride, padding and dilation of one or two dimensions."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        return prod(self.kernel)

    def output_size(self, size: Sequence[int]) -> list[int]:
        """Height and width, or length, of what comes out."""
        along = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in along]


def check_floats(op: str, argument: str, tensor: Tensor, model_name: str, model: Tensor) -> None:
    """Device and dtype of the input."""
    check_device(op, argument, tensor, model_name, model)
    expected = f"dtype {dtype_name(model.dtype)} (that of {model_name})"
    refuse_unless(tensor.dtype == model.dtype, op, argument, expected, dtype_name(tensor.dtype))


def check_values(op: str, argument: str, what: str, shape: Sequence[int]) -> None:
    """A shape whose arithmetic fits in 64 bits."""
    fits = prod(max(size, 1) for size in shape) <= MOST_VALUES
    refuse_unless(fits, op, argument, f"{what} of at most {MOST_VALUES} values", f"shape {list(shape)}")


def check_linear_input(op: str, x: Tensor) -> None:
    """A float tensor with the inputs in its last dimension."""
    check_dtype(op, "x", x, FLOATS)
    refuse_unless(x.dim() >= 1, op, "x", "at least 1 dimension", x.dim())
    check_values(op, "x", "a tensor", x.shape)


def check_conv_input(op: str, x: Tensor, conv: Convolution, groups: int, dimensions: Sequence[int]) -> None:
    """A batch [images, channels, size...] that the kernel fits into; only ungrouped convolutions."""
    check_dtype(op, "x", x, FLOATS)
    dims = x.dim() - 2
    ranks = " or ".join(str(d + 2) for d in dimensions)
    refuse_unless(dims in dimensions, op, "x", f"{ranks} dimensions", x.dim())
    check_values(op, "x", "a tensor", x.shape)
    refuse_unless(groups == 1, op, "groups", "1 (grouped convolutions have no packed form)", groups)
    for name, values, least in zip(Convolution._fields, conv, (1, 1, 0, 1), strict=True):
        fits = len(values) == dims and all(least <= value <= MOST_PLACES for value in values)
        refuse_unless(fits, op, name, f"{dims} ints from {least} to {MOST_PLACES}", list(values))
    columns = [x.shape[1], *conv.kernel]
    expected = f"channels and kernel sizes that multiply to at most {MOST_PLACES}"
    refuse_unless(prod(max(size, 1) for size in columns) <= MOST_PLACES, op, "kernel", expected, columns)
    size = conv.output_size(x.shape[2:])
    expected = f"a kernel that fits into {list(x.shape[2:])}"
    refuse_unless(all(n >= 1 for n in size), op, "kernel", expected, list(conv.kernel))


def check_finish(
    op: str,
    x: Tensor,
    inputs: int,
    outputs: int,
    bias: Tensor | None,
    residual: Tensor | None,
    result: Sequence[int],
) -> None:
    """Outputs, a bias for each of them and a residual of the shape of the result."""
    refuse_unless(outputs >= 0, op, "outputs", "at least 0", outputs)
    check_values(op, "outputs", "a result", result)
    check_values(op, "outputs", "a weight", [outputs, inputs])
    if bias is not None:
        check_floats(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, [outputs], "one for each output")
    if residual is not None:
        check_floats(op, "residual", residual, "x", x)
        check_shape(op, "residual", residual, result, "that of the result")


def check_indices(op: str, argument: str, indices: Tensor | None, x: Tensor, limit: int) -> int:
    """Indices that pick some of ``limit``: how many; without any, all of them."""
    if indices is None:
        return limit
    check_device(op, argument, indices, "x", x)
    check_dtype(op, argument, indices, (torch.int32,))
    refuse_unless(indices.dim() == 1, op, argument, "1 dimension", indices.dim())
    refuse_unless(indices.numel() <= limit, op, argument, f"at most {limit} indices", indices.numel())
    return indices.numel()


def check_ascending(op: str, argument: str, indices: Tensor | None, limit: int) -> None:
    """The values of the indices: ascending and below ``limit``. Not for tracing, which has no values."""
    if indices is None or indices.numel() == 0:
        return
    values = indices.long()
    before = torch.cat([values.new_full((1,), -1), values[:-1]])
    wrong = ((values <= before) | (values >= limit)).nonzero().flatten()
    if len(wrong):
        at = int(wrong[0])
        got = f"{int(values[at])} at position {at}"
        refuse_unless(False, op, argument, f"ascending indices below {limit}", got)


def finish(y: Tensor, bias: Tensor | None, residual: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
    """Add the bias of each output (dimension 1) and the residual, clip at zero, then round to the dtype."""
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * (y.dim() - 2))
    if residual is not None:
        y = y + residual
    return (y.relu() if relu else y).to(dtype).contiguous()


def multiply_present(weight: Tensor, present: Tensor, x: Tensor) -> Tensor:
    """``x @ weight.T`` for a matrix x, where a weight that is not present meets nothing: not even an Inf or NaN."""
    finite = x.isfinite().all(0) & weight.isfinite().all(0)
    y = x[:, finite] @ weight[:, finite].t()
    for column in (~finite).nonzero().flatten().tolist():
        y += torch.where(present[:, column], x[:, column, None] * weight[:, column], 0)
    return y


def patches(x: Tensor, conv: Convolution) -> Tensor:
    """What the kernel meets: [images, channels * taps, positions], for one or two dimensions."""
    if x.shape[1] == 0:  # which torch's unfold refuses
        return x.new_empty(x.shape[0], 0, prod(conv.output_size(x.shape[2:])))
    if x.dim() == 3:
        x, conv = x.unsqueeze(2), Convolution(*([first, *rest] for first, rest in zip((1, 1, 0, 1), conv, strict=True)))
    kernel, stride, padding, dilation = (tuple(numbers) for numbers in conv)
    return torch.nn.functional.unfold(x, kernel, dilation, padding, stride)


def outputs_bad_inputs(
    op: str, before: Sequence[int], behind: Sequence[int], call: Callable[[int], Args]
) -> Iterator[BadInput]:
    """Numbers of outputs that are refused; ``before`` and ``behind`` are the sizes of the result around them."""
    yield BadInput("no outputs at all", call(-1), f"{op}: outputs: expected at least 0, got -1")
    for outputs in (MOST_VALUES, 2**63 - 1):
        expected, shape = f"a result of at most {MOST_VALUES} values", [*before, outputs, *behind]
        yield BadInput(f"{outputs} outputs", call(outputs), f"{op}: outputs: expected {expected}, got shape {shape}")
