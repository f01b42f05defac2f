"""The masked proximal optimiser step in Triton: one launch for all layers, and one before it for a ``device_step``."""
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
from lps_kernels.backends.triton._owners import FREE, KEPT_BIT, is_free
from lps_kernels.backends.triton._tables import entry, everywhere, pointer, row_of
from lps_kernels.ops.step import MOVES, named

# Fields of the table.
COUNT, FIRST, EFFECTIVE, GRAD, V, W_BAR, CENTRE, OWNER, EXP_AVG, EXP_AVG_SQ = (tl.constexpr(i) for i in range(10))
WEIGHT_EXP_AVG, WEIGHT_EXP_AVG_SQ = tl.constexpr(10), tl.constexpr(11)  # of weights that learn beside their masks
FIELDS = tl.constexpr(12)
# More registers would leave half of the threads no place on a multiprocessor.
_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}
_DEVICE_STEP_OPTIONS: dict[str, object] = {"num_warps": 1, **EXACT}


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
def _read_device_step(device_step, scales, beta1: tl.float64, beta2: tl.float64, lr: tl.float64, mask_lr: tl.float64):
    """What a step of Adam takes from its number: both step sizes, and what the root of the mean square is scaled by."""
    step = tl.load(device_step)
    rest = 1.0 - _power(tl.full((), beta1, tl.float64), step)
    tl.store(scales, tl.full((), lr, tl.float64) / rest)
    tl.store(scales + 1, tl.full((), mask_lr, tl.float64) / rest)
    tl.store(scales + 2, 1.0 / tl.sqrt(1.0 - _power(tl.full((), beta2, tl.float64), step)))


@triton.jit
def scales_of(scales, step_size, mask_step_size, inverse_root):
    """The numbers of :func:`_read_device_step`: from the device, or those of the host where ``scales`` is None."""
    if scales is None:
        size = tl.full((), step_size, tl.float64)
        mask_size = tl.full((), mask_step_size, tl.float64)
        inverse = tl.full((), inverse_root, tl.float64)
    else:
        size = tl.load(scales)
        mask_size = tl.load(scales + 1)
        inverse = tl.load(scales + 2)
    return size, mask_size, inverse


@triton.jit
def moving_of(owner, free, MOVES_WHICH: tl.constexpr):
    """Coordinates that may move."""
    if MOVES_WHICH == "all":
        moving = owner >= 0
    elif MOVES_WHICH == "free":
        moving = free
    else:
        moving = owner == (FREE | KEPT_BIT)
    return moving


@triton.jit
def chunk_of(table, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The layer that this program works on, and how many weights lie before and from its chunk on."""
    program = tl.program_id(0)
    number = row_of(table, rows, program, FIRST, FIELDS, ROWS)
    row = table + number * FIELDS
    begin = (program - entry(row, FIRST)) * BLOCK
    return number, begin, entry(row, COUNT) - begin


@triton.jit
def loaded(row, FIELD: tl.constexpr, begin, index, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """These weights' elements of one array of a layer."""
    return tl.load(pointer(row, FIELD, DTYPE, ALIGNED) + begin + index, mask=mask, other=0)


@triton.jit
def _for_role(free, of_free, of_owned, DTYPE: tl.constexpr):
    """One of two numbers for each weight."""
    return tl.where(free, tl.full((), of_free, DTYPE), tl.full((), of_owned, DTYPE))


@triton.jit
def _pulled(grad, v, row, begin, index, mask, free, rho, tau, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The gradient with that of the proximal term."""
    centre = loaded(row, CENTRE, begin, index, mask, DTYPE, ALIGNED)
    return grad + (v - centre) * _for_role(free, rho, tau, DTYPE)


@triton.jit
def adam_change(
    row,
    MEAN: tl.constexpr,
    SQUARE: tl.constexpr,
    begin,
    index,
    mask,
    grad,
    free,
    moving,
    scalars,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """What a step of Adam takes off; the moments of what is ``moving``, in these fields, are updated."""
    beta1, beta2, rest1, rest2, eps, size, mask_size, inverse = scalars
    mean_at = pointer(row, MEAN, DTYPE, ALIGNED) + begin + index
    square_at = pointer(row, SQUARE, DTYPE, ALIGNED) + begin + index
    old_mean = tl.load(mean_at, mask=mask, other=0)
    old_square = tl.load(square_at, mask=mask, other=0)
    mean = old_mean * tl.full((), beta1, DTYPE) + grad * tl.full((), rest1, DTYPE)
    square = old_square * tl.full((), beta2, DTYPE) + grad * grad * tl.full((), rest2, DTYPE)
    tl.store(mean_at, tl.where(moving, mean, old_mean), mask=mask)
    tl.store(square_at, tl.where(moving, square, old_square), mask=mask)
    rate = tl.where(free, size.to(DTYPE), mask_size.to(DTYPE))
    if DTYPE == tl.float32:
        root = tl.sqrt_rn(square) * inverse.to(DTYPE) + tl.full((), eps, DTYPE)
        change = tl.div_rn(mean, root) * rate
    else:
        root = tl.sqrt(square) * inverse + tl.full((), eps, DTYPE)
        change = mean / root * rate
    return change


@triton.jit
def _adam_chunk(
    row,
    begin,
    mask,
    scalars,
    pulls,
    PULL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    pull_free, pull_owned, stay_free, stay_owned = pulls
    index = tl.arange(0, mask.shape[0])
    owner = loaded(row, OWNER, begin, index, mask, tl.uint8, ALIGNED)
    free = is_free(owner)
    moving = moving_of(owner, free, MOVES_WHICH)
    w_bar = loaded(row, W_BAR, begin, index, mask, DTYPE, ALIGNED)
    v = loaded(row, V, begin, index, mask, DTYPE, ALIGNED)
    grad = loaded(row, GRAD, begin, index, mask, DTYPE, ALIGNED)
    grad = tl.where(free, grad, grad * w_bar)
    if PULL == "gradient":
        grad = _pulled(grad, v, row, begin, index, mask, free, pull_free, pull_owned, DTYPE, ALIGNED)
    change = adam_change(row, EXP_AVG, EXP_AVG_SQ, begin, index, mask, grad, free, moving, scalars, DTYPE, ALIGNED)
    moved = v - change
    if PULL == "proximal":
        centre = loaded(row, CENTRE, begin, index, mask, DTYPE, ALIGNED)
        moved *= _for_role(free, stay_free, stay_owned, DTYPE)
        moved += centre * _for_role(free, pull_free, pull_owned, DTYPE)
    moved = tl.where(moving, moved, v)
    tl.store(pointer(row, V, DTYPE, ALIGNED) + begin + index, moved, mask=mask)
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
    step_size: tl.float64,
    mask_step_size: tl.float64,
    inverse_root: tl.float64,
    pull_free: tl.float64,
    pull_owned: tl.float64,
    stay_free: tl.float64,
    stay_owned: tl.float64,
    PULL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number, begin, rest = chunk_of(table, rows, ROWS, BLOCK)
    row = table + number * FIELDS
    size, mask_size, inverse = scales_of(scales, step_size, mask_step_size, inverse_root)
    scalars = (beta1, beta2, rest1, rest2, eps, size, mask_size, inverse)
    pulls = (pull_free, pull_owned, stay_free, stay_owned)
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _adam_chunk(row, begin, mask, scalars, pulls, PULL, MOVES_WHICH, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _adam_chunk(row, begin, mask, scalars, pulls, PULL, MOVES_WHICH, DTYPE, ALIGNED)


@triton.jit
def _grad_chunk(
    row,
    begin,
    mask,
    rho,
    tau,
    PULL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    index = tl.arange(0, mask.shape[0])
    owner = loaded(row, OWNER, begin, index, mask, tl.uint8, ALIGNED)
    free = is_free(owner)
    grad_at = pointer(row, GRAD, DTYPE, ALIGNED) + begin + index
    grad = tl.load(grad_at, mask=mask, other=0)
    if PULL == "gradient":
        v = loaded(row, V, begin, index, mask, DTYPE, ALIGNED)
        grad = _pulled(grad, v, row, begin, index, mask, free, rho, tau, DTYPE, ALIGNED)
    tl.store(grad_at, tl.where(moving_of(owner, free, MOVES_WHICH), grad, 0.0), mask=mask)


@triton.jit
def _grad(
    table,
    rows,
    rho: tl.float64,
    tau: tl.float64,
    PULL: tl.constexpr,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number, begin, rest = chunk_of(table, rows, ROWS, BLOCK)
    row = table + number * FIELDS
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _grad_chunk(row, begin, mask, rho, tau, PULL, MOVES_WHICH, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _grad_chunk(row, begin, mask, rho, tau, PULL, MOVES_WHICH, DTYPE, ALIGNED)


def step_block(dtype: torch.dtype) -> int:
    """Weights per program: four per thread in fp32 and two in fp64, so that each array is read by 128 bits."""
    return _launch.sizes.step * 4 // dtype.itemsize


def layer_table(lists: dict[tl.constexpr, Sequence[Tensor]], counts: list[int]) -> tuple[Tensor, int, bool]:
    """The table of these tensors, how many programs it takes, and whether all arrays are aligned."""
    model = lists[V][0]
    device, block = model.device, step_block(model.dtype)
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


def contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of those that are not."""
    return [tensor.contiguous() for tensor in tensors]


def adam_scalars(
    step: int, lr: float, mask_lr: float, beta1: float, beta2: float, eps: float, device_step: Tensor | None
) -> tuple[Tensor | None, list[float]]:
    """What depends on the step, in device memory where its number is there, and the scalars of the kernels."""
    scalars = [beta1, beta2, 1 - beta1, 1 - beta2, eps]
    if device_step is not None:
        scales = torch.empty(3, dtype=torch.float64, device=device_step.device)
        _read_device_step[(1,)](device_step, scales, beta1, beta2, lr, mask_lr, **_DEVICE_STEP_OPTIONS)
        return scales, [*scalars, 0.0, 0.0, 0.0]
    rest = 1 - beta1**step
    return None, [*scalars, lr / rest, mask_lr / rest, 1 / sqrt(1 - beta2**step)]


def _pulls(pull: str, rho: float, tau: float) -> tuple[float, float, float, float]:
    """How much of ``centre`` is added where free and where owned, and how much of the weight stays."""
    if pull == "gradient":
        return rho, tau, 1.0, 1.0
    return rho / (1 + rho), tau / (1 + tau), 1 / (1 + rho), 1 / (1 + tau)


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
    pull: str,
    step: int,
    lr: float,
    mask_lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    rho: float,
    tau: float,
    device_step: Tensor | None = None,
) -> None:
    """One masked proximal Adam step over all layers; a ``device_step`` holds the number of the step on the device."""
    op = "proximal_adam_"
    rates = (step, lr, mask_lr, beta1, beta2, eps)
    state = (effective, grad, v, w_bar, centre, owner, exp_avg, exp_avg_sq)
    REGISTRY[op].fake(*state, moves, pull, *rates, rho, tau, device_step)
    written = named(effective=effective, v=v, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, named(grad=grad, w_bar=w_bar, centre=centre, owner=owner))
    counts = [tensor.numel() for tensor in v]
    if sum(counts) == 0:
        return
    grad, w_bar, centre, owner = (contiguous(tensors) for tensors in (grad, w_bar, centre, owner))
    lists = {EFFECTIVE: effective, GRAD: grad, V: v, W_BAR: w_bar, OWNER: owner, EXP_AVG: exp_avg}
    lists |= {EXP_AVG_SQ: exp_avg_sq} | ({CENTRE: centre} if centre else {})
    table, programs, is_aligned = layer_table(lists, counts)
    with on_device_of(v[0]):
        scales, scalars = adam_scalars(*rates, device_step)
        _adam[(programs,)](
            table,
            scales,
            len(v),
            *scalars,
            *_pulls(pull, rho, tau),
            PULL=pull if centre else "none",
            MOVES_WHICH=moves,
            DTYPE=FLOATS[v[0].dtype],
            ALIGNED=is_aligned,
            ROWS=triton.next_power_of_2(len(v)),
            BLOCK=step_block(v[0].dtype),
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
    written = named(grad=grad)
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, named(v=v, centre=centre, owner=owner))
    counts = [tensor.numel() for tensor in v]
    if sum(counts) == 0:
        return
    v, centre, owner = (contiguous(tensors) for tensors in (v, centre, owner))
    lists = {GRAD: grad, V: v, OWNER: owner} | ({CENTRE: centre} if centre else {})
    table, programs, is_aligned = layer_table(lists, counts)
    with on_device_of(v[0]):
        _grad[(programs,)](
            table,
            len(v),
            rho,
            tau,
            PULL="gradient" if centre else "none",
            MOVES_WHICH=moves,
            DTYPE=FLOATS[v[0].dtype],
            ALIGNED=is_aligned,
            ROWS=triton.next_power_of_2(len(v)),
            BLOCK=step_block(v[0].dtype),
            **_OPTIONS,
        )


def _ahead(
    dtype: torch.dtype, moves: str, device_step: bool = False, is_aligned: bool = True, pull: str = "gradient"
) -> list[Ahead]:
    """The step, and the gradient where that is another kernel, for 53 layers."""
    changes = f"{', device step' * device_step}{', unaligned' * (not is_aligned)}"
    changes += {"gradient": "", "proximal": ", proximal pull", "none": ", no centre"}[pull]
    name = f"[{FLOATS[dtype]}, {moves}{changes}]"
    shared = {"PULL": pull, "MOVES_WHICH": moves, "DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": 64}
    shared["BLOCK"] = step_block(dtype)
    grad = {"table": "*i64", "rows": "i32", "rho": "fp64", "tau": "fp64"}
    pulls = ("pull_free", "pull_owned", "stay_free", "stay_owned")
    adam, absent = scalar_types(device_step)
    adam |= {"table": "*i64", "rows": "i32"} | dict.fromkeys(pulls, "fp64")
    kernels = [Ahead(f"proximal_adam{name}", _adam, adam, absent | shared, _OPTIONS)]
    if not device_step and pull != "proximal":
        kernels.append(Ahead(f"proximal_grad{name}", _grad, grad, shared, _OPTIONS))
    return kernels


def scalar_types(device_step: bool) -> tuple[dict[str, str], dict[str, object]]:
    """Types of what :func:`adam_scalars` gives, and what of it is absent, to compile ahead."""
    names = ("beta1", "beta2", "rest1", "rest2", "eps", "step_size", "mask_step_size", "inverse_root")
    types = dict.fromkeys(names, "fp64")
    return (types | {"scales": "*fp64"}, {}) if device_step else (types, {"scales": None})


_DEVICE_STEP_TYPES = {"device_step": "*i64", "scales": "*fp64"} | dict.fromkeys(
    ("beta1", "beta2", "lr", "mask_lr"), "fp64"
)
KERNELS: Kernels = {"proximal_adam_": proximal_adam_, "proximal_grad_": proximal_grad_}
AOT = [
    Ahead("read_device_step", _read_device_step, _DEVICE_STEP_TYPES, {}, _DEVICE_STEP_OPTIONS),
    *(ahead for dtype in STATE_FLOATS for moves in MOVES for ahead in _ahead(dtype, moves)),
    *(ahead for dtype in STATE_FLOATS for moves in MOVES for ahead in _ahead(dtype, moves, pull="proximal")),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, "all", device_step=True)),
    *_ahead(torch.float32, "kept", is_aligned=False),
    *_ahead(torch.float32, "all", pull="none"),
]
