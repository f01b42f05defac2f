"""The optimiser step of the straight-through solver: Adam, this step's exact selection and the new effective weight.

``v`` holds W where free and a continuous mask M where owned. The effective weight is that of the *projection* of
``v``, while the gradient goes to ``v`` as if there had been none:

    dv = g where free, g * w_bar + share_cost where owned
    v  <- Adam(v, dv), at the rate ``lr`` where free and ``mask_lr`` where owned
    kept <- free: the keep_free best groups by |v| or the l2 norm; owned: the keep_owned best by the sum of v - 1/2
    effective <- kept ? (v where free, w_bar where owned) : 0

That is the selection of :mod:`lps_kernels.ops.admm` without a dual. The counts are upper bounds: where a layer has
fewer groups of the role, all survive, so no call has to count what is free before it may change anything. ``emerging``
lets only masks above 1/2 survive.

Weights may learn beside their masks, as in Winning SubNetworks: where ``weight_exp_avg`` and ``weight_exp_avg_sq`` are
given, owned weights whose kept bit is set in ``owner`` take a step of Adam too, at the rate ``lr``, with a gradient
where they took part in the forward pass:

    dw = g where the effective weight is not 0, else 0
    w_bar <- Adam(w_bar, dw) where owned and kept

``dv`` is taken at the weight before its step; the new effective weight has it after. Nothing else reads the kept bits.

``thresholds`` is [layers, 2 (free, owned), 2]: per role the score of the weakest survivor in this step and how far
from it the next step's may lie. Kernels look there first: they write the effective weight in the pass that moves
``v``, and set right afterwards the few weights near the threshold. They give the same result for any ``thresholds``;
NaN stands for none, as do groups of several weights and roles in which nothing was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lps_kernels._checks import (
    STATE_FLOATS,
    check_choice,
    check_contiguous,
    check_device,
    check_dtype,
    check_length,
    check_no_overlap,
    check_shape,
)
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.admm import check_bound
from lps_kernels.ops.project import select_up_to
from lps_kernels.ops.scores import PATTERNS, View, check_companions, check_views, flat_views, group_view, views_of
from lps_kernels.ops.step import (
    adam_change,
    adam_moments,
    check_rates,
    check_state,
    movable,
    named,
    read_device_step,
    step_state,
)
from lps_kernels.owner import free_coordinates, is_kept

OP = "straight_through_adam_"
MOVES = ("free", "all")

TOLERANCE = Tolerance(
    {torch.float32: 2e-6, torch.float64: 4e-15},
    "a chain of about ten rounded operations; only weights whose scores agree to it may change places",
)


def next_threshold(weakest: Tensor, cut_off: bool, old: Tensor) -> Tensor:
    """The threshold of this step with the distance within which the next one is looked for.

    The distance is four times the latest move, and shrinks by a quarter a step at the most.
    """
    if not cut_off:
        return torch.full_like(old, torch.nan)
    moved = (weakest - old[0]).abs() * 4
    first = weakest.abs() / 8
    distance = torch.where(old[0].isnan() | old[1].isnan(), first, torch.maximum(moved, old[1] * 0.75))
    return torch.stack([weakest, distance])


def _select(v: Tensor, inside: Tensor, view: View, kind: str, keep: int, old: Tensor, *, positive: bool) -> Tensor:
    """The survivors of one role; writes its new threshold to ``old``."""
    kept = select_up_to(v, inside, view, kind, keep, positive=positive)
    single = view[0] * view[2] == 1
    # Something was cut off where exactly `keep` survive and more took part.
    taking_part = (inside & ~(v <= 0.5)) if positive else inside
    cut_off = single and 0 < keep < int(taking_part.sum())
    scores = v[kept].abs() if kind == "l2" else v[kept]
    # Zeros of either sign are equal; which of them min() returns would depend on its order. The sum is 0.0 for both.
    weakest = scores.min() + 0.0 if cut_off else v.new_zeros(())
    old.copy_(next_threshold(weakest, cut_off, old))
    return kept


def _reference(
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
    """One layer after the other; see the module's text for the formulas."""
    lists = (effective, grad, v, w_bar, owner, exp_avg, exp_avg_sq)
    counts = (keep_free, keep_owned, views, sharing_views)
    rates = (lr, mask_lr, beta1, beta2, eps, share_cost)
    learning = (weight_exp_avg, weight_exp_avg_sq)
    _check(*lists, thresholds, *counts, emerging, moves, step, *rates, *learning, device_step)
    if device_step is not None:
        step = read_device_step(OP, device_step)
    check_memory(*lists, thresholds, *learning)
    for layer, (view, sharing) in enumerate(zip(views_of(views), views_of(sharing_views), strict=True)):
        free = free_coordinates(owner[layer])
        moving = movable(owner[layer], moves)
        gradient = torch.where(free, grad[layer], grad[layer] * w_bar[layer] + share_cost)
        mean, square = adam_moments(gradient, exp_avg[layer], exp_avg_sq[layer], beta1, beta2)
        moved = v[layer] - adam_change(mean, square, free, step, lr, mask_lr, (beta1, beta2), eps)
        exp_avg[layer].copy_(torch.where(moving, mean, exp_avg[layer]))
        exp_avg_sq[layer].copy_(torch.where(moving, square, exp_avg_sq[layer]))
        v[layer].copy_(torch.where(moving, moved, v[layer]))
        if weight_exp_avg:
            learns = is_kept(owner[layer]) & ~free
            shown = torch.where(effective[layer] != 0, grad[layer], 0)
            mean, square = adam_moments(shown, weight_exp_avg[layer], weight_exp_avg_sq[layer], beta1, beta2)
            change = adam_change(mean, square, learns, step, lr, lr, (beta1, beta2), eps)
            weight_exp_avg[layer].copy_(torch.where(learns, mean, weight_exp_avg[layer]))
            weight_exp_avg_sq[layer].copy_(torch.where(learns, square, weight_exp_avg_sq[layer]))
            w_bar[layer].copy_(torch.where(learns, w_bar[layer] - change, w_bar[layer]))
        old = thresholds[layer]
        kept = _select(v[layer], free, view, "l2", keep_free[layer], old[0], positive=False)
        kept |= _select(v[layer], ~free, sharing, "half", keep_owned[layer], old[1], positive=emerging)
        effective[layer].copy_(torch.where(kept, torch.where(free, v[layer], w_bar[layer]), 0))


def check_memory(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    owner: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    thresholds: Tensor,
    weight_exp_avg: Sequence[Tensor],
    weight_exp_avg_sq: Sequence[Tensor],
) -> None:
    """What is written must be contiguous and apart from everything else."""
    written = named(effective=effective, v=v, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    written.append(("thresholds", thresholds))
    read = named(grad=grad, owner=owner)
    if weight_exp_avg:
        written += named(w_bar=w_bar, weight_exp_avg=weight_exp_avg, weight_exp_avg_sq=weight_exp_avg_sq)
    else:
        read += named(w_bar=w_bar)
    for name, tensor in written:
        check_contiguous(OP, name, tensor)
    check_no_overlap(OP, written, read)


def _check(
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
    del emerging, lr, mask_lr, eps, share_cost  # any value
    check_choice(OP, "moves", moves, MOVES)
    check_state(OP, v, effective=effective, grad=grad, w_bar=w_bar, owner=owner, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    if weight_exp_avg or weight_exp_avg_sq:
        check_companions(OP, "weight_exp_avg", weight_exp_avg, "v", v)
        check_companions(OP, "weight_exp_avg_sq", weight_exp_avg_sq, "v", v)
    if v:
        check_device(OP, "thresholds", thresholds, "v[0]", v[0])
        check_dtype(OP, "thresholds", thresholds, (v[0].dtype,))
    check_shape(OP, "thresholds", thresholds, [len(v), 2, 2], "layers, roles, threshold and distance")
    check_length(OP, "keep_free", keep_free, len(v), "counts")
    check_length(OP, "keep_owned", keep_owned, len(v), "counts")
    check_views(OP, "views", views, v)
    check_views(OP, "sharing_views", sharing_views, v)
    for name, keep, flat in (("keep_free", keep_free, views), ("keep_owned", keep_owned, sharing_views)):
        for layer, view in enumerate(views_of(flat)):
            check_bound(OP, name, layer, keep[layer], view)
    check_rates(OP, step, beta1, beta2, v, device_step)


def _call(
    state: list[list[Tensor]],
    pattern: str,
    sharing: str,
    keep: tuple[float, float],
    *,
    emerging: bool = False,
    moves: str = "all",
    thresholds: Sequence[float] | Sequence[Sequence[float]] = (float("nan"), float("nan")),
    share_cost: float = 0.0,
    device_step: Tensor | None = None,
    weight_moments: Sequence[Sequence[Tensor]] = ((), ()),
) -> Args:
    """A call that keeps these shares of the layers' groups; ``thresholds`` of both roles or of each, for all layers."""
    effective, grad, v, w_bar, _, owner, mean, square = state
    views, sharing_views = ([group_view(tuple(x.shape), p) for x in v] for p in (pattern, sharing))
    counts = [[round(share * view[1]) for view in vs] for share, vs in zip(keep, (views, sharing_views), strict=True)]
    hint = v[0].new_tensor(thresholds).expand(len(v), 2, 2).contiguous()
    lists = (effective, grad, v, w_bar, owner, mean, square, hint)
    scalars = (3, 1e-3, 1e-2, 0.9, 0.999, 1e-8, share_cost, *map(list, weight_moments), device_step)
    return (*lists, *counts, flat_views(views), flat_views(sharing_views), emerging, moves, *scalars)


def _learning_state(
    draw: Draw, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, free: float = 0.0
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """As ``step_state``, half of the effective weights 0, and the moments of weights that learn."""
    state = step_state(draw, shapes, dtype, free)
    state[0] = [
        torch.where(draw.normal(shape, dtype) > 0, weight, 0) for shape, weight in zip(shapes, state[3], strict=True)
    ]
    means, squares = ([make(shape, dtype) for shape in shapes] for make in (draw.normal, draw.uniform))
    return state, [means, squares]


def _learning_samples(dtype: torch.dtype) -> Iterator[Sample]:
    # Nothing is free, so only the owned role has a threshold: of all values, 0.3 lie above 0.52.
    draw, near = Draw(), ((float("nan"), float("nan")), (0.52, 0.05))
    cases: list[tuple[str, list[tuple[int, ...]], float, dict[str, object]]] = [
        ("all owned", [(size,) for size in EDGE_SIZES], 0.0, {}),
        ("half free", [(33, 31), (17, 4, 5)], 0.5, {}),
        ("masks fixed", [(33, 31)], 0.3, {"moves": "free"}),
        ("large, good thresholds", [(LARGE_SIZE,), (40, 50)], 0.0, {"thresholds": near}),
        ("number of the step in a tensor", [(33,)], 0.0, {"device_step": torch.tensor([7])}),
    ]
    for name, shapes, free, options in cases:
        state, moments = _learning_state(draw, shapes, dtype, free)
        args = _call(state, "irregular", "irregular", (0.2, 0.3), weight_moments=moments, **options)  # type: ignore[arg-type]
        yield Sample(f"weights learn, {name}", args)
    state, moments = _learning_state(draw, [(9, 8), (6, 3, 3)], dtype, 0.3)
    yield Sample("weights learn, groups", _call(state, "column", "filter", (0.4, 0.4), weight_moments=moments))
    state, moments = _learning_state(draw, [(40, 50)], dtype)
    state[1][0].view(-1)[::3] = float("nan")
    state[0][0].view(-1)[::7] = float("nan")
    moments[0][0].view(-1)[::5] = float("inf")
    yield Sample(
        "weights learn, NaN and Inf", _call(state, "irregular", "irregular", (0.2, 0.3), weight_moments=moments)
    )


def _samples(dtype: torch.dtype) -> Iterator[Sample]:
    yield from _learning_samples(dtype)
    draw = Draw()
    shapes = [(1,), (7, 1), (9, 8), (16, 3, 3), (33, 31), (17, 4, 5)]
    for pattern in PATTERNS:
        for sharing in dict.fromkeys(("irregular", pattern)):
            for emerging in (False, True):
                name = f"{pattern}, sharing {sharing}, emerging {emerging}"
                yield Sample(
                    name, _call(step_state(draw, shapes, dtype), pattern, sharing, (0.2, 0.3), emerging=emerging)
                )
    edges = [(size,) for size in EDGE_SIZES]
    for moves in MOVES:
        args = _call(step_state(draw, edges, dtype), "irregular", "irregular", (0.3, 0.3), moves=moves)
        yield Sample(f"{moves} move", args)
    for name, free in (("all free", 1.0), ("all owned", 0.0)):
        args = _call(step_state(draw, [(33,), (5, 3, 3)], dtype, free), "irregular", "irregular", (0.3, 0.3))
        yield Sample(name, args)
    for name, share in (("keep none", 0.0), ("keep all", 1.0)):
        args = _call(step_state(draw, [(40, 50), (9, 8)], dtype), "irregular", "column", (share, share))
        yield Sample(name, args)
    # Half of the layer is free: the 0.2 n-th of n/2 normal values has a magnitude of 0.84, and a value of 0.25.
    near, far, wide = ((0.84, 0.05), (0.25, 0.05)), (7.0, 0.01), (0.5, 1e9)
    for name, hint in (
        ("good", near),
        ("half good", near[0]),
        ("missing", far),
        ("wide", wide),
        ("one key", (0.84, 0.0)),
        ("odd", (0.84, -1.0)),
    ):
        for emerging in (False, True):
            args = _call(
                step_state(draw, [(LARGE_SIZE,), (40, 50)], dtype),
                "irregular",
                "irregular",
                (0.2, 0.2),
                emerging=emerging,
                thresholds=hint,
            )
            yield Sample(f"large, {name} thresholds, emerging {emerging}", args)
    infinite = (float("inf"), float("inf"))
    args = _call(step_state(draw, [(LARGE_SIZE,)], dtype), "irregular", "irregular", (0.2, 0.2), thresholds=infinite)
    yield Sample("large, infinite thresholds", args)
    args = _call(step_state(draw, [(LARGE_SIZE,)], dtype), "irregular", "irregular", (0.2, 1.0), emerging=True)
    yield Sample("large, share emerges", args)
    state = step_state(draw, [(40, 50)], dtype)
    for index in (1, 6):
        state[index][0].zero_()
    state[2][0].fill_(1)
    yield Sample("all equal", _call(state, "irregular", "irregular", (0.2, 0.2), thresholds=(1.0, 0.1)))
    state = step_state(draw, [(40, 50)], dtype)
    state[1][0].view(-1)[::3] = float("nan")
    state[2][0].view(-1)[::5] = float("inf")
    for emerging in (False, True):
        args = _call(
            [list(map(Tensor.clone, part)) for part in state], "irregular", "irregular", (0.45, 0.45), emerging=emerging
        )
        yield Sample(f"NaN and Inf, emerging {emerging}", args)
    args = _call(step_state(draw, [(33,), (9, 7)], dtype), "irregular", "irregular", (0.2, 0.2), share_cost=0.25)
    yield Sample("share cost", args)
    args = _call(
        step_state(draw, [(33,), (9, 7)], dtype), "irregular", "irregular", (0.2, 0.2), device_step=torch.tensor([7])
    )
    yield Sample("number of the step in a tensor", args)
    state = step_state(draw, [(9, 7)], dtype)
    for index in (1, 3, 5):
        state[index] = [strided(state[index][0])]
    yield Sample("not contiguous", _call(state, "filter", "irregular", (0.2, 0.2)))


_NAMES = (
    *("effective", "grad", "v", "w_bar", "owner", "exp_avg", "exp_avg_sq", "thresholds", "keep_free", "keep_owned"),
    *("views", "sharing_views", "emerging", "moves", "step", "lr", "mask_lr", "beta1", "beta2", "eps", "share_cost"),
    *("weight_exp_avg", "weight_exp_avg_sq", "device_step"),
)


def _bad_inputs() -> Iterator[BadInput]:
    op, shapes = f"lps::{OP}", [(4, 6), (3, 5)]

    def call(**changes: object) -> Args:
        args = _call(step_state(Draw(), shapes, torch.float32), "column", "irregular", (0.5, 0.5))
        return tuple((dict(zip(_NAMES, args, strict=True)) | changes).values())

    yield BadInput("moves", call(moves="kept"), f"{op}: moves: expected one of free, all, got kept")
    halves = [torch.ones(shape, dtype=torch.float16) for shape in shapes]
    yield BadInput("dtype", call(v=halves), f"{op}: v[0]: expected dtype float32 or float64, got float16")
    yield BadInput(
        "grad missing", call(grad=[torch.ones(4, 6)]), f"{op}: grad: expected 2 tensors (one a layer), got 1"
    )
    floats = [torch.ones(shape) for shape in shapes]
    yield BadInput("owner dtype", call(owner=floats), f"{op}: owner[0]: expected dtype uint8, got float32")
    yield BadInput(
        "thresholds shape",
        call(thresholds=torch.ones(2, 2)),
        f"{op}: thresholds: expected shape [2, 2, 2] (layers, roles, threshold and distance), got [2, 2]",
    )
    yield BadInput(
        "thresholds dtype",
        call(thresholds=torch.ones(2, 2, 2, dtype=torch.float64)),
        f"{op}: thresholds: expected dtype float32, got float64",
    )
    yield BadInput("keep count", call(keep_free=[1]), f"{op}: keep_free: expected 2 counts (one a layer), got 1")
    yield BadInput(
        "keep too large",
        call(keep_free=[6, 6]),
        f"{op}: keep_free[1]: expected between 0 and 5 (the groups of layer 1), got 6",
    )
    yield BadInput(
        "keep negative",
        call(keep_owned=[-1, 0]),
        f"{op}: keep_owned[0]: expected between 0 and 24 (the groups of layer 0), got -1",
    )
    yield BadInput(
        "view",
        call(views=[4, 6, 1, 3, 4, 1]),
        f"{op}: views[1]: expected A * G * B = 15 (the weights of layer 1), got [3, 4, 1]",
    )
    yield BadInput("step", call(step=0), f"{op}: step: expected at least 1, got 0")
    yield BadInput("beta1", call(beta1=1.0), f"{op}: beta1: expected at least 0 and below 1, got 1.0")
    yield BadInput(
        "device_step before the first step",
        call(device_step=torch.tensor([0])),
        f"{op}: device_step: expected at least 1, got 0",
        reads_values=True,
    )
    yield BadInput(
        "effective strides",
        call(effective=[torch.ones(4, 6), torch.ones(5, 3).T]),
        f"{op}: effective[1]: expected a contiguous tensor, got strides [1, 3]",
    )
    yield BadInput(
        "thresholds strides",
        call(thresholds=torch.ones(2, 2, 2).transpose(1, 2)),
        f"{op}: thresholds: expected a contiguous tensor, got strides [4, 1, 2]",
    )
    same = [torch.ones(shape) for shape in shapes]
    yield BadInput(
        "effective is v",
        call(v=same, effective=[same[0], torch.ones(3, 5)]),
        f"{op}: v[0]: expected memory apart from effective[0], got overlapping memory",
    )
    means, squares = ([torch.ones(shape) for shape in shapes] for _ in range(2))
    yield BadInput(
        "moments of weights missing",
        call(weight_exp_avg=means),
        f"{op}: weight_exp_avg_sq: expected 2 tensors (one a layer), got 0",
    )
    turned = [torch.ones(4, 6), torch.ones(5, 3).T]
    yield BadInput(
        "strides of weights that learn",
        call(w_bar=turned, weight_exp_avg=means, weight_exp_avg_sq=squares),
        f"{op}: w_bar[1]: expected a contiguous tensor, got strides [1, 3]",
    )


def _cost(
    effective: Sequence[Tensor],
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    w_bar: Sequence[Tensor],
    owner: Sequence[Tensor],
    *rest: object,
) -> Cost:
    # Read: grad, v, w_bar, owner, two moments. Written: v, two moments, effective. 37 bytes per weight in fp32. Where
    # weights learn, effective and two moments are read and w_bar and the moments written besides: 61.
    values, count = sum(tensor.nbytes for tensor in v), sum(tensor.numel() for tensor in v)
    constants = sum(tensor.nbytes for tensor in (*grad, *w_bar, *owner))
    *_, weight_exp_avg, _, _ = rest
    learning = bool(weight_exp_avg)
    return Cost(constants + (13 if learning else 7) * values, (32 if learning else 18) * count)


def _workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    # A tenth of all weights, of which 0.7 are free: the largest 1/7 of normal values lie above 1.465.
    state = step_state(Draw(), shapes, torch.float32, 0.7)
    near = (1.465, 0.02)
    return [_call(state, "irregular", "irregular", (0.1, 1.0), emerging=True, thresholds=near)]


_straight_through_adam_ = declare(
    OP,
    schema="(Tensor(a!)[] effective, Tensor[] grad, Tensor(b!)[] v, Tensor(f!)[] w_bar, Tensor[] owner, "
    "Tensor(c!)[] exp_avg, Tensor(d!)[] exp_avg_sq, Tensor(e!) thresholds, int[] keep_free, int[] keep_owned, "
    "int[] views, int[] sharing_views, bool emerging, str moves, int step, float lr, float mask_lr, float beta1, "
    "float beta2, float eps, float share_cost, Tensor(g!)[] weight_exp_avg, "
    "Tensor(h!)[] weight_exp_avg_sq, Tensor? device_step=None) -> ()",
    reference=_reference,
    fake=_check,
    mutates=("effective", "v", "w_bar", "exp_avg", "exp_avg_sq", "thresholds", "weight_exp_avg", "weight_exp_avg_sq"),
    dtypes=STATE_FLOATS,
    samples=_samples,
    bad_inputs=_bad_inputs,
    tolerance=TOLERANCE,
    cost=_cost,
    workload=_workload,
    launches=3,
)


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
    views: Sequence[View],
    sharing_views: Sequence[View],
    *,
    emerging: bool,
    moves: str,
    step: int,
    lr: float,
    mask_lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    share_cost: float = 0.0,
    device_step: Tensor | None = None,
    weight_exp_avg: Sequence[Tensor] = (),
    weight_exp_avg_sq: Sequence[Tensor] = (),
) -> None:
    """One straight-through step of Adam over all layers, with this step's selection; ``step`` counts from 1.

    ``grad`` is the gradient of the effective weight. ``moves`` is ``all``, or ``free`` where masks are fixed. See the
    module's text for the selection, for ``thresholds`` and for weights that learn beside their masks, which alone
    change ``w_bar``, and :func:`proximal_adam_` for ``device_step``.
    """
    _straight_through_adam_(
        list(effective),
        list(grad),
        list(v),
        list(w_bar),
        list(owner),
        list(exp_avg),
        list(exp_avg_sq),
        thresholds,
        list(keep_free),
        list(keep_owned),
        flat_views(views),
        flat_views(sharing_views),
        emerging,
        moves,
        step,
        lr,
        mask_lr,
        beta1,
        beta2,
        eps,
        share_cost,
        list(weight_exp_avg),
        list(weight_exp_avg_sq),
        device_step,
    )
