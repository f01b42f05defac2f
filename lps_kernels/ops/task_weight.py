"""The weight that a task runs with: its own weights and those of earlier tasks that its mask selects, else 0.

This is Eq. (4), ``W + M * W_bar``, with W and M as they are stored once a task is learnt: W is ``w_bar`` where the task
is the owner, M is one packed bit per weight. No temporary of the weight's size is made. The result has the bits of that
sum: 0.0 is added, so a committed -0.0 comes out as 0.0. A mask covers the weights of earlier tasks only, so no weight
is both owned and selected; where one is, it counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_device, check_dtype, check_like, check_shape, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.bits import pack_reference, packed_size, unpack_reference
from lps_kernels.ops.compose import check_out, opmath, out_bad_inputs, with_out
from lps_kernels.owner import KEPT_BIT, MAX_TASKS, task_of

EXACT = Tolerance(dict.fromkeys(FLOATS, 0.0), "values are copied; adding 0.0 rounds nothing")


def weights_of_task(owner: Tensor, bits: Tensor, task: int) -> Tensor:
    """True where the task owns the weight or its mask selects it."""
    return (task_of(owner) == task) | unpack_reference(bits, owner.shape)


def check_task(op: str, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int) -> None:
    """Owner map, packed mask and number of a task that fit the weight."""
    check_like(op, "owner", owner, "w_bar", w_bar, torch.uint8)
    check_device(op, "bits", bits, "w_bar", w_bar)
    check_dtype(op, "bits", bits, (torch.uint8,))
    check_shape(op, "bits", bits, [packed_size(w_bar.numel())], f"one bit for each of {w_bar.numel()} weights")
    refuse_unless(1 <= task <= MAX_TASKS, op, "task", f"1 to {MAX_TASKS}", task)


def task_weight_reference(w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor) -> None:
    """``w_bar`` where the task owns the weight or its bit is set, else 0; -0.0 becomes 0.0."""
    _fake(w_bar, owner, bits, task, out)
    check_out("task_weight", "w_bar", w_bar, out, (("w_bar", w_bar), ("owner", owner), ("bits", bits)))
    out.copy_((opmath(torch.where(weights_of_task(owner, bits, task), w_bar, 0)) + 0.0).to(w_bar.dtype))


def _fake(w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor) -> None:
    check_dtype("task_weight", "w_bar", w_bar, FLOATS)
    check_task("task_weight", w_bar, owner, bits, task)
    check_like("task_weight", "out", out, "w_bar", w_bar)


def task_call(draw: Draw, shape: Sequence[int], dtype: torch.dtype = torch.float32, task: int = 3) -> Args:
    """A random weight of which the task owns about a fifth, and half of which its mask selects."""
    owner = draw.owner(shape)
    owner[draw.uniform(shape) < 0.2] = task
    return draw.normal(shape, dtype), owner, pack_reference(draw.boolean(shape)), task


def _samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in (*EDGE_SIZES, LARGE_SIZE):
        yield Sample(f"size {size}", task_call(draw, (size,), dtype))
    w_bar, owner, bits, task = task_call(draw, (3, 5, 7), dtype)
    yield Sample("not contiguous", (strided(w_bar), strided(owner), strided(bits), task))
    yield Sample("transposed", (w_bar.permute(2, 0, 1), owner.permute(2, 0, 1), bits, task))
    w_bar, owner, bits, task = task_call(draw, (33,), dtype, task=MAX_TASKS)
    yield Sample("the last task that there can be", (w_bar, owner, bits, task))
    yield Sample("nothing but its own", (w_bar, owner, torch.zeros_like(bits), task))
    yield Sample("nothing of its own", (w_bar, torch.full_like(owner, 1), bits, task))
    yield Sample("unused bits set", (w_bar, owner, torch.full_like(bits, 0xFF), task))
    smallest = torch.finfo(dtype).smallest_normal / 2  # subnormal
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, smallest, -smallest, -1.0, 2.0], dtype=dtype)
    owned, free = torch.full((9,), KEPT_BIT | 3, dtype=torch.uint8), torch.zeros(9, dtype=torch.uint8)
    none, all_bits = torch.zeros(2, dtype=torch.uint8), torch.full((2,), 0xFF, dtype=torch.uint8)
    yield Sample("NaN, Inf and zeros of both signs, owned", (odd, owned, none, 3))
    yield Sample("NaN, Inf and zeros of both signs, selected", (odd, free, all_bits, 3))
    yield Sample("NaN, Inf and zeros of both signs, neither", (odd, free, none, 3))


def _bad_inputs() -> Iterator[BadInput]:
    op = "lps::task_weight"
    w_bar, owner, bits = torch.zeros(2, 5), torch.zeros(2, 5).byte(), torch.zeros(2).byte()
    out = torch.zeros(2, 5)
    dtypes = "dtype float32, float64, bfloat16 or float16"
    yield BadInput("w_bar dtype", (w_bar.int(), owner, bits, 1, out), f"{op}: w_bar: expected {dtypes}, got int32")
    yield BadInput("owner dtype", (w_bar, w_bar, bits, 1, out), f"{op}: owner: expected dtype uint8, got float32")
    yield BadInput(
        "owner shape",
        (w_bar, owner[0], bits, 1, out),
        f"{op}: owner: expected shape [2, 5] (that of w_bar), got [5]",
    )
    yield BadInput(
        "owner device",
        (w_bar, owner.to("meta"), bits, 1, out),
        f"{op}: owner: expected device cpu (that of w_bar), got meta",
    )
    yield BadInput("bits dtype", (w_bar, owner, bits.bool(), 1, out), f"{op}: bits: expected dtype uint8, got bool")
    yield BadInput(
        "bits length",
        (w_bar, owner, bits[:1], 1, out),
        f"{op}: bits: expected shape [2] (one bit for each of 10 weights), got [1]",
    )
    yield BadInput(
        "bits device",
        (w_bar, owner, bits.to("meta"), 1, out),
        f"{op}: bits: expected device cpu (that of w_bar), got meta",
    )
    yield BadInput("no task", (w_bar, owner, bits, 0, out), f"{op}: task: expected 1 to 127, got 0")
    yield BadInput("task", (w_bar, owner, bits, 128, out), f"{op}: task: expected 1 to 127, got 128")
    yield BadInput(
        "out overlaps owner",
        (w_bar, out.view(torch.uint8)[:, :5], bits, 1, out),
        f"{op}: out: expected memory apart from owner, got overlapping memory",
    )
    yield from out_bad_inputs(op, "w_bar", (w_bar, owner, bits, 1))


def _cost(w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor) -> Cost:
    del task
    return Cost(w_bar.nbytes + owner.nbytes + bits.nbytes + out.nbytes, w_bar.numel())


def _workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    return [(*task_call(draw, shape), torch.zeros(shape)) for shape in shapes]


_task_weight = declare(
    "task_weight",
    schema="(Tensor w_bar, Tensor owner, Tensor bits, int task, Tensor(a!) out) -> ()",
    reference=task_weight_reference,
    fake=_fake,
    mutates=("out",),
    dtypes=FLOATS,
    samples=lambda dtype: with_out(_samples(dtype)),
    bad_inputs=_bad_inputs,
    tolerance=EXACT,
    cost=_cost,
    workload=_workload,
)


def task_weight(w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor | None = None) -> Tensor:
    """The weight that the task runs with, written to ``out`` or to a new tensor; without autograd.

    It is ``w_bar`` where the owner byte names ``task`` or the bit of the task's packed mask (:func:`pack_bits`) is set,
    else 0, and 0.0 where ``w_bar`` is -0.0: bit for bit ``compose(where(owned, w_bar, 0), bits, w_bar)``.
    """
    if out is None:
        out = torch.empty_like(w_bar, memory_format=torch.contiguous_format)
    _task_weight(w_bar, owner, bits, task, out)
    return out
