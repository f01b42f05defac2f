"""The straight-through step in Triton: predict, step, select, settle; the same launches for any number of layers.

The step writes the effective weight by the last threshold, as it moves the weights, and collects those near it. Once
the exact threshold is known, only what was collected may have to be set right: 37 bytes a weight in fp32, and 16 that
are stored and read again for each weight that was collected. Where the prediction missed or there was none, and where
groups have several weights, the whole layer is selected (5 bytes a weight) and written (13) anew; to score the groups
of a role takes another 5.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS, check_contiguous, check_no_overlap
from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of, registers
from lps_kernels.backends.triton._owners import is_free
from lps_kernels.backends.triton._selections import FIELDS as SELECTION
from lps_kernels.backends.triton._selections import (
    OUTSIDE,
    POOL,
    POOL_SHARE,
    ROOM,
    Selection,
    keys_of,
    plan_for,
)
from lps_kernels.backends.triton._tables import entry, everywhere, pointer
from lps_kernels.backends.triton.project import survives
from lps_kernels.backends.triton.scores import score_groups
from lps_kernels.backends.triton.select import (
    INSIDE,
    LAST,
    MISSED,
    PREDICTED,
    STATE,
    THRESHOLD,
    collect_predicted,
    predict,
    predicted_to_survive,
    select,
)
from lps_kernels.backends.triton.step import (
    EFFECTIVE,
    EXP_AVG,
    EXP_AVG_SQ,
    FIELDS,
    GRAD,
    OWNER,
    W_BAR,
    V,
    adam_change,
    adam_scalars,
    chunk_of,
    contiguous,
    layer_table,
    loaded,
    moving_of,
    scalar_types,
    scales_of,
    step_block,
)
from lps_kernels.ops.scores import views_of
from lps_kernels.ops.step import named
from lps_kernels.ops.straight_through import MOVES, OP

# More registers would leave half of the threads no place on a multiprocessor. To collect takes many, so a thread of the
# step has two weights in fp32 and one in fp64; arrays are then read by 64 bits.
_STEP_OPTIONS: dict[str, object] = {"num_warps": 16, **registers(64), **EXACT}
_SETTLE_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}


@triton.jit
def _store_effective(row, begin, index, mask, kept, free, v, w_bar, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    effective = tl.where(kept, tl.where(free, v, w_bar), 0.0)
    tl.store(pointer(row, EFFECTIVE, DTYPE, ALIGNED) + begin + index, effective, mask=mask)


@triton.jit
def _step_chunk(
    row,
    selection,
    found,
    keys,
    places,
    begin,
    mask,
    scalars,
    share_cost,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    index = tl.arange(0, mask.shape[0])
    owner = loaded(row, OWNER, begin, index, mask, tl.uint8, ALIGNED)
    free = is_free(owner)
    moving = moving_of(owner, free, MOVES_WHICH)
    w_bar = loaded(row, W_BAR, begin, index, mask, DTYPE, ALIGNED)
    v = loaded(row, V, begin, index, mask, DTYPE, ALIGNED)
    grad = loaded(row, GRAD, begin, index, mask, DTYPE, ALIGNED)
    grad = tl.where(free, grad, grad * w_bar + tl.full((), share_cost, DTYPE))
    change = adam_change(row, begin, index, mask, grad, free, moving, scalars, DTYPE, ALIGNED)
    v = tl.where(moving, v - change, v)
    tl.store(pointer(row, V, DTYPE, ALIGNED) + begin + index, v, mask=mask)
    key = tl.where(mask, keys_of(v, ~free), OUTSIDE)
    kept = free & predicted_to_survive(selection, found, key)
    shares = ~free & predicted_to_survive(selection + SELECTION, found + STATE, key)
    _store_effective(row, begin, index, mask, kept | shares, free, v, w_bar, DTYPE, ALIGNED)
    collect_predicted(selection, found, keys, places, tl.where(free, key, OUTSIDE), begin)
    collect_predicted(selection + SELECTION, found + STATE, keys, places, tl.where(free, OUTSIDE, key), begin)


@triton.jit
def _step(
    layers,
    rows,
    table,
    keys,
    places,
    state,
    scales,
    beta1: tl.float64,
    beta2: tl.float64,
    rest1: tl.float64,
    rest2: tl.float64,
    eps: tl.float64,
    step_size: tl.float64,
    mask_step_size: tl.float64,
    inverse_root: tl.float64,
    share_cost: tl.float64,
    MOVES_WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number, begin, rest = chunk_of(layers, rows, ROWS, BLOCK)
    row = layers + number * FIELDS
    # Two selections per layer, of its free and of its owned weights.
    selection = table + number * 2 * SELECTION
    found = state + number * 2 * STATE
    size, mask_size, inverse = scales_of(scales, step_size, mask_step_size, inverse_root)
    scalars = (beta1, beta2, rest1, rest2, eps, size, mask_size, inverse)
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _step_chunk(row, selection, found, keys, places, begin, mask, scalars, share_cost, MOVES_WHICH, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _step_chunk(row, selection, found, keys, places, begin, mask, scalars, share_cost, MOVES_WHICH, DTYPE, ALIGNED)


@triton.jit
def _rewrite_chunk(row, selection, found, keys, begin, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Write the effective weight of a chunk by the thresholds of both roles."""
    index = tl.arange(0, mask.shape[0])
    free = is_free(loaded(row, OWNER, begin, index, mask, tl.uint8, ALIGNED))
    v = loaded(row, V, begin, index, mask, DTYPE, ALIGNED)
    w_bar = loaded(row, W_BAR, begin, index, mask, DTYPE, ALIGNED)
    kept = survives(selection, found, keys, v, free, begin, mask, mask.shape[0])
    shares = survives(selection + SELECTION, found + STATE, keys, v, ~free, begin, mask, mask.shape[0])
    _store_effective(row, begin, index, mask, kept | shares, free, v, w_bar, DTYPE, ALIGNED)


@triton.jit
def _correct(
    row,
    selection,
    found,
    keys,
    places,
    i,
    VALUES: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Write those of these collected weights that were not predicted rightly; survivors have their ``VALUES``."""
    mask = i < tl.minimum(entry(found, INSIDE), entry(selection, ROOM))
    i += entry(selection, POOL)
    key = tl.load(keys + i, mask=mask, other=OUTSIDE)
    place = tl.load(places + i, mask=mask, other=0)
    threshold = entry(found, THRESHOLD)
    kept = (key > threshold) | ((key == threshold) & (place <= entry(found, LAST)))
    wrong = mask & (kept != (key >= entry(found, PREDICTED)))
    value = tl.load(pointer(row, VALUES, DTYPE, ALIGNED) + place, mask=wrong & kept, other=0)
    tl.store(pointer(row, EFFECTIVE, DTYPE, ALIGNED) + place, value, mask=wrong)


@triton.jit
def _settle(
    layers,
    rows,
    table,
    keys,
    places,
    state,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Set right what the step wrote by predicted thresholds."""
    number, begin, rest = chunk_of(layers, rows, ROWS, BLOCK)
    row = layers + number * FIELDS
    selection = table + number * 2 * SELECTION
    found = state + number * 2 * STATE
    if (entry(found, MISSED) | entry(found + STATE, MISSED)) != 0:
        if rest >= BLOCK:
            _rewrite_chunk(row, selection, found, keys, begin, everywhere(BLOCK), DTYPE, ALIGNED)
        else:
            _rewrite_chunk(row, selection, found, keys, begin, tl.arange(0, BLOCK) < rest, DTYPE, ALIGNED)
    else:
        # As many as were collected at most, of any part of the layer.
        begin = begin // POOL_SHARE
        part = tl.arange(0, BLOCK // POOL_SHARE)
        _correct(row, selection, found, keys, places, begin + part, V, DTYPE, ALIGNED)
        _correct(row, selection + SELECTION, found + STATE, keys, places, begin + part, W_BAR, DTYPE, ALIGNED)


def straight_through_adam_(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    thresholds: Tensor,
    keep_free: Sequence[int],
    keep_owned: Sequence[int],
    views: Sequence[int],
    sharing_views: Sequence[int],
    emerging: bool,
    moves: str,
    step: int,
    lr: float,
    mask_lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    share_cost: float,
    device_step: Tensor | None = None,
) -> None:
    """One straight-through step of Adam over all layers, with this step's selection."""
    rates = (step, lr, mask_lr, beta1, beta2, eps)
    state = (effective, grad, v, w_bar, owner, exp_avg, exp_avg_sq, thresholds)
    counts = (keep_free, keep_owned, views, sharing_views)
    REGISTRY[OP].fake(*state, *counts, emerging, moves, *rates, share_cost, device_step)
    written = named(effective=effective, v=v, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    written.append(("thresholds", thresholds))
    for name, tensor in written:
        check_contiguous(OP, name, tensor)
    check_no_overlap(OP, written, named(grad=grad, w_bar=w_bar, owner=owner))
    sizes = [tensor.numel() for tensor in v]
    if sum(sizes) == 0:
        thresholds.fill_(torch.nan)
        return
    grad, w_bar, owner = (contiguous(tensors) for tensors in (grad, w_bar, owner))
    lists = {EFFECTIVE: effective, GRAD: grad, V: v, W_BAR: w_bar, OWNER: owner, EXP_AVG: exp_avg}
    layers, programs, is_aligned = layer_table(lists | {EXP_AVG_SQ: exp_avg_sq}, sizes)
    selections = []
    for layer, (view, sharing) in enumerate(zip(views_of(views), views_of(sharing_views), strict=True)):
        selections.append(Selection(v[layer], view, "free", "l2", keep_free[layer], owner[layer]))
        selections.append(
            Selection(v[layer], sharing, "owned", "half", keep_owned[layer], owner[layer], positive=emerging)
        )
    plan, dtype = plan_for(selections, roles=2), v[0].dtype
    shared = {"DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": triton.next_power_of_2(len(v))}
    shared |= {"BLOCK": step_block(dtype)}
    with on_device_of(v[0]):
        keys = plan.new_keys()
        places = torch.empty_like(keys)
        scales, scalars = adam_scalars(*rates, device_step)
        found = predict(plan, thresholds)
        scratch = (layers, len(v), plan.table, keys, places, found)
        _step[(programs,)](*scratch, scales, *scalars, share_cost, MOVES_WHICH=moves, **shared, **_STEP_OPTIONS)
        score_groups(plan, keys, dtype, dual=False, to_scores=False)
        select(plan, keys, dtype, dual=False, predicted=(found, thresholds))
        _settle[(programs,)](*scratch, **shared, **_SETTLE_OPTIONS)


_SCRATCH_TYPES = {name: "i32" if name == "rows" else "*i64" for name in _settle.arg_names if name.islower()}


def _ahead(dtype: torch.dtype, moves: str, device_step: bool = False, is_aligned: bool = True) -> Ahead:
    """The step for 53 layers."""
    types, absent = scalar_types(device_step)
    constants = {"MOVES_WHICH": moves, **_constants(dtype, is_aligned), **absent}
    name = f"[{FLOATS[dtype]}, {moves}{', device step' * device_step}{', unaligned' * (not is_aligned)}]"
    types |= {"share_cost": "fp64", **_SCRATCH_TYPES}
    return Ahead(f"straight_through_adam{name}", _step, types, constants, _STEP_OPTIONS)


def _ahead_settle(dtype: torch.dtype, is_aligned: bool = True) -> Ahead:
    name = f"straight_through_settle[{FLOATS[dtype]}{', unaligned' * (not is_aligned)}]"
    return Ahead(name, _settle, _SCRATCH_TYPES, _constants(dtype, is_aligned), _SETTLE_OPTIONS)


def _constants(dtype: torch.dtype, is_aligned: bool) -> dict[str, object]:
    return {"DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": 64, "BLOCK": step_block(dtype)}


KERNELS: Kernels = {OP: straight_through_adam_}
AOT = [
    *(_ahead(dtype, moves) for dtype in STATE_FLOATS for moves in MOVES),
    *(_ahead(dtype, "all", device_step=True) for dtype in STATE_FLOATS),
    _ahead(torch.float32, "all", is_aligned=False),
    *(_ahead_settle(dtype) for dtype in STATE_FLOATS),
    _ahead_settle(torch.float32, is_aligned=False),
]
