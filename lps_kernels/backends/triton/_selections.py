"""Selections of groups: the table that the kernels of scoring, selecting and writing work from.

One row is one selection: a layer, the region and view of its groups, and how many of them survive. A projection has one
per layer, an ADMM update two. The same table serves every launch of a call and is kept for the next call with the same
tensors, so only the first has to be planned and copied.
"""
# ruff: noqa: N803, PLR0124, SIM300
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels.backends.triton import _launch
from lps_kernels.backends.triton._launch import Sizes, aligned, parts_of
from lps_kernels.backends.triton._numbers import widen
from lps_kernels.backends.triton._owners import is_free, is_kept
from lps_kernels.backends.triton._tables import entry, pointer
from lps_kernels.ops.scores import View

# Fields of the table: arrays, what is selected, then where each launch finds its work and its scratch memory.
_FIELDS = (
    *("x", "centre", "owner", "out", "kept"),
    *("weights", "groups", "run", "region", "half", "keep", "scored", "low", "high"),
    *("lines", "depth", "by_column", "sums", "keys", "room", "pool"),
    *("first_part", "first_fold", "first_chunk", "first_write"),
)
X, CENTRE, OWNER, OUT, KEPT = (tl.constexpr(i) for i in range(5))
WEIGHTS, GROUPS, RUN, REGION, HALF, KEEP, SCORED, LOW, HIGH = (tl.constexpr(i) for i in range(5, 14))
LINES, DEPTH, BY_COLUMN, SUMS, KEYS, ROOM, POOL = (tl.constexpr(i) for i in range(14, 21))
FIRST_PART, FIRST_FOLD, FIRST_CHUNK, FIRST_WRITE = (tl.constexpr(i) for i in range(21, 25))
FIELDS = tl.constexpr(len(_FIELDS))

REGIONS = {"all": 0, "free": 1, "owned": 2}

# The key of a coordinate outside the region, below every other.
OUTSIDE = tl.constexpr(-(2**63))

# Below this run length a group's run is too short for a tile of its own: its columns are summed instead.
SHORT_RUN = 16
# A sampled bracket holds at most 8 % of the keys strictly inside it (five deviations); the pool has room for an eighth.
POOL_SHARE = tl.constexpr(8)


# The key of 1/2, by the bits of a key without its sign.
_HALF = {31: 0x3F000000, 63: 0x3FE0000000000000}


@dataclass(frozen=True)
class Selection:
    """What to select from one layer: ``keep`` of the groups of ``view`` that lie in the region, the best by score."""

    x: Tensor
    view: View
    region: str
    kind: str
    """``l2`` or ``half``; of one weight: the magnitude or the value itself."""
    keep: int = 0
    owner: Tensor | None = None
    centre: Tensor | None = None
    out: Tensor | None = None
    kept: Tensor | None = None
    positive: bool = False
    """Only groups take part whose sum of ``x - 1/2`` is above 0: of one weight, where ``x > 1/2``."""


@dataclass(frozen=True)
class SelectionPlan:
    """The table in device memory, how many programs each launch takes and how much scratch memory."""

    table: Tensor
    rows: int
    parts: int
    folds: int
    chunks: int
    writes: int
    sums: int
    keys: int
    aligned: bool

    @property
    def padded_rows(self) -> int:
        """The power of 2 that the rows fit in."""
        return int(triton.next_power_of_2(self.rows))

    def new_keys(self) -> Tensor:
        """Memory for the keys of groups of several weights, and for the pools."""
        return torch.empty(self.keys, dtype=torch.int64, device=self.table.device)


def plan_for(selections: Sequence[Selection], roles: int = 1) -> SelectionPlan:
    """The plan of these selections; made once for the same tensors, views and numbers.

    ``roles`` selections in a row are of the same layer and are written together.
    """
    rows = tuple(
        (
            *(0 if t is None else t.data_ptr() for t in (s.x, s.centre, s.owner, s.out, s.kept)),
            *(s.view, s.region, s.kind, s.keep, s.positive, s.x.dtype),
        )
        for s in selections
    )
    key = ("select", _launch.sizes, roles, rows)
    return _launch.remembered(selections[0].x.device, key, lambda: _plan(selections, roles, _launch.sizes))


def _plan(selections: Sequence[Selection], roles: int, sizes: Sizes) -> SelectionPlan:
    table: list[dict[str, int]] = []
    parts = folds = chunks = writes = sums = keys = pool = 0
    for index, selection in enumerate(selections):
        row = _row(selection)
        row |= {"first_part": parts, "first_fold": folds, "first_chunk": chunks, "first_write": writes}
        row |= {"sums": sums, "keys": keys, "pool": pool}
        table.append(row)
        lines, depth = sizes.columns[::-1] if row["by_column"] else sizes.runs
        outer = parts_of(row["depth"], depth * sizes.depth)
        parts += outer * parts_of(row["lines"], lines)
        folds += row["scored"] * parts_of(row["groups"], sizes.fold)
        chunks += parts_of(row["groups"], sizes.chunk)
        sums += outer * row["lines"]
        keys += row["scored"] * row["groups"]
        pool += row["room"]
        if index % roles == roles - 1:
            writes += parts_of(row["weights"], write_block(selection.x.dtype, sizes))
    # Pools stand behind the keys in the same memory.
    for row in table:
        row["pool"] += keys
    arrays = [row[name] for name in ("x", "centre", "owner", "out", "kept") for row in table]
    return SelectionPlan(
        table=_launch.table_on(selections[0].x.device, [row[name] for row in table for name in _FIELDS]),
        rows=len(selections),
        parts=parts,
        folds=folds,
        chunks=chunks,
        writes=writes,
        sums=sums,
        keys=keys + pool,
        aligned=aligned(arrays),
    )


def write_block(dtype: torch.dtype, sizes: Sizes) -> int:
    """Weights per program that writes: half as many in fp64, or it would take too many registers."""
    return sizes.chunk // 2 if dtype == torch.float64 else sizes.chunk


def _row(s: Selection) -> dict[str, int]:
    """Everything about one selection except where its work and its scratch memory begin."""
    a, g, b = s.view
    scored = a * b != 1
    by_column = b < SHORT_RUN
    bits = 63 if scored or s.x.dtype == torch.float64 else 31
    arrays = {"x": s.x, "centre": s.centre, "owner": s.owner, "out": s.out, "kept": s.kept}
    return {name: 0 if tensor is None else tensor.data_ptr() for name, tensor in arrays.items()} | {
        "weights": prod(s.view),
        "groups": g,
        "run": b,
        "region": REGIONS[s.region],
        "half": int(s.kind == "half"),
        "keep": s.keep,
        "scored": int(scored),
        "low": _lowest(s, bits, scored),
        "high": 2**bits - 1,
        "lines": (g * b if by_column else g) if scored else 0,
        "depth": (a if by_column else a * b) if scored else 0,
        "by_column": int(by_column),
        "room": parts_of(g, POOL_SHARE.value),
    }


def _lowest(s: Selection, bits: int, scored: bool) -> int:
    """The lowest key of a group that takes part."""
    if not s.positive:
        return 0 if s.kind == "l2" else 1 - 2**bits
    return 1 + (0 if scored else _HALF[bits])


@triton.jit
def source_of(row, begin, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The arrays of a selection from weight ``begin`` on, its region and whether it selects by ``half``."""
    return (
        pointer(row, X, DTYPE, ALIGNED) + begin,
        pointer(row, CENTRE, DTYPE, ALIGNED) + begin,
        pointer(row, OWNER, tl.uint8, ALIGNED) + begin,
        entry(row, REGION),
        entry(row, HALF) != 0,
    )


@triton.jit
def values_of(source, index, mask, DUAL: tl.constexpr):
    """Values and owners of these weights, and which of them lie in the region.

    With ``DUAL``, values plus the dual variable that centre and owner imply.
    """
    x, centres, owners, region, _ = source
    value = widen(tl.load(x + index, mask=mask, other=0))
    owner = tl.load(owners + index, mask=mask & (region != 0), other=0)
    free = is_free(owner)
    if DUAL:
        centre = widen(tl.load(centres + index, mask=mask, other=0))
        kept = is_kept(owner)
        # Triton's unary minus is 0 - centre, which makes +0.0 of +0.0.
        value += tl.where(free, tl.where(kept, 0.0, centre * -1.0), kept.to(centre.dtype) - centre)
    return value, owner, mask & ((region == 0) | (free == (region == 1)))


@triton.jit
def keys_of(value, half):
    """Integers in the order of the scores: magnitudes, or values where ``half``; -0.0 as 0.0, any NaN the largest."""
    if value.dtype == tl.float64:
        bits = value.to(tl.int64, bitcast=True)
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
        signed = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
        largest = 0x7FFFFFFFFFFFFFFF
    else:
        bits = value.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        signed = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        largest = 0x7FFFFFFF
    keys = tl.where(half, signed, magnitude)
    keys = tl.where(value == 0, 0, keys)
    return tl.where(value != value, largest, keys).to(tl.int64)


@triton.jit
def value_of(key, DTYPE: tl.constexpr):
    """The score of a group of one weight that has this key."""
    if DTYPE == tl.float64:
        bits = key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)
    else:
        short = key.to(tl.int32)
        bits = short ^ ((short >> 31) & 0x7FFFFFFF)
    return bits.to(DTYPE, bitcast=True)


@triton.jit
def scored_of(row, begin, keys):
    """Whether the groups of a selection were scored, and the keys of their scores from group ``begin`` on."""
    return entry(row, SCORED) != 0, keys + entry(row, KEYS) + begin


@triton.jit
def keys_at(source, scored, index, mask, DUAL: tl.constexpr):
    """Keys of these groups; ``OUTSIDE`` for groups without a weight in the region."""
    is_scored, keys = scored
    if is_scored:
        found = tl.load(keys + index, mask=mask, other=OUTSIDE)
    else:
        value, _, inside = values_of(source, index, mask, DUAL)
        found = tl.where(inside, keys_of(value, source[4]), OUTSIDE)
    return found
