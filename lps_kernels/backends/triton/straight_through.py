"""The straight-through step in Triton: predict, step, select, settle; the same launches for any number of layers.

The step writes the effective weight by the last threshold, as it moves the weights, and collects those near it. Once
the exact threshold is known, only what was collected may have to be set right: 37 bytes a weight in fp32, and 16 that
are stored and read again for each weight that was collected. Where the prediction missed or there was none, and where
groups have several weights, the whole layer is selected (5 bytes a weight) and written (13) anew; to score the groups
of a role takes another 5.

Weights that learn beside their masks take their step in the same pass, so that gradient and owners are read once: 61
bytes a weight. What sets the effective weight right afterwards reads the new weights.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS
from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of, registers
from lps_kernels.backends.triton._owners import is_free, is_kept
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
    WEIGHT_EXP_AVG,
    WEIGHT_EXP_AVG_SQ,
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
from lps_kernels.ops.straight_through import MOVES, OP, check_memory

# More registers would leave half of the threads no place on a multiprocessor. To collect takes many, so a thread of the
# step has two weights in fp32 and one in fp64; arrays are then read by 64 bits.
_STEP_OPTIONS: dict[str, object] = {"num_warps": 16, **registers(64), **EXACT}
_SETTLE_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}


@triton.jit
def _store_effective(row, begin, index, mask, kept, free, v, w_bar, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    effective = tl.where(kept, tl.where(free, v, w_bar), 0.0)
    tl.store(pointer(row, EFFECTIVE, DTYPE, ALIGNED) + begin + index, effective, mask=mask)


@triton.jit
def _learned(row, begin, index, mask, owner, free, w_bar, grad, scalars, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The weights after their own step of Adam, which is stored; the effective weight is still that of the last step.

    Only owned weights whose kept bit is set learn, with a gradient where they took part in the forward pass.
    """
    learns = is_kept(owner) & ~free
    took_part = loaded(row, EFFECTIVE, begin, index, mask, DTYPE, ALIGNED) != 0
    beta1, beta2, rest1, rest2, eps, size, _, inverse = scalars
    at_one_rate = (beta1, beta2, rest1, rest2, eps, size, size, inverse)
    change = adam_change(
        row,
        WEIGHT_EXP_AVG,
        WEIGHT_EXP_AVG_SQ,
        begin,
        index,
        mask,
        tl.where(took_part, grad, 0.0),
        free,
        learns,
        at_one_rate,
        DTYPE,
        ALIGNED,
    )
    w_bar = tl.where(learns, w_bar - change, w_bar)
    tl.store(pointer(row, W_BAR, DTYPE, ALIGNED) + begin + index, w_bar, mask=mask)
    return w_bar


@triton.jit
def _step_chunk(
    at,
    mask,
    scalars,
    share_cost,
    MOVES_WHICH: tl.constexpr,
    LEARNING: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    row, selection, found, keys, places, begin = at
    index = tl.arange(0, mask.shape[0])
    owner = loaded(row, OWNER, begin, index, mask, tl.uint8, ALIGNED)
    free = is_free(owner)
    moving = moving_of(owner, free, MOVES_WHICH)
    w_bar = loaded(row, W_BAR, begin, index, mask, DTYPE, ALIGNED)
    v = loaded(row, V, begin, index, mask, DTYPE, ALIGNED)
    grad = loaded(row, GRAD, begin, index, mask, DTYPE, ALIGNED)
    score_grad = tl.where(free, grad, grad * w_bar + tl.full((), share_cost, DTYPE))
    change = adam_change(
        row, EXP_AVG, EXP_AVG_SQ, begin, index, mask, score_grad, free, moving, scalars, DTYPE, ALIGNED
    )
    v = tl.where(moving, v - change, v)
    tl.store(pointer(row, V, DTYPE, ALIGNED) + begin + index, v, mask=mask)
    if LEARNING:
        w_bar = _learned(row, begin, index, mask, owner, free, w_bar, grad, scalars, DTYPE, ALIGNED)
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
    LEARNING: tl.constexpr,
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
    at = (row, selection, found, keys, places, begin)
    if rest >= BLOCK:
        _step_chunk(at, everywhere(BLOCK), scalars, share_cost, MOVES_WHICH, LEARNING, DTYPE, ALIGNED)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _step_chunk(at, mask, scalars, share_cost, MOVES_WHICH, LEARNING, DTYPE, ALIGNED)


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
    weight_exp_avg: Sequence[Tensor],
    weight_exp_avg_sq: Sequence[Tensor],
    device_step: Tensor | None = None,
) -> None:
    """One straight-through step of Adam over all layers, with this step's selection."""
    rates = (step, lr, mask_lr, beta1, beta2, eps)
    state = (effective, grad, v, w_bar, owner, exp_avg, exp_avg_sq, thresholds)
    counts = (keep_free, keep_owned, views, sharing_views)
    moments = (weight_exp_avg, weight_exp_avg_sq)
    REGISTRY[OP].fake(*state, *counts, emerging, moves, *rates, share_cost, *moments, device_step)
    check_memory(*state, *moments)
    learning = bool(weight_exp_avg)
    sizes = [tensor.numel() for tensor in v]
    if sum(sizes) == 0:
        thresholds.fill_(torch.nan)
        return
    # Weights that learn are contiguous, so they are written where they are and not in a copy.
    grad, w_bar, owner = (contiguous(tensors) for tensors in (grad, w_bar, owner))
    lists = {EFFECTIVE: effective, GRAD: grad, V: v, W_BAR: w_bar, OWNER: owner, EXP_AVG: exp_avg}
    lists |= {EXP_AVG_SQ: exp_avg_sq}
    lists |= {WEIGHT_EXP_AVG: weight_exp_avg, WEIGHT_EXP_AVG_SQ: weight_exp_avg_sq} if learning else {}
    layers, programs, is_aligned = layer_table(lists, sizes)
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
        which = {"MOVES_WHICH": moves, "LEARNING": learning}
        _step[(programs,)](*scratch, scales, *scalars, share_cost, **which, **shared, **_STEP_OPTIONS)
        score_groups(plan, keys, dtype, dual=False, to_scores=False)
        select(plan, keys, dtype, dual=False, predicted=(found, thresholds))
        _settle[(programs,)](*scratch, **shared, **_SETTLE_OPTIONS)


_SCRATCH_TYPES = {name: "i32" if name == "rows" else "*i64" for name in _settle.arg_names if name.islower()}


def _ahead(dtype: torch.dtype, moves: str, learning: bool, device_step: bool = False, is_aligned: bool = True) -> Ahead:
    """The step for 53 layers."""
    types, absent = scalar_types(device_step)
    constants = {"MOVES_WHICH": moves, "LEARNING": learning, **_constants(dtype, is_aligned), **absent}
    changes = f"{', learning' * learning}{', device step' * device_step}{', unaligned' * (not is_aligned)}"
    types |= {"share_cost": "fp64", **_SCRATCH_TYPES}
    name = f"straight_through_adam[{FLOATS[dtype]}, {moves}{changes}]"
    return Ahead(name, _step, types, constants, _STEP_OPTIONS)


def _ahead_settle(dtype: torch.dtype, is_aligned: bool = True) -> Ahead:
    name = f"straight_through_settle[{FLOATS[dtype]}{', unaligned' * (not is_aligned)}]"
    return Ahead(name, _settle, _SCRATCH_TYPES, _constants(dtype, is_aligned), _SETTLE_OPTIONS)


def _constants(dtype: torch.dtype, is_aligned: bool) -> dict[str, object]:
    return {"DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": 64, "BLOCK": step_block(dtype)}


KERNELS: Kernels = {OP: straight_through_adam_}
_EITHER = (False, True)
AOT = [
    *(_ahead(dtype, moves, learning) for learning in _EITHER for dtype in STATE_FLOATS for moves in MOVES),
    *(_ahead(dtype, "all", learning, device_step=True) for learning in _EITHER for dtype in STATE_FLOATS),
    *(_ahead(torch.float32, "all", learning, is_aligned=False) for learning in _EITHER),
    *(_ahead_settle(dtype) for dtype in STATE_FLOATS),
    _ahead_settle(torch.float32, is_aligned=False),
]
