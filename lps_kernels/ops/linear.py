"""Linear layers for inference: some rows and columns of a weight, or the weights that one task's mask selects.

``structured_linear`` gathers the columns that are left while it packs the activations and scatters the rows that are
left while it writes the result. ``masked_linear`` reads the weights that all tasks share and applies one task's mask
while it packs them, so that switching tasks costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_shape, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, declare
from lps_kernels._samples import EDGE_SIZES, Draw, strided
from lps_kernels.ops._matrix import (
    TOLERANCE,
    check_ascending,
    check_finish,
    check_floats,
    check_indices,
    check_linear_input,
    finish,
    outputs_bad_inputs,
)
from lps_kernels.ops.compose import opmath
from lps_kernels.ops.task_weight import check_task, task_call, weights_of_task
from lps_kernels.packing import PANEL, pack_linear, unpack_linear

BATCH = 128  # examples of a benchmark call


def structured_linear_reference(
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    """``x[..., columns] @ W.T`` put at ``rows`` of ``outputs``, plus bias, ReLU; ``weight`` is ``pack_linear(W)``."""
    y = _structured_fake(x, weight, columns, rows, bias, outputs, relu)
    check_ascending("structured_linear", "columns", columns, x.shape[-1])
    check_ascending("structured_linear", "rows", rows, outputs)
    matrix = opmath(unpack_linear(weight, outputs if rows is None else rows.numel()))
    read = opmath(x.flatten(0, -2) if x.dim() > 1 else x[None])
    product = (read if columns is None else read[:, columns.long()]) @ matrix.t()
    if rows is not None:
        product = product.new_zeros(len(read), outputs).index_copy_(1, rows.long(), product)
    return finish(product, bias, None, relu, x.dtype).reshape(y.shape)


def _structured_fake(
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Tensor:
    del relu
    op = "structured_linear"
    check_linear_input(op, x)
    result = (*x.shape[:-1], outputs)
    check_finish(op, x, x.shape[-1], outputs, bias, None, result)
    depth, height = check_indices(op, "columns", columns, x, x.shape[-1]), check_indices(op, "rows", rows, x, outputs)
    check_floats(op, "weight", weight, "x", x)
    shape = [-(-height // PANEL), depth, PANEL]
    check_shape(op, "weight", weight, shape, f"{height} rows and {depth} columns in panels of {PANEL}")
    return x.new_empty(result)


def masked_linear_reference(
    x: Tensor, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, bias: Tensor | None, relu: bool
) -> Tensor:
    """``x @ W.T`` plus bias, ReLU, with ``W = w_bar`` where the task owns it or its bit is set, else 0."""
    y = _masked_fake(x, w_bar, owner, bits, task, bias, relu)
    read = opmath(x.flatten(0, -2) if x.dim() > 1 else x[None])
    product = read @ opmath(torch.where(weights_of_task(owner, bits, task), w_bar, 0)).t()
    return finish(product, bias, None, relu, x.dtype).reshape(y.shape)


def _masked_fake(
    x: Tensor, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, bias: Tensor | None, relu: bool
) -> Tensor:
    del relu
    op = "masked_linear"
    check_linear_input(op, x)
    check_floats(op, "w_bar", w_bar, "x", x)
    refuse_unless(w_bar.dim() == 2, op, "w_bar", "2 dimensions", w_bar.dim())
    check_shape(op, "w_bar", w_bar, [w_bar.shape[0], x.shape[-1]], "the inputs of x")
    check_task(op, w_bar, owner, bits, task)
    result = (*x.shape[:-1], w_bar.shape[0])
    check_finish(op, x, x.shape[-1], w_bar.shape[0], bias, None, result)
    return x.new_empty(result)


def some_of(count: int, draw: Draw, share: float = 0.4) -> Tensor:
    """Ascending indices of about this share of ``count``."""
    return (draw.uniform((count,)) < share).nonzero().flatten().to(torch.int32)


def _structured_call(
    draw: Draw, dtype: torch.dtype, batch: Sequence[int], inputs: int, outputs: int, *, columns: bool, rows: bool
) -> Args:
    """A call with a random choice of columns and rows."""
    read, written = some_of(inputs, draw) if columns else None, some_of(outputs, draw) if rows else None
    depth, height = inputs if read is None else read.numel(), outputs if written is None else written.numel()
    weight = pack_linear(draw.normal((height, depth), dtype))
    return draw.normal((*batch, inputs), dtype), weight, read, written, draw.normal((outputs,), dtype), outputs, True


def _structured_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in EDGE_SIZES:
        yield Sample(f"{size} inputs", _structured_call(draw, dtype, (3,), size, 5, columns=False, rows=False))
        yield Sample(f"{size} outputs", _structured_call(draw, dtype, (1,), 11, size, columns=True, rows=False))
        yield Sample(f"{size} examples", _structured_call(draw, dtype, (size,), 9, 20, columns=True, rows=True))
    for batch, inputs, outputs in ((1, 300, 130), (6, 520, 70), (37, 270, 200), (150, 40, 66)):
        for columns, rows in ((False, False), (True, False), (False, True), (True, True)):
            name = f"{batch} x {inputs} x {outputs}, columns {columns}, rows {rows}"
            yield Sample(name, _structured_call(draw, dtype, (batch,), inputs, outputs, columns=columns, rows=rows))
    x, weight, *_ = _structured_call(draw, dtype, (2, 3), 12, 20, columns=False, rows=False)
    yield Sample("plain, three dimensions", (x, weight, None, None, None, 20, False))
    yield Sample("one example without a batch", (x[0, 0], weight, None, None, None, 20, False))
    yield Sample(
        "not contiguous", (strided(x), strided(weight), None, None, strided(draw.normal((20,), dtype)), 20, True)
    )
    none = torch.empty(0, dtype=torch.int32)
    yield Sample("no rows", (x, weight[:0], None, none, draw.normal((20,), dtype), 20, True))
    yield Sample("no columns", (x, weight[:, :0], none, None, draw.normal((20,), dtype), 20, True))
    odd = x.clone()
    odd[0, 0, 3], odd[1, 1, 4] = torch.nan, torch.inf
    read = torch.tensor([0, 2, 4, 11], dtype=torch.int32)
    yield Sample(
        "NaN in a column that is not read, Inf in one that is", (odd, weight[:, :4], read, None, None, 20, True)
    )
    yield Sample("NaN and Inf", (odd, weight, None, None, None, 20, True))


def _structured_bad_inputs() -> Iterator[BadInput]:
    op = "lps::structured_linear"
    x, weight = torch.zeros(2, 5), torch.zeros(1, 5, 16)
    index = torch.tensor([0, 3], dtype=torch.int32)
    some = torch.zeros(1, 2, 16)
    yield BadInput(
        "x dtype",
        (x.int(), weight, None, None, None, 7, False),
        f"{op}: x: expected dtype float32, float64, bfloat16 or float16, got int32",
    )
    yield BadInput(
        "scalar",
        (torch.tensor(1.0), weight, None, None, None, 7, False),
        f"{op}: x: expected at least 1 dimension, got 0",
    )
    yield BadInput(
        "weight dtype",
        (x, weight.double(), None, None, None, 7, False),
        f"{op}: weight: expected dtype float32 (that of x), got float64",
    )
    yield BadInput(
        "weight shape",
        (x, weight, None, None, None, 17, False),
        f"{op}: weight: expected shape [2, 5, 16] (17 rows and 5 columns in panels of 16), got [1, 5, 16]",
    )
    yield BadInput(
        "columns dtype",
        (x, some, index.long(), None, None, 7, False),
        f"{op}: columns: expected dtype int32, got int64",
    )
    yield BadInput(
        "columns rank", (x, some, index[None], None, None, 7, False), f"{op}: columns: expected 1 dimension, got 2"
    )
    yield BadInput(
        "columns beyond",
        (x, some, index + 2, None, None, 7, False),
        f"{op}: columns: expected ascending indices below 5, got 5 at position 1",
        reads_values=True,
    )
    yield BadInput(
        "rows order",
        (x, weight, None, index.flip(0), None, 7, False),
        f"{op}: rows: expected ascending indices below 7, got 0 at position 1",
        reads_values=True,
    )
    yield BadInput(
        "rows negative",
        (x, weight, None, index - 1, None, 7, False),
        f"{op}: rows: expected ascending indices below 7, got -1 at position 0",
        reads_values=True,
    )
    yield BadInput(
        "bias",
        (x, weight, None, None, torch.zeros(6), 7, False),
        f"{op}: bias: expected shape [7] (one for each output), got [6]",
    )
    yield BadInput(
        "columns more than inputs",
        (x, weight, torch.arange(6, dtype=torch.int32), None, None, 7, False),
        f"{op}: columns: expected at most 5 indices, got 6",
    )
    yield from outputs_bad_inputs(op, [2], [], lambda outputs: (x, weight, None, None, None, outputs, False))
    yield BadInput(
        "weight too large",
        (x, weight, None, None, None, 2**58, False),
        f"{op}: outputs: expected a weight of at most {2**60} values, got shape [{2**58}, 5]",
    )
    yield BadInput(
        "device",
        (x, weight.to("meta"), None, None, None, 7, False),
        f"{op}: weight: expected device cpu (that of x), got meta",
    )


def _masked_call(
    draw: Draw, dtype: torch.dtype, batch: Sequence[int], inputs: int, outputs: int, task: int = 3
) -> Args:
    weight = task_call(draw, (outputs, inputs), dtype, task)
    return draw.normal((*batch, inputs), dtype), *weight, draw.normal((outputs,), dtype), True


def _masked_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in EDGE_SIZES:
        yield Sample(f"{size} inputs", _masked_call(draw, dtype, (3,), size, 5))
        yield Sample(f"{size} outputs", _masked_call(draw, dtype, (1,), 11, size))
        yield Sample(f"{size} examples", _masked_call(draw, dtype, (size,), 9, 20))
    for batch, inputs, outputs in ((1, 301, 130), (7, 520, 70), (40, 270, 200), (150, 40, 66)):
        yield Sample(f"{batch} x {inputs} x {outputs}", _masked_call(draw, dtype, (batch,), inputs, outputs, task=127))
    x, w_bar, owner, bits, task, bias, _ = _masked_call(draw, dtype, (2, 3), 12, 20)
    yield Sample("plain, three dimensions", (x, w_bar, owner, bits, task, None, False))
    yield Sample(
        "not contiguous", (strided(x), strided(w_bar), strided(owner), strided(bits), task, strided(bias), True)
    )
    odd = x.clone()
    odd[0, 0, 3], odd[1, 1, 4] = torch.nan, torch.inf
    yield Sample("NaN and Inf", (odd, w_bar, owner, bits, task, None, False))


def _masked_bad_inputs() -> Iterator[BadInput]:
    op = "lps::masked_linear"
    x, w_bar, owner, bits = torch.zeros(2, 5), torch.zeros(7, 5), torch.zeros(7, 5).byte(), torch.zeros(5).byte()
    yield BadInput(
        "x dtype",
        (x.int(), w_bar, owner, bits, 1, None, False),
        f"{op}: x: expected dtype float32, float64, bfloat16 or float16, got int32",
    )
    yield BadInput(
        "w_bar rank", (x, w_bar[0], owner, bits, 1, None, False), f"{op}: w_bar: expected 2 dimensions, got 1"
    )
    yield BadInput(
        "w_bar shape",
        (x, w_bar[:, :4], owner, bits, 1, None, False),
        f"{op}: w_bar: expected shape [7, 5] (the inputs of x), got [7, 4]",
    )
    yield BadInput(
        "w_bar dtype",
        (x, w_bar.double(), owner, bits, 1, None, False),
        f"{op}: w_bar: expected dtype float32 (that of x), got float64",
    )
    yield BadInput(
        "owner dtype", (x, w_bar, owner.int(), bits, 1, None, False), f"{op}: owner: expected dtype uint8, got int32"
    )
    yield BadInput(
        "owner shape",
        (x, w_bar, owner[:6], bits, 1, None, False),
        f"{op}: owner: expected shape [7, 5] (that of w_bar), got [6, 5]",
    )
    yield BadInput(
        "bits length",
        (x, w_bar, owner, bits[:4], 1, None, False),
        f"{op}: bits: expected shape [5] (one bit for each of 35 weights), got [4]",
    )
    yield BadInput(
        "bits dtype", (x, w_bar, owner, bits.bool(), 1, None, False), f"{op}: bits: expected dtype uint8, got bool"
    )
    yield BadInput(
        "bits device",
        (x, w_bar, owner, bits.to("meta"), 1, None, False),
        f"{op}: bits: expected device cpu (that of w_bar), got meta",
    )
    yield BadInput("task", (x, w_bar, owner, bits, 128, None, False), f"{op}: task: expected 1 to 127, got 128")
    yield BadInput(
        "bias",
        (x, w_bar, owner, bits, 1, torch.zeros(5), False),
        f"{op}: bias: expected shape [7] (one for each output), got [5]",
    )


def _matrices(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Outputs and inputs of layers of these shapes."""
    for shape in shapes:
        yield shape[0], prod(shape[1:])


def _structured_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    """A fifth of the columns of each layer, for 128 examples."""
    draw, calls = Draw(), []
    for outputs, inputs in _matrices(shapes):
        columns = torch.arange(0, inputs, 5, dtype=torch.int32)
        weight = pack_linear(draw.normal((outputs, columns.numel())))
        calls.append((draw.normal((BATCH, inputs)), weight, columns, None, draw.normal((outputs,)), outputs, True))
    return calls


def _masked_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    return [_masked_call(draw, torch.float32, (BATCH,), inputs, outputs) for outputs, inputs in _matrices(shapes)]


def _structured_cost(
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> Cost:
    del bias, relu
    batch = prod(x.shape[:-1])
    height, depth = outputs if rows is None else rows.numel(), weight.shape[1]
    moved = weight.nbytes + batch * (depth + outputs) * x.element_size()
    return Cost(moved + (0 if columns is None else columns.nbytes), 2 * batch * height * depth)


def _masked_cost(
    x: Tensor, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, bias: Tensor | None, relu: bool
) -> Cost:
    del task, bias, relu
    batch = prod(x.shape[:-1])
    moved = w_bar.nbytes + owner.nbytes + bits.nbytes + x.nbytes + batch * w_bar.shape[0] * x.element_size()
    return Cost(moved, 2 * batch * w_bar.numel())


structured_linear = declare(
    "structured_linear",
    schema="(Tensor x, Tensor weight, Tensor? columns, Tensor? rows, Tensor? bias, int outputs, bool relu) -> Tensor",
    reference=structured_linear_reference,
    fake=_structured_fake,
    dtypes=FLOATS,
    samples=_structured_samples,
    bad_inputs=_structured_bad_inputs,
    tolerance=TOLERANCE,
    cost=_structured_cost,
    workload=_structured_workload,
    sums="products",
    tensor_cores=True,
)

masked_linear = declare(
    "masked_linear",
    schema="(Tensor x, Tensor w_bar, Tensor owner, Tensor bits, int task, Tensor? bias, bool relu) -> Tensor",
    reference=masked_linear_reference,
    fake=_masked_fake,
    dtypes=FLOATS,
    samples=_masked_samples,
    bad_inputs=_masked_bad_inputs,
    tolerance=TOLERANCE,
    cost=_masked_cost,
    workload=_masked_workload,
    sums="products",
    tensor_cores=True,
)
