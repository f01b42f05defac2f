"""The ADMM update of both roles of the one-tensor form, for all layers in one call (Eq. 14 and the dual updates).

Per coordinate, with ``dual`` the scaled dual variable (U where free, K where owned) and ``target`` the projection
(Z where free, Y where owned), the training state keeps only ``centre = target - dual`` and the bit ``kept``:

==========  ====================  ==============================
            free (role of W)      owned (role of M)
==========  ====================  ==============================
target      ``kept ? s : 0``      ``kept ? 1 : 0``
dual        ``kept ? 0 : s``      ``s - target``
recovered   ``kept ? 0 : -centre``  ``target - centre``
==========  ====================  ==============================

Without ``centre``, a fresh update only selects: it writes the kept bits of the projection of ``v`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lps_kernels._checks import STATE_FLOATS, check_contiguous, check_length, check_no_overlap, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.project import available_groups, select_coordinates, select_up_to
from lps_kernels.ops.scores import (
    PATTERNS,
    View,
    check_companions,
    check_layers,
    check_views,
    flat_views,
    group_view,
    views_of,
)
from lps_kernels.owner import KEPT_BIT, free_coordinates, is_kept, task_of

OP = "admm_update_"

TOLERANCE = Tolerance(
    {torch.float32: 2.4e-7, torch.float64: 4.5e-16},
    "one rounding of v + dual and one of target - dual; exact selection",
)


def _reference(
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
    """Select everything first, then write: a refusal leaves all layers as they were."""
    _check(v, centre, owner, keep_free, keep_owned, views, sharing_views, emerging, fresh)
    written = [(f"{name}[{i}]", t) for name, ts in (("centre", centre), ("owner", owner)) for i, t in enumerate(ts)]
    for name, tensor in written:
        check_contiguous(OP, name, tensor)
    check_no_overlap(OP, written, [(f"v[{i}]", t) for i, t in enumerate(v)])
    updates = []
    for layer, (weights, sharing) in enumerate(zip(views_of(views), views_of(sharing_views), strict=True)):
        free = free_coordinates(owner[layer])
        was_kept = is_kept(owner[layer])
        s = v[layer].contiguous()
        if not fresh:
            of_free = torch.where(was_kept, 0, -centre[layer])
            of_owned = was_kept.to(s.dtype) - centre[layer]
            s = s + torch.where(free, of_free, of_owned)
        kept = select_coordinates(OP, layer, "keep_free", s, free, weights, "l2", keep_free[layer], "free")
        if emerging:
            kept |= select_up_to(s, ~free, sharing, "half", keep_owned[layer], positive=True)
        else:
            kept |= select_coordinates(OP, layer, "keep_owned", s, ~free, sharing, "half", keep_owned[layer], "owned")
        shared = kept.to(s.dtype)
        new_centre = torch.where(free, torch.where(kept, s, -s), shared - (s - shared))
        updates.append((new_centre, kept))
    for layer, (new_centre, kept) in enumerate(updates):
        if centre:
            centre[layer].copy_(new_centre)
        owner[layer].copy_(task_of(owner[layer]) | (kept.to(torch.uint8) * KEPT_BIT))


def _check(
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
    check_layers(OP, "v", v, STATE_FLOATS)
    if centre:
        check_companions(OP, "centre", centre, "v", v)
    else:
        refuse_unless(fresh or not v, OP, "centre", f"{len(v)} tensors (one a layer; none only where fresh)", 0)
    check_companions(OP, "owner", owner, "v", v, torch.uint8)
    check_length(OP, "keep_free", keep_free, len(v), "counts")
    check_length(OP, "keep_owned", keep_owned, len(v), "counts")
    check_views(OP, "views", views, v)
    check_views(OP, "sharing_views", sharing_views, v)
    if emerging:
        for layer, (keep, view) in enumerate(zip(keep_owned, views_of(sharing_views), strict=True)):
            check_bound(OP, "keep_owned", layer, keep, view)


def check_bound(op: str, argument: str, layer: int, keep: int, view: View) -> None:
    """A bound on how many groups of a layer may survive."""
    expected = f"between 0 and {view[1]} (the groups of layer {layer})"
    refuse_unless(0 <= keep <= view[1], op, f"{argument}[{layer}]", expected, keep)


def _state(
    draw: Draw, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, free: float
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    v = [draw.normal(shape, dtype) for shape in shapes]
    centre = [draw.normal(shape, dtype) for shape in shapes]
    return v, centre, [draw.owner(shape, free) for shape in shapes]


def _samples(dtype: torch.dtype) -> Iterator[Sample]:
    draw = Draw()
    shapes = [(1,), (7, 1), (9, 8), (16, 3, 3), (33, 31), (17, 4, 5)]
    for pattern in PATTERNS:
        for sharing in dict.fromkeys(("irregular", pattern)):
            for fresh in (False, True):
                name = f"{pattern}, sharing {sharing}, fresh {fresh}"
                yield _sample(name, *_state(draw, shapes, dtype, 0.5), pattern, sharing, fresh)
            for share in (0.1, 1.0):
                name = f"{pattern}, sharing {sharing}, emerging up to {share}"
                yield _sample(
                    name, *_state(draw, shapes, dtype, 0.5), pattern, sharing, False, keep=(0.5, share), emerging=True
                )
    for emerging in (False, True):
        v, _, owner = _state(draw, [(40, 50), (9, 8)], dtype, 0.5)
        yield _sample(
            f"kept bits only, emerging {emerging}", v, [], owner, "column", "irregular", True, emerging=emerging
        )
    v, centre, owner = _state(draw, [(LARGE_SIZE,), (40, 50)], dtype, 0.5)
    for layer in v:
        layer.copy_(torch.where(layer > 1, 0.5, layer))  # exactly at the bound
    yield _sample("large, emerging", v, centre, owner, "irregular", "irregular", True, keep=(0.5, 0.2), emerging=True)
    for name, free in (("all free", 1.0), ("all owned", 0.0)):
        yield _sample(name, *_state(draw, shapes, dtype, free), "column", "irregular", False)
    edges = [(size,) for size in EDGE_SIZES]
    yield _sample("edge sizes", *_state(draw, edges, dtype, 0.5), "irregular", "irregular", False)
    yield _sample("large", *_state(draw, [(LARGE_SIZE,), (40, 50)], dtype, 0.5), "irregular", "irregular", False)
    for name, share in (("keep none", 0.0), ("keep all", 1.0)):
        state = _state(draw, [(40, 50), (9, 8)], dtype, 0.5)
        yield _sample(name, *state, "column", "irregular", False, keep=(share, share))
    v, centre, owner = _state(draw, [(40, 50)], dtype, 0.5)
    v[0].fill_(1)
    yield _sample("all equal", v, centre, owner, "irregular", "irregular", True)
    v, centre, owner = _state(draw, [(40, 50)], dtype, 0.5)
    v[0].view(-1)[3::7] = float("nan")
    centre[0].view(-1)[5::11] = float("inf")
    yield _sample("NaN and Inf", v, centre, owner, "irregular", "irregular", False)
    for fresh in (False, True):
        v, centre, owner = _state(draw, [(40, 50)], dtype, 0.5)
        # Zeros of either sign meet zeros of either sign, free and owned, kept and not.
        v[0].view(-1)[::2] = 0.0
        v[0].view(-1)[::4] = -0.0
        centre[0].view(-1)[::3] = 0.0
        centre[0].view(-1)[::9] = -0.0
        yield _sample(
            f"signed zeros, fresh {fresh}", v, centre, owner, "irregular", "irregular", fresh, keep=(0.2, 0.7)
        )
    v, centre, owner = _state(draw, [(12, 10)], dtype, 0.5)
    yield _sample("v not contiguous", [strided(v[0])], centre, owner, "filter", "irregular", False)


def _sample(
    name: str,
    v: list[Tensor],
    centre: list[Tensor],
    owner: list[Tensor],
    pattern: str,
    sharing: str,
    fresh: bool,
    keep: tuple[float, float] = (0.5, 0.7),
    emerging: bool = False,
) -> Sample:
    """A call that keeps these shares of the free and of the owned groups."""
    views, sharing_views = ([group_view(tuple(x.shape), p) for x in v] for p in (pattern, sharing))
    keep_free = [round(keep[0] * count) for count in available_groups(v, owner, views, "free")]
    keep_owned = [round(keep[1] * count) for count in available_groups(v, owner, sharing_views, "owned")]
    counts = keep_free, keep_owned, flat_views(views), flat_views(sharing_views)
    return Sample(name, (v, centre, owner, *counts, emerging, fresh))


def _bad_inputs() -> Iterator[BadInput]:
    op = f"lps::{OP}"
    shapes = [(4, 6), (3, 5)]
    views, elements = [4, 6, 1, 3, 5, 1], [1, 24, 1, 1, 15, 1]

    def call(**changes: object) -> Args:
        v = [torch.ones(shape) for shape in shapes]
        owner = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes]
        owner[1][:, :3] = 1
        arguments: dict[str, object] = {
            "v": v,
            "centre": [torch.ones(shape) for shape in shapes],
            "owner": owner,
            "keep_free": [1, 1],
            "keep_owned": [0, 1],
            "views": views,
            "sharing_views": elements,
            "emerging": False,
            "fresh": True,
        }
        return tuple((arguments | changes).values())

    halves = [torch.ones(shape, dtype=torch.float16) for shape in shapes]
    yield BadInput("dtype", call(v=halves), f"{op}: v[0]: expected dtype float32 or float64, got float16")
    yield BadInput(
        "centre count",
        call(centre=[torch.ones(4, 6)]),
        f"{op}: centre: expected 2 tensors (one a layer), got 1",
    )
    yield BadInput(
        "no centre",
        call(centre=[], fresh=False),
        f"{op}: centre: expected 2 tensors (one a layer; none only where fresh), got 0",
    )
    yield BadInput(
        "more than there are",
        call(keep_owned=[25, 1], emerging=True),
        f"{op}: keep_owned[0]: expected between 0 and 24 (the groups of layer 0), got 25",
    )
    yield BadInput(
        "centre dtype",
        call(centre=[torch.ones(4, 6), torch.ones(3, 5, dtype=torch.float64)]),
        f"{op}: centre[1]: expected dtype float32 (that of v[1]), got float64",
    )
    yield BadInput(
        "owner shape",
        call(owner=[torch.zeros(4, 6, dtype=torch.uint8), torch.zeros(5, 3, dtype=torch.uint8)]),
        f"{op}: owner[1]: expected shape [3, 5] (that of v[1]), got [5, 3]",
    )
    yield BadInput("keep count", call(keep_free=[1]), f"{op}: keep_free: expected 2 counts (one a layer), got 1")
    yield BadInput(
        "more than is free",
        call(keep_free=[6, 3]),
        f"{op}: keep_free[1]: expected between 0 and 2 (the free groups of layer 1), got 3",
        reads_values=True,
    )
    yield BadInput(
        "more than is owned",
        call(keep_owned=[0, 10]),
        f"{op}: keep_owned[1]: expected between 0 and 9 (the owned groups of layer 1), got 10",
        reads_values=True,
    )
    yield BadInput(
        "sharing view",
        call(sharing_views=[1, 24, 1, 1, 14, 1]),
        f"{op}: sharing_views[1]: expected A * G * B = 15 (the weights of layer 1), got [1, 14, 1]",
    )
    yield BadInput(
        "centre strides",
        call(centre=[torch.ones(6, 4).T, torch.ones(3, 5)]),
        f"{op}: centre[0]: expected a contiguous tensor, got strides [1, 4]",
    )
    same = [torch.ones(shape) for shape in shapes]
    yield BadInput(
        "centre is v",
        call(v=same, centre=[torch.ones(4, 6), same[1]]),
        f"{op}: centre[1]: expected memory apart from v[1], got overlapping memory",
    )


def _cost(v: Sequence[Tensor], centre: Sequence[Tensor], owner: Sequence[Tensor], *_: object) -> Cost:
    # v, centre and owner are read to select and again to write centre and owner.
    read = 2 * sum(tensor.nbytes for tensor in (*v, *centre, *owner))
    return Cost(read + sum(t.nbytes for t in (*centre, *owner)), 3 * sum(t.numel() for t in v))


def _workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    v, centre, owner = _state(Draw(), shapes, torch.float32, 0.7)
    sample = _sample("", v, centre, owner, "irregular", "irregular", False)
    return [sample.args]


_admm_update_ = declare(
    OP,
    schema="(Tensor[] v, Tensor(a!)[] centre, Tensor(b!)[] owner, int[] keep_free, int[] keep_owned, int[] views, "
    "int[] sharing_views, bool emerging, bool fresh) -> ()",
    reference=_reference,
    fake=_check,
    mutates=("centre", "owner"),
    dtypes=STATE_FLOATS,
    samples=_samples,
    bad_inputs=_bad_inputs,
    tolerance=TOLERANCE,
    cost=_cost,
    workload=_workload,
    launches=4,
)


def admm_update_(
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep_free: Sequence[int],
    keep_owned: Sequence[int],
    views: Sequence[View],
    sharing_views: Sequence[View],
    *,
    emerging: bool = False,
    fresh: bool = False,
) -> None:
    """Project both roles of every layer and write ``centre`` and the kept bits of ``owner``.

    The dual is recovered from the old ``centre`` and kept bits, or taken as 0 where ``fresh`` (they are then not
    read). Free coordinates keep the ``keep_free[i]`` groups of ``views[i]`` with the largest l2 norm, owned ones the
    ``keep_owned[i]`` groups of ``sharing_views[i]`` with the largest sum of ``s - 1/2``. Where ``emerging``, only
    groups whose sum is above 0 take part and ``keep_owned[i]`` is an upper bound: a mask above 1/2 becomes 1. Where
    ``fresh``, ``centre`` may be empty; then only the kept bits are written.
    """
    _admm_update_(
        list(v),
        list(centre),
        list(owner),
        list(keep_free),
        list(keep_owned),
        flat_views(views),
        flat_views(sharing_views),
        emerging,
        fresh,
    )
