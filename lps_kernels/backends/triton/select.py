"""Exact top-k in Triton, for all selections of a table in five launches.

A sample of each selection brackets the key of its k-th best group; one pass counts what lies above the bracket and at
its ends and collects the few keys strictly inside; a search among those gives the exact key. Where fewer groups of that
very key are wanted than there are, a further pass finds the index of the last one. Nothing of this waits for the
device, and counts are integers, so the result is the same for any sample and any order of the programs.

A bracket that misses, or holds more keys than there is room for, is repaired by a search through the whole selection:
exact, but by one program alone. A sample of scattered coordinates and five deviations make that rare. A layer no larger
than the sample is searched whole at once.

Where the threshold can be predicted, the pass that writes the weights counts and collects around the prediction, and a
sample is drawn only where that missed.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, PLR0124

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS
from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, registers
from lps_kernels.backends.triton._selections import (
    FIELDS,
    FIRST_CHUNK,
    GROUPS,
    HALF,
    HIGH,
    KEEP,
    LOW,
    POOL,
    ROOM,
    SCORED,
    SelectionPlan,
    keys_at,
    keys_of,
    scored_of,
    source_of,
    value_of,
)
from lps_kernels.backends.triton._tables import entry, everywhere, row_of

# What is known of each selection, an int64 each: the bracket, how many keys lie above it, at its upper end, strictly
# inside and at its lower end; then the key of the last group that survives, how many of that key are wanted (0: all of
# them), and the index of the last of these. Behind a prediction also: the predicted key, how many groups take part,
# whether a NaN is among them, and whether what was written by the prediction is of no use.
BOTTOM, TOP, ABOVE, AT_TOP, INSIDE, AT_BOTTOM, THRESHOLD, WANTED, LAST = (tl.constexpr(i) for i in range(9))
PREDICTED, PRESENT, BROKEN, MISSED = (tl.constexpr(i) for i in range(9, 13))
STATE = tl.constexpr(13)
_NEVER = tl.constexpr(2**63 - 1)
_OPTIONS: dict[str, object] = {"num_warps": 8, **EXACT}
# A search is one program, whose turns come one after the other. It looks at as many keys together as all architectures
# have registers for.
_SEARCH_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}
_PREDICT_OPTIONS: dict[str, object] = {"num_warps": 1, **EXACT}


@triton.jit
def _kth(
    source,
    scored,
    count,
    stride,
    low,
    high,
    wanted,
    DUAL: tl.constexpr,
    DIGIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key in [low, high] that at least ``wanted`` keys of that bracket reach, else ``low``.

    Also how many with that key are wanted, and how many there are. Searched are ``count`` keys, one of every
    ``stride``. ``DIGIT`` bits of the key are settled by one pass.
    """
    base = low.to(tl.uint64)
    span = high.to(tl.uint64) - base
    shift = tl.full((), 0, tl.uint64)
    while (span >> shift >> DIGIT) > 0:
        shift += DIGIT
    digit = tl.arange(0, 1 << DIGIT)
    settled = tl.full((), 0, tl.uint64)
    ties = tl.full((), 0, tl.int64)
    for _ in range(shift.to(tl.int32) // DIGIT + 1):
        counts = tl.zeros((1 << DIGIT,), tl.int64)
        for begin in range(0, count, BLOCK):
            i = (begin + tl.arange(0, BLOCK)).to(tl.int64)
            # A place of its own in every stride, as if drawn at random.
            jitter = (i.to(tl.uint32) * 0x9E3779B1) % stride.to(tl.uint32)
            key = keys_at(source, scored, i * stride + jitter, i < count, DUAL)
            offset = key.to(tl.uint64) - base
            matches = (offset <= span) & ((offset >> shift >> DIGIT) == (settled >> shift >> DIGIT))
            here = ((offset >> shift) & ((1 << DIGIT) - 1)).to(tl.int32)
            counts += tl.histogram(here, 1 << DIGIT, mask=matches).to(tl.int64)
        reaching = tl.sum(counts) - tl.cumsum(counts, 0) + counts
        chosen = tl.max(tl.where(reaching >= wanted, digit, 0))
        wanted -= tl.sum(tl.where(digit > chosen, counts, 0))
        ties = tl.sum(tl.where(digit == chosen, counts, 0))
        settled += chosen.to(tl.uint64) << shift
        shift -= DIGIT
    return (base + settled).to(tl.int64), wanted, ties


@triton.jit
def _standing(row, found):
    """How many keys reach the parts of a bracket from the top down, and where the threshold lies of it.

    That is: whether strictly inside, and whether it cannot be told from what was counted and collected.
    """
    keep = entry(row, KEEP)
    above = entry(found, ABOVE)
    to_top = above + entry(found, AT_TOP)
    inside = entry(found, INSIDE)
    to_inside = to_top + inside
    to_bottom = to_inside + entry(found, AT_BOTTOM)
    is_inside = (to_top < keep) & (keep <= to_inside)
    # Fewer groups than are to be kept are kept all, from the lowest key on. Nothing is searched to keep all there are.
    too_high = (above >= keep) & (keep < entry(row, GROUPS))
    too_low = (to_bottom < keep) & (entry(found, BOTTOM) > entry(row, LOW))
    lacks_room = is_inside & (inside > entry(row, ROOM))
    return above, to_top, to_inside, to_bottom, is_inside, too_high | too_low | lacks_room


@triton.jit
def _predict(table, state, thresholds):
    """A bracket around the threshold that is expected.

    Without an expectation it is the lowest key there can be: nothing will be cut off. Any numbers will do as
    ``thresholds``: the prediction never lies outside of its bracket, nor that below the lowest key.
    """
    row = table + tl.program_id(0) * FIELDS
    found = state + tl.program_id(0) * STATE
    half = entry(row, HALF) != 0
    low = entry(row, LOW)
    threshold = tl.load(thresholds + tl.program_id(0) * 2)
    distance = tl.load(thresholds + tl.program_id(0) * 2 + 1)
    known = (threshold == threshold) & (distance == distance) & (entry(row, SCORED) == 0)
    predicted = tl.where(known, tl.maximum(keys_of(threshold, half), low), low)
    least = threshold - distance
    least = tl.where(half | (least > 0), least, 0.0)  # magnitudes are not negative
    bottom = tl.minimum(tl.maximum(keys_of(least, half), low), predicted)
    top = tl.maximum(keys_of(threshold + distance, half), predicted)
    tl.store(found + PREDICTED, predicted)
    tl.store(found + BOTTOM, tl.where(known, bottom, low))
    tl.store(found + TOP, tl.where(known, top, low))
    _reset_counters(found)
    tl.store(found + PRESENT, tl.full((), 0, tl.int64))
    tl.store(found + BROKEN, tl.full((), 0, tl.int64))


@triton.jit
def _reset_counters(found):
    for counter in tl.static_range(2, 6):
        tl.store(found + counter, tl.full((), 0, tl.int64))


@triton.jit
def _sample(
    row,
    found,
    keys,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    SAMPLE: tl.constexpr,
    DIGIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A bracket from a sample."""
    groups = entry(row, GROUPS)
    keep = entry(row, KEEP)
    bottom = entry(row, LOW)
    top = entry(row, HIGH)
    if keep >= groups:
        top = bottom
    elif keep > 0:
        # 32 bits hold them all: ranks in the sample, and a stride for up to 2^43 groups.
        count = tl.minimum(groups, SAMPLE).to(tl.int32)
        stride = tl.maximum(groups // SAMPLE, 1).to(tl.int32)
        few, many = keep.to(tl.int32), keep.to(tl.int32)
        if groups > SAMPLE:
            share = keep.to(tl.float64) / groups.to(tl.float64)
            rank = share * SAMPLE
            spread = rank * (1.0 - share)
            slack = 5.0 * tl.sqrt(tl.where(spread > 1.0, spread, 1.0)) + 8.0
            few = (rank - slack).to(tl.int32)
            many = (rank + slack).to(tl.int32)
        source = source_of(row, 0, DTYPE, ALIGNED)
        scored = scored_of(row, 0, keys)
        # First the lower end, that many reach, then the upper one.
        for end in range(2):
            wanted = tl.where(end == 0, many, few).to(tl.int64)
            if (wanted >= 1) & (wanted <= count):
                bound, _, _ = _kth(source, scored, count, stride, bottom, top, wanted, DUAL, DIGIT, BLOCK)
                bottom = tl.where(end == 0, bound, bottom)
                top = tl.where((end == 1) | (few == many), bound, top)
    tl.store(found + BOTTOM, bottom)
    tl.store(found + TOP, top)
    _reset_counters(found)


@triton.jit
def _bracket(
    table,
    keys,
    state,
    PREDICTION: tl.constexpr,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    SAMPLE: tl.constexpr,
    DIGIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = table + tl.program_id(0) * FIELDS
    found = state + tl.program_id(0) * STATE
    if PREDICTION:
        _, _, _, _, _, lost = _standing(row, found)
        is_scored = entry(row, SCORED) != 0
        cuts_off = is_scored | (entry(found, PRESENT) > entry(row, KEEP))
        missed = cuts_off & (lost | is_scored) & (entry(row, KEEP) > 0)
        # All threads have read what one of them writes next; they must go the same way.
        tl.debug_barrier()
        if ~cuts_off:
            tl.store(found + BOTTOM, entry(row, LOW))
            tl.store(found + TOP, entry(row, LOW))
            _reset_counters(found)
        tl.store(found + MISSED, missed.to(tl.int64))
        if missed:
            _sample(row, found, keys, DTYPE, DUAL, ALIGNED, SAMPLE, DIGIT, BLOCK)
    else:
        _sample(row, found, keys, DTYPE, DUAL, ALIGNED, SAMPLE, DIGIT, BLOCK)


@triton.jit
def _collect_keys(row, found, keys, places, key, begin):
    """Count the keys of a chunk by where they lie of the bracket, and collect those strictly inside.

    Where ``places`` is not None, their indices go there.
    """
    bottom = entry(found, BOTTOM)
    top = entry(found, TOP)
    inside = (key > bottom) & (key < top)
    # A chunk has fewer than 2^16 groups, so that one sum counts them all: above, at the top, inside, at the bottom.
    which = tl.where(key > top, 0, tl.where(key == top, 16, tl.where(inside, 32, 48))).to(tl.int64)
    counts = tl.sum(tl.where(key >= bottom, tl.full((), 1, tl.int64) << which, 0))
    for counter in tl.static_range(4):
        more = (counts >> (16 * counter)) & 0xFFFF
        at = found + ABOVE + counter
        if counter == 2:
            if more > 0:
                # A count larger than the room shows that keys are missing.
                place = tl.atomic_add(at, more, sem="relaxed") + tl.cumsum(inside.to(tl.int32), 0) - 1
                fits = inside & (place < entry(row, ROOM))
                place += entry(row, POOL)
                tl.store(keys + place, key, mask=fits)
                if places is not None:
                    tl.store(places + place, begin + tl.arange(0, key.shape[0]), mask=fits)
        else:
            tl.atomic_add(at, more, mask=more > 0, sem="relaxed")


@triton.jit
def predicted_to_survive(row, found, key):
    """Which groups of one weight survive as predicted."""
    return (key >= entry(found, PREDICTED)) & (entry(row, KEEP) > 0)


@triton.jit
def collect_predicted(row, found, keys, places, key, begin):
    """Count and collect a chunk of groups of one weight around the prediction; others are not looked at."""
    if (entry(row, KEEP) > 0) & (entry(row, SCORED) == 0):
        _collect_keys(row, found, keys, places, key, begin)
        # One sum counts both; that of the highest keys, which are NaN, may run over into the sign.
        is_nan = (key == entry(row, HIGH)).to(tl.int32)
        counts = tl.sum((key >= entry(row, LOW)).to(tl.int32) + (is_nan << 16))
        present = (counts & 0xFFFF).to(tl.int64)
        tl.atomic_add(found + PRESENT, present, mask=present > 0, sem="relaxed")
        if (counts >> 16) != 0:
            tl.store(found + BROKEN, tl.full((), 1, tl.int64))


@triton.jit
def _collect_chunk(
    row,
    found,
    keys,
    begin,
    mask,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    source = source_of(row, begin, DTYPE, ALIGNED)
    key = keys_at(source, scored_of(row, begin, keys), tl.arange(0, mask.shape[0]), mask, DUAL)
    _collect_keys(row, found, keys, None, key, begin)


@triton.jit
def _collect_from(
    row,
    found,
    keys,
    begin,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rest = entry(row, GROUPS) - begin
    if rest >= BLOCK:
        _collect_chunk(row, found, keys, begin, everywhere(BLOCK), DTYPE, DUAL, ALIGNED)
    else:
        _collect_chunk(row, found, keys, begin, tl.arange(0, BLOCK) < rest, DTYPE, DUAL, ALIGNED)


@triton.jit
def _collect(
    table,
    rows,
    keys,
    state,
    PREDICTION: tl.constexpr,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a chunk, or few a selection behind a prediction: that rarely misses, and most have nothing to do."""
    if PREDICTION:
        row = table + tl.program_id(0) * FIELDS
        found = state + tl.program_id(0) * STATE
        if entry(found, MISSED) != 0:
            for chunk in range(tl.program_id(1), tl.cdiv(entry(row, GROUPS), BLOCK), tl.num_programs(1)):
                _collect_from(row, found, keys, chunk * BLOCK, DTYPE, DUAL, ALIGNED, BLOCK)
    else:
        program = tl.program_id(0)
        number = row_of(table, rows, program, FIRST_CHUNK, FIELDS, ROWS)
        row = table + number * FIELDS
        if entry(row, KEEP) > 0:
            begin = (program - entry(row, FIRST_CHUNK)) * BLOCK
            _collect_from(row, state + number * STATE, keys, begin, DTYPE, DUAL, ALIGNED, BLOCK)


@triton.jit
def _next_threshold(row, found, thresholds, threshold, DTYPE: tl.constexpr):
    """Write the threshold and the distance within which the next one is looked for, as the reference does."""
    nan = float("nan")
    keep = entry(row, KEEP)
    cut_off = (entry(row, SCORED) == 0) & (keep > 0) & (keep < entry(found, PRESENT))
    weakest = tl.where(entry(found, BROKEN) != 0, nan, value_of(threshold, DTYPE))
    old = tl.load(thresholds)
    old_distance = tl.load(thresholds + 1)
    moved = tl.abs(weakest - old) * 4.0
    shrunk = old_distance * 0.75
    distance = tl.where((moved > shrunk) | (moved != moved), moved, shrunk)
    distance = tl.where((old != old) | (old_distance != old_distance), tl.abs(weakest) * 0.125, distance)
    tl.store(thresholds, tl.where(cut_off, weakest, nan))
    tl.store(thresholds + 1, tl.where(cut_off, distance, nan))


@triton.jit
def _resolve(
    table,
    keys,
    state,
    thresholds,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    DIGIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = table + tl.program_id(0) * FIELDS
    found = state + tl.program_id(0) * STATE
    keep = entry(row, KEEP)
    low = entry(found, BOTTOM)
    high = entry(found, TOP)
    above, to_top, to_inside, to_bottom, is_inside, lost = _standing(row, found)
    at_top = to_top >= keep
    threshold = tl.where(at_top, high, low)
    wanted = keep - tl.where(at_top, above, to_inside)
    ties = tl.where(at_top, to_top - above, to_bottom - to_inside)
    if (keep > 0) & (is_inside | lost):
        is_scored, at = scored_of(row, 0, keys)
        wanted = keep
        count = to_inside - to_top
        if lost:
            count = entry(row, GROUPS)
            low = entry(row, LOW)
            high = entry(row, HIGH)
        else:
            wanted -= to_top
            is_scored = is_scored | True
            at = keys + entry(row, POOL)
        source = source_of(row, 0, DTYPE, ALIGNED)
        one = tl.full((), 1, tl.int64)
        threshold, wanted, ties = _kth(source, (is_scored, at), count, one, low, high, wanted, DUAL, DIGIT, BLOCK)
    tl.store(found + THRESHOLD, tl.where(keep > 0, threshold, _NEVER))
    tl.store(found + WANTED, tl.where((keep > 0) & (wanted < ties), wanted, 0))
    tl.store(found + LAST, tl.where(keep > 0, _NEVER, -1))
    if thresholds is not None:
        _next_threshold(row, found, thresholds + tl.program_id(0) * 2, threshold, DTYPE)
        # The prediction was right, or wrong only about groups that were collected: what lies at the bottom was not, and
        # must not have been predicted to survive.
        predicted = entry(found, PREDICTED)
        right = (threshold == predicted) & (wanted >= ties)
        nearly = is_inside & (predicted > entry(found, BOTTOM))
        missed = (entry(found, MISSED) != 0) | ((keep > 0) & ~right & ~nearly)
        tl.store(found + MISSED, missed.to(tl.int64))


@triton.jit
def _count_ties(
    row,
    found,
    keys,
    counts,
    chunk,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    begin = chunk * BLOCK
    index = tl.arange(0, BLOCK)
    mask = index < entry(row, GROUPS) - begin
    source = source_of(row, begin, DTYPE, ALIGNED)
    key = keys_at(source, scored_of(row, begin, keys), index, mask, DUAL)
    equal = key == entry(found, THRESHOLD)
    tl.store(counts + entry(row, FIRST_CHUNK) + chunk, tl.sum(equal.to(tl.int32)))


@triton.jit
def _ties(
    table,
    rows,
    keys,
    state,
    counts,
    PREDICTION: tl.constexpr,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many groups of each chunk have the threshold's key, where not all of them are wanted.

    One program a chunk, or few a selection, as in :func:`_collect`.
    """
    if PREDICTION:
        row = table + tl.program_id(0) * FIELDS
        found = state + tl.program_id(0) * STATE
        if entry(found, WANTED) > 0:
            for chunk in range(tl.program_id(1), tl.cdiv(entry(row, GROUPS), BLOCK), tl.num_programs(1)):
                _count_ties(row, found, keys, counts, chunk, DTYPE, DUAL, ALIGNED, BLOCK)
    else:
        program = tl.program_id(0)
        number = row_of(table, rows, program, FIRST_CHUNK, FIELDS, ROWS)
        row = table + number * FIELDS
        found = state + number * STATE
        if entry(found, WANTED) > 0:
            chunk = program - entry(row, FIRST_CHUNK)
            _count_ties(row, found, keys, counts, chunk, DTYPE, DUAL, ALIGNED, BLOCK)


@triton.jit
def _last(
    table,
    keys,
    state,
    counts,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The index of the last group of the threshold's key that is wanted."""
    row = table + tl.program_id(0) * FIELDS
    found = state + tl.program_id(0) * STATE
    wanted = entry(found, WANTED)
    if wanted > 0:
        groups = entry(row, GROUPS)
        chunks = tl.cdiv(groups, BLOCK)
        first = entry(row, FIRST_CHUNK)
        before = tl.full((), 0, tl.int64)  # ties before the chunk that holds the last one
        chunk = tl.full((), 0, tl.int64)
        for begin in range(0, chunks, BLOCK):
            i = begin + tl.arange(0, BLOCK).to(tl.int64)
            ties = tl.load(counts + first + i, mask=i < chunks, other=0).to(tl.int64)
            through = before + tl.cumsum(ties, 0)
            passed = (through < wanted) & (i < chunks)
            # Once the chunk is found, no later one is passed.
            chunk += tl.sum(passed.to(tl.int64))
            before = tl.max(tl.where(passed, through, before))
        index = chunk * BLOCK + tl.arange(0, BLOCK)
        source = source_of(row, 0, DTYPE, ALIGNED)
        key = keys_at(source, scored_of(row, 0, keys), index, index < groups, DUAL)
        equal = (key == entry(found, THRESHOLD)).to(tl.int64)
        is_last = (equal != 0) & (before + tl.cumsum(equal, 0) == wanted)
        tl.store(found + LAST, tl.max(tl.where(is_last, index, -1)))


def _new_state(plan: SelectionPlan) -> Tensor:
    return torch.empty(STATE.value * plan.rows, dtype=torch.int64, device=plan.table.device)


def predict(plan: SelectionPlan, thresholds: Tensor) -> Tensor:
    """The state from which a kernel collects by :func:`collect_predicted`, before :func:`select`.

    ``thresholds`` has two numbers a selection: the threshold that is expected and how far off it may be, or NaN.
    """
    state = _new_state(plan)
    _predict[(plan.rows,)](plan.table, state, thresholds, **_PREDICT_OPTIONS)
    return state


def select(
    plan: SelectionPlan,
    keys: Tensor,
    dtype: torch.dtype,
    dual: bool,
    predicted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Find the threshold and the last tie of every selection; returns the state.

    ``predicted`` are the state of a prediction, which is completed, and its ``thresholds``: the next ones are written
    there.
    """
    device, sizes = plan.table.device, _launch.sizes
    state, thresholds = predicted or (_new_state(plan), None)
    counts = torch.empty(plan.chunks, dtype=torch.int32, device=device)
    shared = {"DTYPE": FLOATS[dtype], "DUAL": dual, "ALIGNED": plan.aligned}
    searching = {**shared, "DIGIT": sizes.digit, "BLOCK": sizes.search, **_SEARCH_OPTIONS}
    constants = {**shared, "BLOCK": sizes.chunk, **_OPTIONS}
    table, rows, padded = plan.table, plan.rows, plan.padded_rows
    prediction = predicted is not None
    by_chunks = {"PREDICTION": prediction, "ROWS": padded, **constants}
    programs = (rows, sizes.few) if prediction else (plan.chunks,)
    _bracket[(rows,)](table, keys, state, PREDICTION=prediction, SAMPLE=sizes.sample, **searching)
    if plan.chunks > 0:
        _collect[programs](table, rows, keys, state, **by_chunks)
    _resolve[(rows,)](table, keys, state, thresholds, **searching)
    if plan.chunks > 0:
        _ties[programs](table, rows, keys, state, counts, **by_chunks)
        _last[(rows,)](table, keys, state, counts, **constants)
    return state


def _ahead(dtype: torch.dtype, dual: bool, is_aligned: bool = True, prediction: bool = False) -> list[Ahead]:
    """The five kernels for 53 layers, or those four that differ behind a prediction."""
    sizes = _launch.sizes
    shared = {"DTYPE": FLOATS[dtype], "DUAL": dual, "ALIGNED": is_aligned}
    searching: dict[str, object] = {"DIGIT": sizes.digit, "BLOCK": sizes.search}
    extra: dict[Any, dict[str, object]] = {
        _bracket: {"PREDICTION": prediction, "SAMPLE": sizes.sample, **searching},
        _collect: {"PREDICTION": prediction, "ROWS": 64, "BLOCK": sizes.chunk},
        _resolve: searching if prediction else {"thresholds": None, **searching},
        _ties: {"PREDICTION": prediction, "ROWS": 64, "BLOCK": sizes.chunk},
        _last: {"BLOCK": sizes.chunk},
    }
    names = ("bracket", "collect", "resolve", "ties", "last")
    types = {"rows": "i32", "counts": "*i32", "thresholds": f"*{FLOATS[dtype]}"}
    changes = f"{', dual' * dual}{', predicted' * prediction}{', unaligned' * (not is_aligned)}"
    return [
        Ahead(
            f"select_{name}[{FLOATS[dtype]}{changes}]",
            kernel,
            {
                argument: types.get(argument, "*i64")
                for argument in kernel.arg_names
                if argument.islower() and argument not in constants
            },
            shared | constants,
            _SEARCH_OPTIONS if "DIGIT" in constants else _OPTIONS,
        )
        for name, (kernel, constants) in zip(names, extra.items(), strict=True)
        if not prediction or name != "last"
    ]


def _ahead_predict(dtype: torch.dtype) -> Ahead:
    types = {"table": "*i64", "state": "*i64", "thresholds": f"*{FLOATS[dtype]}"}
    return Ahead(f"select_predict[{FLOATS[dtype]}]", _predict, types, {}, _PREDICT_OPTIONS)


AOT = [
    *(ahead for dtype in FLOATS for ahead in _ahead(dtype, dual=False)),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, dual=True)),
    *_ahead(torch.float32, dual=True, is_aligned=False),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, dual=False, prediction=True)),
    *(_ahead_predict(dtype) for dtype in STATE_FLOATS),
]
