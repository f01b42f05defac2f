"""The masked weight composition, Eq. (4) of the paper: ``W + M * W_bar``.

``compose`` takes the three tensors as the paper has them. ``compose_owned`` is the one-tensor form: ``v`` holds W
where a weight is free and M where an earlier task owns it, so ``where(free, v, v * w_bar)`` is the same sum.
Products and sums are rounded separately, so every backend gives the same bits; 16-bit floats are computed in fp32
and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from lps_kernels._checks import (
    FLOATS,
    check_contiguous,
    check_device,
    check_dtype,
    check_like,
    check_no_overlap,
    check_shape,
    dtype_name,
    refuse_unless,
)
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.bits import pack_reference, packed_size, unpack_reference
from lps_kernels.owner import free_coordinates

# One rounding of the product and one of the sum, each half a unit in the last place (eps = 2^-23, 2^-52, 2^-7, 2^-10)
# of its result, and the terms may cancel: the samples' terms are below 16, which the absolute part allows for.
TOLERANCE = Tolerance(
    {torch.float32: 2.4e-7, torch.float64: 4.5e-16, torch.bfloat16: 7.9e-3, torch.float16: 9.8e-4},
    "two roundings in the dtype of computation and one to the dtype of storage",
)


def opmath(tensor: Tensor) -> Tensor:
    """16-bit floats are computed in fp32."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def compose_reference(w: Tensor, mask: Tensor, w_bar: Tensor) -> Tensor:
    """``w + mask * w_bar``; the mask is a float of the same dtype, bool, or uint8 with one bit per weight."""
    _check_compose("compose", w, mask, w_bar)
    if mask.dtype == torch.uint8:
        mask = unpack_reference(mask, w.shape)
    if mask.dtype == torch.bool:
        selected = torch.where(mask, opmath(w_bar), 0)
        return (opmath(w) + selected).to(w.dtype).contiguous()
    return (opmath(w) + opmath(mask) * opmath(w_bar)).to(w.dtype).contiguous()


def compose_owned_reference(v: Tensor, w_bar: Tensor, owner: Tensor) -> Tensor:
    """``v`` where free, ``v * w_bar`` where owned."""
    _check_compose_owned("compose_owned", v, w_bar, owner)
    product = (opmath(v) * opmath(w_bar)).to(v.dtype)
    return torch.where(free_coordinates(owner), v, product).contiguous()


def _compose_out_reference(w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor) -> None:
    _check_compose("compose_out", w, mask, w_bar)
    check_out("compose_out", "w", w, out, (("w", w), ("mask", mask), ("w_bar", w_bar)))
    out.copy_(compose_reference(w, mask, w_bar))


def _compose_owned_out_reference(v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor) -> None:
    _check_compose_owned("compose_owned_out", v, w_bar, owner)
    check_out("compose_owned_out", "v", v, out, (("v", v), ("w_bar", w_bar), ("owner", owner)))
    out.copy_(compose_owned_reference(v, w_bar, owner))


def _check_compose(op: str, w: Tensor, mask: Tensor, w_bar: Tensor) -> None:
    check_dtype(op, "w", w, FLOATS)
    check_like(op, "w_bar", w_bar, "w", w)
    check_device(op, "mask", mask, "w", w)
    kinds = f"dtype {dtype_name(w.dtype)} (that of w), bool or uint8 (bit-packed)"
    refuse_unless(mask.dtype in (w.dtype, torch.bool, torch.uint8), op, "mask", kinds, dtype_name(mask.dtype))
    if mask.dtype == torch.uint8:
        check_shape(op, "mask", mask, [packed_size(w.numel())], f"one bit for each of {w.numel()} weights")
    else:
        check_shape(op, "mask", mask, list(w.shape), "that of w")


def _check_compose_owned(op: str, v: Tensor, w_bar: Tensor, owner: Tensor) -> None:
    check_dtype(op, "v", v, FLOATS)
    check_like(op, "w_bar", w_bar, "v", v)
    check_like(op, "owner", owner, "v", v, torch.uint8)


def check_out(op: str, model_name: str, model: Tensor, out: Tensor, read: Sequence[tuple[str, Tensor]]) -> None:
    """``out`` is contiguous, looks like ``model`` and shares no memory with what is read."""
    check_like(op, "out", out, model_name, model)
    check_contiguous(op, "out", out)
    check_no_overlap(op, [("out", out)], read)


def _compose_fake(w: Tensor, mask: Tensor, w_bar: Tensor) -> Tensor:
    _check_compose("compose", w, mask, w_bar)
    return torch.empty_like(w, memory_format=torch.contiguous_format)


def _compose_owned_fake(v: Tensor, w_bar: Tensor, owner: Tensor) -> Tensor:
    _check_compose_owned("compose_owned", v, w_bar, owner)
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _compose_out_fake(w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor) -> None:
    _check_compose("compose_out", w, mask, w_bar)
    check_like("compose_out", "out", out, "w", w)


def _compose_owned_out_fake(v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor) -> None:
    _check_compose_owned("compose_owned_out", v, w_bar, owner)
    check_like("compose_owned_out", "out", out, "v", v)


def _compose_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    _, mask, w_bar = inputs
    expected = "a constant (committed weights do not learn; pass w_bar.detach())"
    refuse_unless(not ctx.needs_input_grad[2], "compose", "w_bar", expected, "a tensor that requires grad")
    ctx.mask_is_float = mask.is_floating_point()
    ctx.save_for_backward(w_bar)


def _compose_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    (w_bar,) = ctx.saved_tensors
    learns_mask = ctx.mask_is_float and ctx.needs_input_grad[1]
    return grad if ctx.needs_input_grad[0] else None, grad * w_bar if learns_mask else None, None


def _compose_owned_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    _, w_bar, owner = inputs
    expected = "a constant (committed weights do not learn; pass w_bar.detach())"
    refuse_unless(not ctx.needs_input_grad[1], "compose_owned", "w_bar", expected, "a tensor that requires grad")
    ctx.save_for_backward(w_bar, owner)


def _compose_owned_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    # The map is linear and diagonal in v, so its transpose is the same map.
    w_bar, owner = ctx.saved_tensors
    return _compose_owned(grad, w_bar, owner), None, None


def _mask_kinds(draw: Draw, shape: Sequence[int], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    yield "float", draw.normal(shape, dtype)
    boolean = draw.boolean(shape)
    yield "bool", boolean
    yield "bits", pack_reference(boolean)


def _compose_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in (*EDGE_SIZES, LARGE_SIZE):
        for kind, mask in _mask_kinds(draw, (size,), dtype):
            yield Sample(f"size {size}, {kind} mask", (draw.normal((size,), dtype), mask, draw.normal((size,), dtype)))
    for kind, mask in _mask_kinds(draw, (3, 5, 7), dtype):
        w, w_bar = draw.normal((3, 5, 7), dtype), draw.normal((3, 5, 7), dtype)
        yield Sample(f"not contiguous, {kind} mask", (strided(w), strided(mask), strided(w_bar)))
    odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, 1.0, -1.0, 2.0], dtype=dtype)
    for kind, mask in _mask_kinds(draw, (9,), dtype):
        yield Sample(f"NaN and Inf, {kind} mask", (odd, mask, odd.flip(0)))


def _compose_owned_samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    for size in (*EDGE_SIZES, LARGE_SIZE):
        tensors = draw.normal((size,), dtype), draw.normal((size,), dtype), draw.owner((size,))
        yield Sample(f"size {size}", tensors)
    tensors = draw.normal((3, 5, 7), dtype), draw.normal((3, 5, 7), dtype), draw.owner((3, 5, 7))
    yield Sample("not contiguous", tuple(strided(tensor) for tensor in tensors))
    for name, free in (("all free", 1.0), ("all owned", 0.0)):
        yield Sample(name, (draw.normal((33,), dtype), draw.normal((33,), dtype), draw.owner((33,), free)))
    odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, 1.0, -1.0, 2.0], dtype=dtype)
    yield Sample("NaN and Inf", (odd, odd.flip(0), draw.owner((9,))))


def with_out(samples: Iterator[Sample]) -> Iterator[Sample]:
    """The same calls with room for the result, filled with NaN, as their last argument."""
    for sample in samples:
        out = torch.full(sample.args[0].shape, float("nan"), dtype=sample.args[0].dtype)
        yield Sample(sample.name, (*sample.args, out))


def _compose_bad_inputs() -> Iterator[BadInput]:
    w, op = torch.zeros(2, 5), "lps::compose"
    boolean = torch.zeros(2, 5, dtype=torch.bool)
    dtypes = "dtype float32, float64, bfloat16 or float16"
    yield BadInput("w dtype", (w.long(), boolean, w), f"{op}: w: expected {dtypes}, got int64")
    yield BadInput("w_bar shape", (w, boolean, w.T), f"{op}: w_bar: expected shape [2, 5] (that of w), got [5, 2]")
    yield BadInput(
        "w_bar dtype", (w, boolean, w.double()), f"{op}: w_bar: expected dtype float32 (that of w), got float64"
    )
    yield BadInput(
        "mask dtype",
        (w, w.int(), w),
        f"{op}: mask: expected dtype float32 (that of w), bool or uint8 (bit-packed), got int32",
    )
    yield BadInput("mask shape", (w, boolean[0], w), f"{op}: mask: expected shape [2, 5] (that of w), got [5]")
    yield BadInput(
        "packed mask length",
        (w, torch.zeros(3, dtype=torch.uint8), w),
        f"{op}: mask: expected shape [2] (one bit for each of 10 weights), got [3]",
    )
    yield BadInput("device", (w, boolean, w.to("meta")), f"{op}: w_bar: expected device cpu (that of w), got meta")


def _compose_owned_bad_inputs() -> Iterator[BadInput]:
    v, op = torch.zeros(2, 5), "lps::compose_owned"
    owner = torch.zeros(2, 5, dtype=torch.uint8)
    yield BadInput("owner dtype", (v, v, v), f"{op}: owner: expected dtype uint8, got float32")
    yield BadInput("owner shape", (v, v, owner[0]), f"{op}: owner: expected shape [2, 5] (that of v), got [5]")
    yield BadInput("w_bar shape", (v, v[0], owner), f"{op}: w_bar: expected shape [2, 5] (that of v), got [5]")
    yield BadInput("w_bar dtype", (v, v.half(), owner), f"{op}: w_bar: expected dtype float32 (that of v), got float16")


def out_bad_inputs(op: str, first: str, args: Args) -> Iterator[BadInput]:
    """A call of [2, 5] weights with every ``out`` that is refused; ``first`` names its first argument."""
    w = args[0]
    yield BadInput(
        "out shape", (*args, torch.zeros(5, 2)), f"{op}: out: expected shape [2, 5] (that of {first}), got [5, 2]"
    )
    yield BadInput(
        "out dtype",
        (*args, torch.zeros(2, 5, dtype=torch.float64)),
        f"{op}: out: expected dtype float32 (that of {first}), got float64",
    )
    yield BadInput(
        "out strides",
        (*args, torch.zeros(5, 2).T),
        f"{op}: out: expected a contiguous tensor, got strides [1, 2]",
    )
    yield BadInput(
        "out overlaps",
        (*args, w),
        f"{op}: out: expected memory apart from {first}, got overlapping memory",
    )
    room = torch.zeros(15)
    yield BadInput(
        "out overlaps in part",
        (room[:10].view(2, 5), *args[1:], room[5:].view(2, 5)),
        f"{op}: out: expected memory apart from {first}, got overlapping memory",
    )


def _compose_out_bad_inputs() -> Iterator[BadInput]:
    args = torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool), torch.zeros(2, 5)
    yield from out_bad_inputs("lps::compose_out", "w", args)


def _compose_owned_out_bad_inputs() -> Iterator[BadInput]:
    args = torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.uint8)
    yield from out_bad_inputs("lps::compose_owned_out", "v", args)


def _compose_cost(w: Tensor, mask: Tensor, w_bar: Tensor, *_: Tensor) -> Cost:
    return Cost(w.nbytes * 2 + mask.nbytes + w_bar.nbytes, 2 * w.numel())


def _compose_owned_cost(v: Tensor, w_bar: Tensor, owner: Tensor, *_: Tensor) -> Cost:
    return Cost(v.nbytes * 2 + w_bar.nbytes + owner.nbytes, v.numel())


def _compose_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    # Every weight is drawn from a pool of one layer's size: drawing 64 M normals twice would outlast the benchmark.
    draw = Draw()
    pool = draw.normal((max(prod(shape) for shape in shapes),))
    return [
        (pool[: prod(shape)].view(shape).clone(), draw.boolean(shape).float(), pool[: prod(shape)].view(shape).clone())
        for shape in shapes
    ]


def _compose_owned_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    return [(w, w_bar, draw.owner(tuple(w.shape))) for w, _, w_bar in _compose_workload(shapes)]


def _out_workload(calls: list[Args]) -> list[Args]:
    return [(*args, torch.zeros_like(args[0])) for args in calls]


_compose = declare(
    "compose",
    schema="(Tensor w, Tensor mask, Tensor w_bar) -> Tensor",
    reference=compose_reference,
    fake=_compose_fake,
    differentiable=("w", "mask"),
    setup_context=_compose_setup,
    backward=_compose_backward,
    dtypes=FLOATS,
    samples=_compose_samples,
    bad_inputs=_compose_bad_inputs,
    tolerance=TOLERANCE,
    cost=_compose_cost,
    workload=_compose_workload,
)

_compose_out = declare(
    "compose_out",
    schema="(Tensor w, Tensor mask, Tensor w_bar, Tensor(a!) out) -> ()",
    reference=_compose_out_reference,
    fake=_compose_out_fake,
    mutates=("out",),
    dtypes=FLOATS,
    samples=lambda dtype: with_out(_compose_samples(dtype)),
    bad_inputs=_compose_out_bad_inputs,
    tolerance=TOLERANCE,
    cost=_compose_cost,
    workload=lambda shapes: _out_workload(_compose_workload(shapes)),
    public=False,
)

_compose_owned = declare(
    "compose_owned",
    schema="(Tensor v, Tensor w_bar, Tensor owner) -> Tensor",
    reference=compose_owned_reference,
    fake=_compose_owned_fake,
    differentiable=("v",),
    setup_context=_compose_owned_setup,
    backward=_compose_owned_backward,
    dtypes=FLOATS,
    samples=_compose_owned_samples,
    bad_inputs=_compose_owned_bad_inputs,
    tolerance=TOLERANCE,
    cost=_compose_owned_cost,
    workload=_compose_owned_workload,
)

_compose_owned_out = declare(
    "compose_owned_out",
    schema="(Tensor v, Tensor w_bar, Tensor owner, Tensor(a!) out) -> ()",
    reference=_compose_owned_out_reference,
    fake=_compose_owned_out_fake,
    mutates=("out",),
    dtypes=FLOATS,
    samples=lambda dtype: with_out(_compose_owned_samples(dtype)),
    bad_inputs=_compose_owned_out_bad_inputs,
    tolerance=TOLERANCE,
    cost=_compose_owned_cost,
    workload=lambda shapes: _out_workload(_compose_owned_workload(shapes)),
    public=False,
)


def compose(w: Tensor, mask: Tensor, w_bar: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``w + mask * w_bar`` in one pass, differentiable in ``w`` and in a float ``mask``.

    The mask may have the dtype of ``w``, be bool, or be uint8 with one bit per weight (:func:`pack_bits`). A bool or
    packed mask selects: where it is 0 the result is ``w`` even if ``w_bar`` is NaN there. With ``out`` the result is
    written there, without autograd.
    """
    if out is None:
        result: Tensor = _compose(w, mask, w_bar)
        return result
    _compose_out(w, mask, w_bar, out)
    return out


def compose_owned(v: Tensor, w_bar: Tensor, owner: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The effective weight in the one-tensor form: ``v`` where free, ``v * w_bar`` where owned.

    Differentiable in ``v``. With ``out`` the result is written there, without autograd.
    """
    if out is None:
        result: Tensor = _compose_owned(v, w_bar, owner)
        return result
    _compose_owned_out(v, w_bar, owner, out)
    return out
