"""Projections and the ADMM update in Triton: score, select, write; at most eight launches for any number of layers."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS, check_contiguous, check_no_overlap, refuse_unless
from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of
from lps_kernels.backends.triton._numbers import narrow
from lps_kernels.backends.triton._owners import with_kept
from lps_kernels.backends.triton._selections import (
    CENTRE,
    FIELDS,
    FIRST_WRITE,
    GROUPS,
    HALF,
    KEPT,
    KEYS,
    OUT,
    OWNER,
    RUN,
    SCORED,
    WEIGHTS,
    Selection,
    SelectionPlan,
    keys_of,
    plan_for,
    source_of,
    values_of,
    write_block,
)
from lps_kernels.backends.triton._tables import entry, everywhere, pointer, row_of, runs_ended
from lps_kernels.backends.triton.bits import packed
from lps_kernels.backends.triton.scores import score_groups
from lps_kernels.backends.triton.select import LAST, STATE, THRESHOLD, select
from lps_kernels.ops.scores import View, group_score_kind, views_of

_WARPS = 8


@triton.jit
def survives(row, found, keys, value, inside, begin, mask, BLOCK: tl.constexpr):
    """Which weights of a chunk, that begins at ``begin``, lie in a group that survives."""
    if entry(row, SCORED) != 0:
        run = entry(row, RUN)
        groups = entry(row, GROUPS)
        passed = begin // run
        first = passed % groups
        further = runs_ended(begin - passed * run, run, tl.arange(0, BLOCK))
        position = first + further - runs_ended(first, groups, further).to(tl.int64) * groups
        key = tl.load(keys + entry(row, KEYS) + position, mask=mask, other=0)
    else:
        position = begin + tl.arange(0, BLOCK)
        key = keys_of(value, entry(row, HALF) != 0)
    threshold = entry(found, THRESHOLD)
    return inside & ((key > threshold) | ((key == threshold) & (position <= entry(found, LAST))))


@triton.jit
def _project_chunk(
    row,
    found,
    keys,
    begin,
    mask,
    byte_mask,
    AS_MASK: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.arange(0, BLOCK)
    value, _, inside = values_of(source_of(row, begin, DTYPE, ALIGNED), index, mask, False)
    kept = survives(row, found, keys, value, inside, begin, mask, BLOCK)
    # Narrowing what was widened gives it back, a NaN as some NaN.
    written = narrow(tl.where(kept, 1.0 if AS_MASK else value, 0.0), DTYPE)
    tl.store(pointer(row, OUT, DTYPE, ALIGNED) + begin + index, written, mask=mask)
    byte = tl.arange(0, BLOCK // 8)
    tl.store(pointer(row, KEPT, tl.uint8, ALIGNED) + begin // 8 + byte, packed(kept), mask=byte_mask)


@triton.jit
def _write_projection(
    table,
    rows,
    keys,
    state,
    AS_MASK: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    number = row_of(table, rows, program, FIRST_WRITE, FIELDS, ROWS)
    row = table + number * FIELDS
    found = state + number * STATE
    begin = (program - entry(row, FIRST_WRITE)) * BLOCK
    rest = entry(row, WEIGHTS) - begin
    if rest >= BLOCK:
        mask, bytes_mask = everywhere(BLOCK), everywhere(BLOCK // 8)
        _project_chunk(row, found, keys, begin, mask, bytes_mask, AS_MASK, DTYPE, ALIGNED, BLOCK)
    else:
        mask, bytes_mask = tl.arange(0, BLOCK) < rest, tl.arange(0, BLOCK // 8) * 8 < rest
        _project_chunk(row, found, keys, begin, mask, bytes_mask, AS_MASK, DTYPE, ALIGNED, BLOCK)


@triton.jit
def _update_chunk(
    row,
    found,
    keys,
    begin,
    mask,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    HAS_CENTRE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.arange(0, BLOCK)
    s, owner, free = values_of(source_of(row, begin, DTYPE, ALIGNED), index, mask, DUAL)
    kept = survives(row, found, keys, s, free, begin, mask, BLOCK)
    shares = survives(row + FIELDS, found + STATE, keys, s, mask & ~free, begin, mask, BLOCK)
    kept = kept | shares
    if HAS_CENTRE:
        shared = kept.to(s.dtype)
        # Triton's unary minus is 0 - s, which makes +0.0 of +0.0.
        centre = tl.where(free, tl.where(kept, s, s * -1.0), shared - (s - shared))
        tl.store(pointer(row, CENTRE, DTYPE, ALIGNED) + begin + index, centre, mask=mask)
    tl.store(pointer(row, OWNER, tl.uint8, ALIGNED) + begin + index, with_kept(owner, kept), mask=mask)


@triton.jit
def _write_update(
    table,
    rows,
    keys,
    state,
    DTYPE: tl.constexpr,
    DUAL: tl.constexpr,
    HAS_CENTRE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    # Two selections per layer, of its free and of its owned weights; both name the same first program.
    number = row_of(table, rows, program, FIRST_WRITE, FIELDS, ROWS) - 1
    row = table + number * FIELDS
    found = state + number * STATE
    begin = (program - entry(row, FIRST_WRITE)) * BLOCK
    rest = entry(row, WEIGHTS) - begin
    if rest >= BLOCK:
        mask = everywhere(BLOCK)
        _update_chunk(row, found, keys, begin, mask, DTYPE, DUAL, HAS_CENTRE, ALIGNED, BLOCK)
    else:
        mask = tl.arange(0, BLOCK) < rest
        _update_chunk(row, found, keys, begin, mask, DTYPE, DUAL, HAS_CENTRE, ALIGNED, BLOCK)


def _check_keep(op: str, name: str, keep: Sequence[int], views: Sequence[View], region: str) -> None:
    """Checks the sizes alone; a keep larger than the number of groups in the region keeps all of them."""
    kind = "" if region == "all" else f"{region} "
    for layer, (count, view) in enumerate(zip(keep, views, strict=True)):
        # A view without weights has no group to keep.
        groups = view[1] if view[0] * view[2] > 0 else 0
        expected = f"between 0 and {groups} (the {kind}groups of layer {layer})"
        refuse_unless(0 <= count <= groups, op, f"{name}[{layer}]", expected, count)


def project(
    x: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[int],
    score: str,
    region: str,
    output: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """Keep the best groups of every layer, as values or as ones, and their packed bits."""
    projected: list[Tensor]
    kept: list[Tensor]
    projected, kept = REGISTRY["project"].fake(x, owner, keep, views, score, region, output)
    _check_keep("project", "keep", keep, views_of(views), region)
    if sum(tensor.numel() for tensor in x) == 0:
        return projected, kept
    selections = [
        Selection(
            tensor.contiguous(),
            view,
            region,
            group_score_kind(score),
            keep[layer],
            owner=owner[layer].contiguous() if owner else None,
            out=projected[layer],
            kept=kept[layer],
        )
        for layer, (tensor, view) in enumerate(zip(x, views_of(views), strict=True))
    ]
    plan, dtype = plan_for(selections), x[0].dtype
    with on_device_of(x[0]):
        keys = plan.new_keys()
        score_groups(plan, keys, dtype, dual=False, to_scores=False)
        state = select(plan, keys, dtype, dual=False)
        _write_projection[(plan.writes,)](
            plan.table, plan.rows, keys, state, AS_MASK=output == "mask", **_writing(plan, dtype)
        )
    return projected, kept


def admm_update_(
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep_free: Sequence[int],
    keep_owned: Sequence[int],
    views: Sequence[int],
    sharing_views: Sequence[int],
    emerging: bool,
    fresh: bool,
) -> None:
    """Project both roles of every layer and write ``centre``, if there is one, and the kept bits of ``owner``."""
    op = "admm_update_"
    REGISTRY[op].fake(v, centre, owner, keep_free, keep_owned, views, sharing_views, emerging, fresh)
    written = [(f"{name}[{i}]", t) for name, ts in (("centre", centre), ("owner", owner)) for i, t in enumerate(ts)]
    for name, tensor in written:
        check_contiguous(op, name, tensor)
    check_no_overlap(op, written, [(f"v[{i}]", t) for i, t in enumerate(v)])
    _check_keep(op, "keep_free", keep_free, views_of(views), "free")
    if not emerging:
        _check_keep(op, "keep_owned", keep_owned, views_of(sharing_views), "owned")
    if sum(tensor.numel() for tensor in v) == 0:
        return
    selections = []
    for layer, (view, sharing) in enumerate(zip(views_of(views), views_of(sharing_views), strict=True)):
        values = v[layer].contiguous()
        arrays = (owner[layer], centre[layer] if centre else None)
        selections.append(Selection(values, view, "free", "l2", keep_free[layer], *arrays))
        selections.append(Selection(values, sharing, "owned", "half", keep_owned[layer], *arrays, positive=emerging))
    plan, dtype, dual = plan_for(selections, roles=2), v[0].dtype, not fresh
    with on_device_of(v[0]):
        keys = plan.new_keys()
        score_groups(plan, keys, dtype, dual, to_scores=False)
        state = select(plan, keys, dtype, dual)
        _write_update[(plan.writes,)](
            plan.table, plan.rows, keys, state, DUAL=dual, HAS_CENTRE=len(centre) > 0, **_writing(plan, dtype)
        )


def _writing(plan: SelectionPlan, dtype: torch.dtype) -> dict[str, object]:
    """Constants and options that both kernels that write are launched with."""
    constants = {"DTYPE": FLOATS[dtype], "ALIGNED": plan.aligned, "ROWS": plan.padded_rows}
    return {**constants, "BLOCK": write_block(dtype, _launch.sizes), "num_warps": _WARPS, **EXACT}


def _ahead(dtype: torch.dtype, is_aligned: bool = True) -> list[Ahead]:
    """Both kernels for 53 layers."""
    shared = {"DTYPE": FLOATS[dtype], "ALIGNED": is_aligned, "ROWS": 64}
    shared["BLOCK"] = write_block(dtype, _launch.sizes)
    signature = {"table": "*i64", "rows": "i32", "keys": "*i64", "state": "*i64"}
    options = {"num_warps": _WARPS, **EXACT}
    name = f"[{FLOATS[dtype]}{', unaligned' * (not is_aligned)}"
    kernels = [
        Ahead(f"project_write{name}, values]", _write_projection, signature, {"AS_MASK": False, **shared}, options),
        Ahead(f"project_write{name}, mask]", _write_projection, signature, {"AS_MASK": True, **shared}, options),
    ]
    if dtype in STATE_FLOATS:
        shared["ROWS"] = 128
        for how, dual, has_centre in (("dual", True, True), ("fresh", False, True), ("kept bits", False, False)):
            constants = {"DUAL": dual, "HAS_CENTRE": has_centre, **shared}
            kernels.append(Ahead(f"admm_update_write{name}, {how}]", _write_update, signature, constants, options))
    return kernels


KERNELS: Kernels = {"project": project, "admm_update_": admm_update_}
AOT = [*(ahead for dtype in FLOATS for ahead in _ahead(dtype)), *_ahead(torch.float32, is_aligned=False)]
