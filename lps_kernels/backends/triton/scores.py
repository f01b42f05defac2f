"""Scores of groups in Triton: partial sums in fp64 cut by the sizes alone, then added in a fixed order.

Every group of a layer is cut the same way, so groups with the same weights have the same score.
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
from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of
from lps_kernels.backends.triton._selections import (
    BY_COLUMN,
    DEPTH,
    FIELDS,
    FIRST_CHUNK,
    FIRST_FOLD,
    FIRST_PART,
    GROUPS,
    HALF,
    KEYS,
    LINES,
    OUT,
    OUTSIDE,
    RUN,
    SCORED,
    SUMS,
    Selection,
    SelectionPlan,
    keys_of,
    plan_for,
    source_of,
    values_of,
)
from lps_kernels.backends.triton._tables import entry, pointer, row_of, runs_ended
from lps_kernels.ops.scores import group_score_kind, views_of

_WARPS = 8


@triton.jit
def _terms(source, index, mask, DUAL: tl.constexpr):
    """What these weights add to their groups' sums, and which of them lie in the region."""
    value, _, inside = values_of(source, index, mask, DUAL)
    term = tl.where(source[4], value.to(tl.float64) - 0.5, (value * value).to(tl.float64))
    return tl.where(inside, term, 0.0), inside.to(tl.int32)


@triton.jit
def _sum_columns(
    source, task, lines, depth, DUAL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr
):
    """Columns of the layer, summed over some of its rows: which ones, the part, sums and whether any weight is in."""
    strips = tl.cdiv(lines, WIDTH)
    outer = task // strips
    line = (task % strips) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((HEIGHT, WIDTH), tl.float64)
    some = tl.zeros((HEIGHT, WIDTH), tl.int32)
    for tile in range(tl.minimum(TILES, tl.cdiv(depth, HEIGHT) - outer * TILES)):
        at = (outer * TILES + tile) * HEIGHT + tl.arange(0, HEIGHT)
        mask = (at[:, None] < depth) & (line[None, :] < lines)
        term, inside = _terms(source, at[:, None] * lines + line[None, :], mask, DUAL)
        total += term
        some = some | inside
    return line, outer, tl.sum(total, axis=0), tl.max(some, axis=0)


@triton.jit
def _sum_runs(
    source,
    task,
    lines,
    depth,
    run,
    DUAL: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
):
    """Groups, summed over a piece of their runs as if these stood behind one another; returns the same."""
    strips = tl.cdiv(lines, HEIGHT)
    outer = task // strips
    line = (task % strips) * HEIGHT + tl.arange(0, HEIGHT)
    total = tl.zeros((HEIGHT, WIDTH), tl.float64)
    some = tl.zeros((HEIGHT, WIDTH), tl.int32)
    for tile in range(tl.minimum(TILES, tl.cdiv(depth, WIDTH) - outer * TILES)):
        begin = (outer * TILES + tile) * WIDTH
        at = begin + tl.arange(0, WIDTH)
        # Between two runs of a group lie those of the others.
        passed = begin // run
        number = passed + runs_ended(begin - passed * run, run, tl.arange(0, WIDTH))
        start = number * (lines - 1) * run + at
        mask = (line[:, None] < lines) & (at[None, :] < depth)
        term, inside = _terms(source, line[:, None] * run + start[None, :], mask, DUAL)
        total += term
        some = some | inside
    return line, outer, tl.sum(total, axis=1), tl.max(some, axis=1)


@triton.jit
def _store_part(row, sums, present, lines, line, outer, total, some):
    place = entry(row, SUMS) + outer * lines + line
    tl.store(sums + place, total, mask=line < lines)
    tl.store(present + place, some.to(tl.uint8), mask=line < lines)


@triton.jit
def _parts(
    table,
    rows,
    sums,
    present,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    TILE_RUN: tl.constexpr,
    TILES: tl.constexpr,
):
    program = tl.program_id(0)
    row = table + row_of(table, rows, program, FIRST_PART, FIELDS, ROWS) * FIELDS
    task = program - entry(row, FIRST_PART)
    lines = entry(row, LINES)
    depth = entry(row, DEPTH)
    source = source_of(row, 0, DTYPE, ALIGNED)
    if entry(row, BY_COLUMN) != 0:
        column, part, sum_, any_ = _sum_columns(source, task, lines, depth, DUAL, TILE_ROWS, TILE_COLUMNS, TILES)
        _store_part(row, sums, present, lines, column, part, sum_, any_)
    else:
        run = entry(row, RUN)
        group, piece, total, some = _sum_runs(source, task, lines, depth, run, DUAL, TILE_GROUPS, TILE_RUN, TILES)
        _store_part(row, sums, present, lines, group, piece, total, some)


@triton.jit
def _fold(
    table,
    rows,
    sums,
    present,
    keys,
    TO_SCORES: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_RUN: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    row = table + row_of(table, rows, program, FIRST_FOLD, FIELDS, ROWS) * FIELDS
    groups = entry(row, GROUPS)
    group = (program - entry(row, FIRST_FOLD)) * BLOCK + tl.arange(0, BLOCK)
    mask = group < groups
    # Partial sums stand as [outer, groups, inner].
    inner = entry(row, LINES) // groups
    deep = tl.where(entry(row, BY_COLUMN) != 0, TILE_ROWS * TILES, TILE_RUN * TILES)
    outer = tl.cdiv(entry(row, DEPTH), deep)
    first = entry(row, SUMS)
    total = tl.zeros((BLOCK,), tl.float64)
    some = tl.zeros((BLOCK,), tl.int32)
    for part in range(outer * inner):
        place = first + (part // inner * groups + group) * inner + part % inner
        total += tl.load(sums + place, mask=mask, other=0.0)
        some = some | tl.load(present + place, mask=mask, other=0).to(tl.int32)
    half = entry(row, HALF) != 0
    score = tl.where(half, total, tl.sqrt(tl.where(half, 0.0, total)))
    if TO_SCORES:
        score = tl.where(some != 0, score, -float("inf"))
        tl.store(pointer(row, OUT, tl.float64, ALIGNED) + group, score, mask=mask)
    else:
        key = tl.where(some != 0, keys_of(score, half), OUTSIDE)
        tl.store(keys + entry(row, KEYS) + group, key, mask=mask)


@triton.jit
def _single(table, rows, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Scores of groups of one weight: the magnitude, or the value itself."""
    program = tl.program_id(0)
    row = table + row_of(table, rows, program, FIRST_CHUNK, FIELDS, ROWS) * FIELDS
    if entry(row, SCORED) == 0:
        begin = (program - entry(row, FIRST_CHUNK)) * BLOCK
        index = tl.arange(0, BLOCK)
        mask = index < entry(row, GROUPS) - begin
        source = source_of(row, begin, DTYPE, ALIGNED)
        value, _, inside = values_of(source, index, mask, False)
        score = tl.where(source[4], value, tl.abs(value)).to(tl.float64)
        score = tl.where(inside, score, -float("inf"))
        tl.store(pointer(row, OUT, tl.float64, ALIGNED) + begin + index, score, mask=mask)


def score_groups(plan: SelectionPlan, keys: Tensor, dtype: torch.dtype, dual: bool, to_scores: bool) -> None:
    """Score the larger groups of the plan, as keys or as scores in their ``out``."""
    device, sizes = plan.table.device, _launch.sizes
    if plan.folds == 0:
        return
    sums = torch.empty(plan.sums, dtype=torch.float64, device=device)
    present = torch.empty(plan.sums, dtype=torch.uint8, device=device)
    if plan.parts > 0:
        _parts[(plan.parts,)](
            plan.table,
            plan.rows,
            sums,
            present,
            DTYPE=FLOATS[dtype],
            DUAL=dual,
            ALIGNED=plan.aligned,
            ROWS=plan.padded_rows,
            TILE_ROWS=sizes.columns[0],
            TILE_COLUMNS=sizes.columns[1],
            TILE_GROUPS=sizes.runs[0],
            TILE_RUN=sizes.runs[1],
            TILES=sizes.depth,
            num_warps=_WARPS,
            **EXACT,
        )
    _fold[(plan.folds,)](
        plan.table,
        plan.rows,
        sums,
        present,
        keys,
        TO_SCORES=to_scores,
        ALIGNED=plan.aligned,
        ROWS=plan.padded_rows,
        TILE_ROWS=sizes.columns[0],
        TILE_RUN=sizes.runs[1],
        TILES=sizes.depth,
        BLOCK=sizes.fold,
        **EXACT,
    )


def group_scores(
    x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> list[Tensor]:
    """The fp64 score of every group of every layer; -inf where a group has no coordinate in the region."""
    scores: list[Tensor] = REGISTRY["group_scores"].fake(x, owner, views, score, region)
    if sum(out.numel() for out in scores) == 0:
        return scores
    selections = [
        Selection(
            tensor.contiguous(),
            view,
            region,
            group_score_kind(score),
            owner=owner[layer].contiguous() if owner else None,
            out=scores[layer],
        )
        for layer, (tensor, view) in enumerate(zip(x, views_of(views), strict=True))
    ]
    plan, dtype = plan_for(selections), x[0].dtype
    with on_device_of(x[0]):
        score_groups(plan, plan.new_keys(), dtype, dual=False, to_scores=True)
        if plan.chunks > 0:
            _single[(plan.chunks,)](
                plan.table,
                plan.rows,
                DTYPE=FLOATS[dtype],
                ALIGNED=plan.aligned,
                ROWS=plan.padded_rows,
                BLOCK=_launch.sizes.chunk,
                num_warps=_WARPS,
                **EXACT,
            )
    return scores


def _ahead(dtype: torch.dtype, dual: bool, is_aligned: bool = True) -> list[Ahead]:
    """The kernels for 53 layers."""
    sizes = _launch.sizes
    shared = {"ALIGNED": is_aligned, "ROWS": 64}
    tiles = {"TILE_ROWS": sizes.columns[0], "TILE_RUN": sizes.runs[1], "TILES": sizes.depth}
    lines = {"TILE_COLUMNS": sizes.columns[1], "TILE_GROUPS": sizes.runs[0]}
    parts = {"DTYPE": FLOATS[dtype], "DUAL": dual, **tiles, **lines, **shared}
    table = {"table": "*i64", "rows": "i32"}
    summed = {**table, "sums": "*fp64", "present": "*u8"}
    options = {"num_warps": _WARPS, **EXACT}
    name = f"[{FLOATS[dtype]}{', dual' * dual}{', unaligned' * (not is_aligned)}]"
    kernels = [Ahead(f"scores_parts{name}", _parts, summed, parts, options)]
    if not dual:
        single = {"DTYPE": FLOATS[dtype], "BLOCK": sizes.chunk, **shared}
        kernels.append(Ahead(f"scores_single{name}", _single, table, single, options))
    return kernels


def _ahead_fold(to_scores: bool, is_aligned: bool = True) -> Ahead:
    sizes = _launch.sizes
    name = f"scores_fold[{'scores' if to_scores else 'keys'}{', unaligned' * (not is_aligned)}]"
    signature = {"table": "*i64", "rows": "i32", "sums": "*fp64", "present": "*u8", "keys": "*i64"}
    constants: dict[str, object] = {"TO_SCORES": to_scores, "ALIGNED": is_aligned, "ROWS": 64}
    constants |= {"TILE_ROWS": sizes.columns[0], "TILE_RUN": sizes.runs[1], "TILES": sizes.depth, "BLOCK": sizes.fold}
    return Ahead(name, _fold, signature, constants, {**EXACT})


KERNELS: Kernels = {"group_scores": group_scores}
AOT = [
    *(ahead for dtype in FLOATS for ahead in _ahead(dtype, dual=False)),
    *(ahead for dtype in STATE_FLOATS for ahead in _ahead(dtype, dual=True)),
    *_ahead(torch.float32, dual=False, is_aligned=False),
    _ahead_fold(to_scores=False),
    _ahead_fold(to_scores=True),
    _ahead_fold(to_scores=True, is_aligned=False),
]
