"""The masked proximal optimiser step in Triton: one launch for all layers, and one before it that reads a clock."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, SIM300

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS, check_contiguous, check_no_overlap
from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of, parts_of, registers
from lps_kernels.backends.triton._tables import entry, everywhere, pointer, row_of
from lps_kernels.ops.step import MOVES, _named

# Fields of the table.
COUNT, FIRST, EFFECTIVE, GRAD, V, W_BAR, CENTRE, OWNER, EXP_AVG, EXP_AVG_SQ = (tl.constexpr(i) for i in range(10))
FIELDS = tl.constexpr(10)
# More registers would leave half of the threads no place on a multiprocessor.
_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}
_CLOCK_OPTIONS: dict[str, object] = {"num_warps": 1, **EXACT}


@triton.jit
def _times(a, b, c, d):
    """The product of the unevaluated sums a + b and c + d, as such a sum, to about 100 bits."""
    # Halves of 26 bits, whose products are exact.
    scaled = a * 134217729.0
    a_high = scaled - (scaled - a)
    a_low = a - a_high
    scaled = c * 134217729.0
    c_high = scaled - (scaled - c)
    c_low = c - c_high
    product = a * c
    rest = ((a_high * c_high - product) + a_high * c_low + a_low * c_high) + a_low * c_low
    rest += a * d + b * c
    total = product + rest
    return total, rest - (total - product)


@triton.jit
def _power(base, exponent):
    """``base ** exponent`` rounded once, like the host's; by repeated squaring."""
    result = tl.full((), 1.0, tl.float64)
    result_low = tl.full((), 0.0, tl.float64)
    square = base
    square_low = result_low
    while exponent > 0:
        if exponent & 1 == 1:
            result, result_low = _times(result, result_low, square, square_low)
        square, square_low = _times(square, square_low, square, square_low)
        exponent = exponent >> 1
    return result


@triton.jit
def _read_clock(clock, scales, beta1: tl.float64, beta2: tl.float64, lr: tl.float64):
    """What a step of Adam takes from its number: the step size, and what the root of the mean square is scaled by."""
    step = tl.load(clock)
    tl.store(scales, tl.full((), lr, tl.float64) / (1.0 - _power(tl.full((), beta1, tl.float64), step)))
    tl.store(scales + 1, 1.0 / tl.sqrt(1.0 - _power(tl.full((), beta2, tl.float64), step)))


@triton.jit
def _moving(owner, free, MOVES_WHICH: tl.constexpr):
    """Coordinates that may move."""
    if MOVES_WHICH == "all":
        moving = owner >= 0
    elif MOVES_WHICH == "free":
        moving = free
    else:
        moving = owner == 0x80
    return moving


@triton.jit
def _chunk_of(table, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The layer that this program works on, and how many weights lie before and from its chunk on."""
    program = tl.program_id(0)
    row = table + row_of(table, rows, program, FIRST, FIELDS, ROWS) * FIELDS
    begin = (program - entry(row, FIRST)) * BLOCK
    return row, begin, entry(row, COUNT) - begin


@triton.jit
def _pulled(grad, v, row, begin, index, mask, free, rho, tau, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The gradient with that of the proximal term."""
    centre = tl.load(pointer(row, CENTRE, DTYPE, ALIGNED) + begin + index, mask=mask, other=0)
    return grad + (v - centre) * tl.where(free, tl.full((), rho, DTYPE), tl.full((), tau, DTYPE))


@triton.jit
def _adam_chunk(
    row,
    begin,
    mask,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    rho,
    tau,
    size,
    inverse,
    PROXIMAL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    index = tl.arange(0, mask.shape[0])
    owner = tl.load(pointer(row, OWNER, tl.uint8, ALIGNED) + begin + index, mask=mask, other=0)
    free = (owner & 0x7F) == 0
    moving = _moving(owner, free, MOVES_WHICH)
    w_bar = tl.load(pointer(row, W_BAR, DTYPE, ALIGNED) + begin + index, mask=mask, other=0)
    v_at = pointer(row, V, DTYPE, ALIGNED) + begin + index
    v = tl.load(v_at, mask=mask, other=0)
    grad = tl.load(pointer(row, GRAD, DTYPE, ALIGNED) + begin + index, mask=mask, other=0)
    grad = tl.where(free, grad, grad * w_bar)
    if PROXIMAL:
        grad = _pulled(grad, v, row, begin, index, mask, free, rho, tau, DTYPE, ALIGNED)
    mean_at = pointer(row, EXP_AVG, DTYPE, ALIGNED) + begin + index
    square_at = pointer(row, EXP_AVG_SQ, DTYPE, ALIGNED) + begin + index
    old_mean = tl.load(mean_at, mask=mask, other=0)
    old_square = tl.load(square_at, mask=mask, other=0)
    mean = old_mean * tl.full((), beta1, DTYPE) + grad * tl.full((), rest1, DTYPE)
    square = old_square * tl.full((), beta2, DTYPE) + grad * grad * tl.full((), rest2, DTYPE)
    if DTYPE == tl.float32:
        root = tl.sqrt_rn(square) * inverse.to(DTYPE) + tl.full((), eps, DTYPE)
        change = tl.div_rn(mean, root) * size.to(DTYPE)
    else:
        root = tl.sqrt(square) * inverse + tl.full((), eps, DTYPE)
        change = mean / root * size
    moved = tl.where(moving, v - change, v)
    tl.store(mean_at, tl.where(moving, mean, old_mean), mask=mask)
    tl.store(square_at, tl.where(moving, square, old_square), mask=mask)
    tl.store(v_at, moved, mask=mask)
    effective = pointer(row, EFFECTIVE, DTYPE, ALIGNED) + begin + index
    tl.store(effective, tl.where(free, moved, moved * w_bar), mask=mask)


@triton.jit
def _adam(
    table,
    scales,
    rows,
    beta1: tl.float64,
    beta2: tl.float64,
    rest1: tl.float64,
    rest2: tl.float64,
    eps: tl.float64,
    rho: tl.float64,
    tau: tl.float64,
    step_size: tl.float64,
    inverse_root: tl.float64,
    TIMED: tl.constexpr,
    PROXIMAL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, begin, rest = _chunk_of(table, rows, ROWS, BLOCK)
    size = tl.full((), step_size, tl.float64)
    inverse = tl.full((), inverse_root, tl.float64)
    if TIMED:
        size = tl.load(scales)
        inverse = tl.load(scales + 1)
    scalars = (beta1, beta2, rest1, rest2, eps, rho, tau, size, inverse)
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _adam_chunk(row, begin, mask, *scalars, PROXIMAL, MOVES_WHICH, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _adam_chunk(row, begin, mask, *scalars, PROXIMAL, MOVES_WHICH, DTYPE, ALIGNED)


@triton.jit
def _grad_chunk(
    row,
    begin,
    mask,
    rho,
    tau,
    PROXIMAL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    index = tl.arange(0, mask.shape[0])
    owner = tl.load(pointer(row, OWNER, tl.uint8, ALIGNED) + begin + index, mask=mask, other=0)
    free = (owner & 0x7F) == 0
    grad_at = pointer(row, GRAD, DTYPE, ALIGNED) + begin + index
    grad = tl.load(grad_at, mask=mask, other=0)
    if PROXIMAL:
        v = tl.load(pointer(row, V, DTYPE, ALIGNED) + begin + index, mask=mask, other=0)
        grad = _pulled(grad, v, row, begin, index, mask, free, rho, tau, DTYPE, ALIGNED)
    tl.store(grad_at, tl.where(_moving(owner, free, MOVES_WHICH), grad, 0.0), mask=mask)


@triton.jit
def _grad(
    table,
    rows,
    rho: tl.float64,
    tau: tl.float64,
    PROXIMAL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, begin, rest = _chunk_of(table, rows, ROWS, BLOCK)
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _grad_chunk(row, begin, mask, rho, tau, PROXIMAL, MOVES_WHICH, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _grad_chunk(row, begin, mask, rho, tau, PROXIMAL, MOVES_WHICH, DTYPE, ALIGNED)


def _block(dtype: torch.dtype) -> int:
    """Weights per program: four per thread in fp32 and two in fp64, so that each array is read by 128 bits."""
    return _launch.sizes.step * 4 // dtype.itemsize


def _table(lists: dict[tl.constexpr, Sequence[Tensor]], counts: list[int]) -> tuple[Tensor, int, bool]:
    """The table of these tensors, how many programs it takes, and whether all arrays are aligned."""
    model = lists[V][0]
    device, block = model.device, _block(model.dtype)
    addresses = {name.value: tuple(t.data_ptr() for t in tensors) for name, tensors in lists.items()}

    def build() -> tuple[Tensor, int, bool]:
        columns = dict(addresses)
        first, programs = [], 0
        for count in counts:
            first.append(programs)
            programs += parts_of(count, block)
        columns[COUNT.value], columns[FIRST.value] = tuple(counts), tuple(first)
        none = (0,) * len(counts)
        values = [
            value
            for row in zip(*(columns.get(name, none) for name in range(FIELDS.value)), strict=True)
            for value in row
        ]
        is_aligned = _launch.aligned(at for column in addresses.values() for at in column)
        return _launch.table_on(device, values), programs, is_aligned

    key = ("step", block, tuple(addresses.items()), tuple(counts))
    return _launch.remembered(device, key, build)


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def proximal_adam_(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    moves: str,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    rho: float,
    tau: float,
    clock: Tensor | None = None,
) -> None:
    """One masked proximal Adam step over all layers; a ``clock`` holds the number of the step on the device."""
    op = "proximal_adam_"
    arguments = (effective, grad, v, w_bar, centre, owner, exp_avg, exp_avg_sq, moves, step, lr, beta1, beta2, eps)
    REGISTRY[op].fake(*arguments, rho, tau, clock)
    written = _named(effective=effective, v=v, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, _named(grad=grad, w_bar=w_bar, centre=centre, owner=owner))
    counts = [tensor.numel() for tensor in v]
    if sum(counts) == 0:
        return
    grad, w_bar, centre, owner = (_contiguous(tensors) for tensors in (grad, w_bar, centre, owner))
    lists = {EFFECTIVE: effective, GRAD: grad, V: v, W_BAR: w_bar, OWNER: owner, EXP_AVG: exp_avg}
    lists |= {EXP_AVG_SQ: exp_avg_sq} | ({CENTRE: centre} if centre else {})
    table, programs, is_aligned = _table(lists, counts)
    with on_device_of(v[0]):
        scales = None
        if clock is not None:
            scales = torch.empty(2, dtype=torch.float64, device=clock.device)
            _read_clock[(1,)](clock, scales, beta1, beta2, lr, **_CLOCK_OPTIONS)
        _adam[(programs,)](
            table,
            scales,
            len(v),
            beta1,
            beta2,
            1 - beta1,
            1 - beta2,
            eps,
            rho,
            tau,
            lr / (1 - beta1**step) if clock is None else 0.0,
            1 / sqrt(1 - beta2**step) if clock is None else 0.0,
            TIMED=clock is not None,
            PROXIMAL=len(centre) > 0,
            MOVES_WHICH=moves,
            DTYPE=FLOATS[v[0].dtype],
            ALIGNED=is_aligned,
            ROWS=triton.next_power_of_2(len(v)),
            BLOCK=_block(v[0].dtype),
            **_OPTIONS,
        )


def proximal_grad_(
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    moves: str,
    rho: float,
    tau: float,
) -> None:
    """Add the pull towards ``centre`` to the gradient of ``v`` and zero it where nothing may move."""
    op = "proximal_grad_"
    REGISTRY[op].fake(grad, v, centre, owner, moves, rho, tau)
    written = _named(grad=grad)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, _named(v=v, centre=centre, owner=owner))
    counts = [tensor.numel() for tensor in v]
    if sum(counts) == 0:
        return
    v, centre, owner = (_contiguous(tensors) for tensors in (v, centre, owner))
    lists = {GRAD: grad, V: v, OWNER: owner} | ({CENTRE: centre} if centre else {})
    table, programs, is_aligned = _table(lists, counts)
    with on_device_of(v[0]):
        _grad[(programs,)](
            table,
            len(v),
            rho,
            tau,
            PROXIMAL=len(centre) > 0,
            MOVES_WHICH=moves,
            DTYPE=FLOATS[v[0].dtype],
            ALIGNED=is_aligned,
            ROWS=triton.next_power_of_2(len(v)),
            BLOCK=_block(v[0].dtype),
            **_OPTIONS,
        )


def _ahead(
    dtype: torch.dtype, moves: str, timed: bool = False, is_aligned: bool = True, proximal: bool = True
) -> list[Ahead]:
    """Both kernels for 53 layers."""
    changes = f"{', clock' * timed}{', unaligned' * (not is_aligned)}{', no centre' * (not proximal)}"
    name = f"[{FLOATS[dtype]}, {moves}{changes}]"
    shared = {"PROXIMAL": proximal, "MOVES_WHICH": moves, "DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": 64}
    shared["BLOCK"] = _block(dtype)
    scalars = ("beta1", "beta2", "rest1", "rest2", "eps", "rho", "tau", "step_size", "inverse_root")
    adam = {"table": "*i64", "rows": "i32"} | dict.fromkeys(scalars, "fp64")
    grad = {"table": "*i64", "rows": "i32", "rho": "fp64", "tau": "fp64"}
    constants: dict[str, object] = {"TIMED": timed, **shared}
    if timed:
        adam["scales"] = "*fp64"
    else:
        constants["scales"] = None
    return [
        Ahead(f"proximal_adam{name}", _adam, adam, constants, _OPTIONS),
        *([] if timed else [Ahead(f"proximal_grad{name}", _grad, grad, shared, _OPTIONS)]),
    ]


_CLOCK_TYPES = {"clock": "*i64", "scales": "*fp64", "beta1": "fp64", "beta2": "fp64", "lr": "fp64"}
KERNELS: Kernels = {"proximal_adam_": proximal_adam_, "proximal_grad_": proximal_grad_}
AOT = [
    Ahead("read_clock", _read_clock, _CLOCK_TYPES, {}, _CLOCK_OPTIONS),
    *(ahead for dtype in STATE_FLOATS for moves in MOVES for ahead in _ahead(dtype, moves)),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, "all", timed=True)),
    *_ahead(torch.float32, "kept", is_aligned=False),
    *_ahead(torch.float32, "all", proximal=False),
]
