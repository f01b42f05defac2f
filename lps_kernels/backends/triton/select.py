"""Exact top-k in Triton, for all selections of a table in five launches.

A sample of each selection brackets the key of its k-th best group; one pass counts what lies above the bracket and at
its ends and collects the few keys strictly inside; a search among those gives the exact key. Where fewer groups of that
very key are wanted than there are, a further pass finds the index of the last one. Nothing of this waits for the
device, and counts are integers, so the result is the same for any sample and any order of the programs.

A bracket that misses, or holds more keys than there is room for, is repaired by a search through the whole selection:
exact, but by one program alone. A sample of scattered coordinates and five deviations make that rare. A layer no larger
than the sample is searched whole at once.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

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
    HIGH,
    KEEP,
    LOW,
    POOL,
    ROOM,
    SelectionPlan,
    keys_at,
    scored_of,
    source_of,
)
from lps_kernels.backends.triton._tables import entry, everywhere, row_of

# What is known of each selection, an int64 each: the bracket, how many keys lie above it, at its upper end, strictly
# inside and at its lower end; then the key of the last group that survives, how many of that key are wanted (0: all of
# them), and the index of the last of these.
BOTTOM, TOP, ABOVE, AT_TOP, INSIDE, AT_BOTTOM, THRESHOLD, WANTED, LAST = (tl.constexpr(i) for i in range(9))
STATE = tl.constexpr(9)
_NEVER = tl.constexpr(2**63 - 1)
_OPTIONS: dict[str, object] = {"num_warps": 8, **EXACT}
# A search is one program, whose turns come one after the other. It looks at as many keys together as all architectures
# have registers for.
_SEARCH_OPTIONS: dict[str, object] = {"num_warps": 8, **registers(64), **EXACT}


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
def _bracket(
    table,
    keys,
    state,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    SAMPLE: tl.constexpr,
    DIGIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = table + tl.program_id(0) * FIELDS
    found = state + tl.program_id(0) * STATE
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
    for counter in tl.static_range(2, 6):
        tl.store(found + counter, tl.full((), 0, tl.int64))


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
                tl.store(keys + entry(row, POOL) + place, key, mask=fits)
        else:
            tl.atomic_add(at, more, mask=more > 0, sem="relaxed")


@triton.jit
def _collect(
    table,
    rows,
    keys,
    state,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    number = row_of(table, rows, program, FIRST_CHUNK, FIELDS, ROWS)
    row = table + number * FIELDS
    found = state + number * STATE
    if entry(row, KEEP) > 0:
        begin = (program - entry(row, FIRST_CHUNK)) * BLOCK
        rest = entry(row, GROUPS) - begin
        if rest >= BLOCK:
            _collect_chunk(row, found, keys, begin, everywhere(BLOCK), DTYPE, DUAL, ALIGNED)
        else:
            _collect_chunk(row, found, keys, begin, tl.arange(0, BLOCK) < rest, DTYPE, DUAL, ALIGNED)


@triton.jit
def _resolve(
    table,
    keys,
    state,
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
    above = entry(found, ABOVE)
    to_top = above + entry(found, AT_TOP)
    count = entry(found, INSIDE)
    to_inside = to_top + count
    to_bottom = to_inside + entry(found, AT_BOTTOM)
    is_inside = (to_top < keep) & (keep <= to_inside)
    # Fewer groups than are to be kept are kept all, from the lowest key on. Nothing is searched to keep all there are.
    too_high = (above >= keep) & (keep < entry(row, GROUPS))
    missed = too_high | ((to_bottom < keep) & (low > entry(row, LOW)))
    lacks_room = is_inside & (count > entry(row, ROOM))
    at_top = to_top >= keep
    threshold = tl.where(at_top, high, low)
    wanted = keep - tl.where(at_top, above, to_inside)
    ties = tl.where(at_top, to_top - above, to_bottom - to_inside)
    if (keep > 0) & (is_inside | missed):
        is_scored, at = scored_of(row, 0, keys)
        wanted = keep
        if missed | lacks_room:
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


@triton.jit
def _ties(
    table,
    rows,
    keys,
    state,
    counts,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many groups of each chunk have the threshold's key, where not all of them are wanted."""
    program = tl.program_id(0)
    number = row_of(table, rows, program, FIRST_CHUNK, FIELDS, ROWS)
    row = table + number * FIELDS
    found = state + number * STATE
    if entry(found, WANTED) > 0:
        begin = (program - entry(row, FIRST_CHUNK)) * BLOCK
        index = tl.arange(0, BLOCK)
        mask = index < entry(row, GROUPS) - begin
        source = source_of(row, begin, DTYPE, ALIGNED)
        key = keys_at(source, scored_of(row, begin, keys), index, mask, DUAL)
        equal = key == entry(found, THRESHOLD)
        tl.store(counts + program, tl.sum(equal.to(tl.int32)))


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


def select(plan: SelectionPlan, keys: Tensor, dtype: torch.dtype, dual: bool) -> Tensor:
    """Find the threshold and the last tie of every selection; returns the state."""
    device, sizes = plan.table.device, _launch.sizes
    state = torch.empty(STATE.value * plan.rows, dtype=torch.int64, device=device)
    counts = torch.empty(plan.chunks, dtype=torch.int32, device=device)
    shared = {"DTYPE": FLOATS[dtype], "DUAL": dual, "ALIGNED": plan.aligned}
    searching = {**shared, "DIGIT": sizes.digit, "BLOCK": sizes.search, **_SEARCH_OPTIONS}
    constants = {**shared, "BLOCK": sizes.chunk, **_OPTIONS}
    table, rows, padded = plan.table, plan.rows, plan.padded_rows
    _bracket[(rows,)](table, keys, state, SAMPLE=sizes.sample, **searching)
    if plan.chunks > 0:
        _collect[(plan.chunks,)](table, rows, keys, state, ROWS=padded, **constants)
    _resolve[(rows,)](table, keys, state, **searching)
    if plan.chunks > 0:
        _ties[(plan.chunks,)](table, rows, keys, state, counts, ROWS=padded, **constants)
        _last[(rows,)](table, keys, state, counts, **constants)
    return state


def _ahead(dtype: torch.dtype, dual: bool, is_aligned: bool = True) -> list[Ahead]:
    """The five kernels for 53 layers."""
    sizes = _launch.sizes
    shared = {"DTYPE": FLOATS[dtype], "DUAL": dual, "ALIGNED": is_aligned}
    searching: dict[str, object] = {"DIGIT": sizes.digit, "BLOCK": sizes.search}
    extra: dict[Any, dict[str, object]] = {
        _bracket: {"SAMPLE": sizes.sample, **searching},
        _collect: {"ROWS": 64, "BLOCK": sizes.chunk},
        _resolve: searching,
        _ties: {"ROWS": 64, "BLOCK": sizes.chunk},
        _last: {"BLOCK": sizes.chunk},
    }
    names = ("bracket", "collect", "resolve", "ties", "last")
    types = {"rows": "i32", "counts": "*i32"}
    return [
        Ahead(
            f"select_{name}[{FLOATS[dtype]}{', dual' * dual}{', unaligned' * (not is_aligned)}]",
            kernel,
            {argument: types.get(argument, "*i64") for argument in kernel.arg_names if argument.islower()},
            shared | constants,
            _SEARCH_OPTIONS if "DIGIT" in constants else _OPTIONS,
        )
        for name, (kernel, constants) in zip(names, extra.items(), strict=True)
    ]


AOT = [
    *(ahead for dtype in FLOATS for ahead in _ahead(dtype, dual=False)),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, dual=True)),
    *_ahead(torch.float32, dual=True, is_aligned=False),
]
