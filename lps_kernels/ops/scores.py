"""Scores of groups of weights over a batch of layers.

A layer is seen as ``[A, G, B]``: its weights in memory order with G the axis of groups. Scores of groups of more than
one weight are fp64 sums and do not depend on the number of threads. Squares of fp32 and 16-bit weights are taken in
fp32, so in a group's norm a weight below 1e-22 counts as 0 and one above 6e18 may count as infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from lps_kernels._checks import (
    FLOATS,
    alike,
    check_choice,
    check_device,
    check_dtype,
    check_length,
    check_like,
    dtype_name,
    refuse,
    refuse_unless,
)
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import EDGE_SIZES, LARGE_SIZE, Draw, strided
from lps_kernels.ops.compose import free_coordinates, opmath

View = tuple[int, int, int]

# The view of a weight [rows, channels, *kernel] with taps = prod(kernel), by pattern; the kernels take any view.
PATTERNS: dict[str, Callable[[int, int, int], View]] = {
    "irregular": lambda rows, channels, taps: (1, rows * channels * taps, 1),
    "filter": lambda rows, channels, taps: (1, rows, channels * taps),
    "column": lambda rows, channels, taps: (rows, channels * taps, 1),
    "channel": lambda rows, channels, taps: (rows, channels, taps),
}
SCORES = ("magnitude", "l2", "signed", "half")
REGIONS = ("all", "free", "owned")
# The kernels sum up to eight squares in fp32 (for 16-bit floats too) before they go on in fp64: 8 * 2^-24 at most.
# n rounded additions in fp64 err by n * 2^-53, and the samples' groups have n < 2^18; the terms of `half` may cancel.
SUMS = Tolerance(
    {dtype: 1e-10 if dtype == torch.float64 else 4.8e-7 for dtype in FLOATS},
    "eight squares summed in the dtype of computation, then fp64 sums taken in another order",
)


def group_view(shape: Sequence[int], pattern: str) -> View:
    """The ``[A, G, B]`` view of a weight of this shape: ``irregular``, ``filter``, ``column`` or ``channel``.

    A weight of shape ``[P, channels, *kernel]`` is the GEMM matrix P x Q with Q = channels * prod(kernel).
    """
    if not shape:
        raise ValueError("group_view: shape: expected at least one dimension, got []")
    if pattern not in PATTERNS:
        raise ValueError(f"group_view: pattern: expected one of {', '.join(PATTERNS)}, got {pattern}")
    return PATTERNS[pattern](shape[0], prod(shape[1:2]), prod(shape[2:]))


def in_region(x: Tensor, owner: Tensor | None, region: str) -> Tensor:
    """True at the coordinates that take part."""
    if region == "all" or owner is None:
        return torch.ones(x.shape, dtype=torch.bool, device=x.device)
    return free_coordinates(owner) == (region == "free")


def score_groups(x: Tensor, inside: Tensor, view: View, kind: str) -> tuple[Tensor, Tensor]:
    """Score of each group over its coordinates inside the region, and whether it has any.

    ``kind`` is ``l2`` (of a group of one: the magnitude) or ``half``, the sum of ``x - 1/2`` (of a group of one:
    the value itself, which orders the same).
    """
    values, members = x.reshape(view), inside.reshape(view)
    eligible = members.any(dim=2).any(dim=0)
    if view[0] * view[2] == 1:
        single = values.reshape(-1)
        return single.abs() if kind == "l2" else single, eligible
    terms = (opmath(values) ** 2).double() if kind == "l2" else values.double() - 0.5
    sums = torch.where(members, terms, 0.0).sum(dim=(0, 2))
    return sums.sqrt() if kind == "l2" else sums, eligible


def views_of(flat: Sequence[int]) -> list[View]:
    """Three ints per layer, as the schema has them, to one view per layer."""
    return [(flat[i], flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)]


def flat_views(views: Sequence[View]) -> list[int]:
    """The inverse of :func:`views_of`."""
    return [size for view in views for size in view]


def check_views(op: str, argument: str, views: Sequence[int], x: Sequence[Tensor]) -> None:
    """One ``[A, G, B]`` a layer, each covering its layer's weights."""
    expected = f"{3 * len(x)} ints (A, G, B of each layer)"
    refuse_unless(len(views) == 3 * len(x), op, argument, expected, len(views))
    for layer, (tensor, view) in enumerate(zip(x, views_of(views), strict=True)):
        if min(view) < 0 or prod(view) != tensor.numel():
            weights = f"A * G * B = {tensor.numel()} (the weights of layer {layer})"
            refuse(op, f"{argument}[{layer}]", weights, list(view))


def check_layers(op: str, argument: str, layers: Sequence[Tensor], allowed: Sequence[torch.dtype]) -> None:
    """Layers of one dtype and device."""
    for layer, tensor in enumerate(layers):
        check_dtype(op, f"{argument}[{layer}]", tensor, allowed)
        check_device(op, f"{argument}[{layer}]", tensor, f"{argument}[0]", layers[0])
        if tensor.dtype != layers[0].dtype:
            expected = f"dtype {dtype_name(layers[0].dtype)} (that of {argument}[0])"
            refuse(op, f"{argument}[{layer}]", expected, dtype_name(tensor.dtype))


def check_companions(
    op: str,
    argument: str,
    tensors: Sequence[Tensor],
    name: str,
    layers: Sequence[Tensor],
    dtype: torch.dtype | None = None,
) -> None:
    """One tensor per layer, each shaped like its layer."""
    check_length(op, argument, tensors, len(layers), "tensors")
    for layer, (tensor, model) in enumerate(zip(tensors, layers, strict=True)):
        if not alike(tensor, model, dtype):
            check_like(op, f"{argument}[{layer}]", tensor, f"{name}[{layer}]", model, dtype)


def check_region(
    op: str, x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> None:
    """The arguments that scoring and projecting share."""
    check_choice(op, "score", score, SCORES)
    check_choice(op, "region", region, REGIONS)
    check_layers(op, "x", x, FLOATS)
    if region == "all":
        refuse_unless(len(owner) == 0, op, "owner", "0 tensors (region is all)", len(owner))
    else:
        check_companions(op, "owner", owner, "x", x, torch.uint8)
    check_views(op, "views", views, x)
    if score in ("magnitude", "signed"):
        for layer, view in enumerate(views_of(views)):
            expected = f"groups of one weight for score {score} (l2 and half take any)"
            single = prod(view) == 0 or view[0] * view[2] == 1
            refuse_unless(single, op, f"views[{layer}]", expected, list(view))


def weighs(score: str) -> str:
    """What the score is of a group of any size: ``l2`` or ``half``."""
    return "l2" if score in ("magnitude", "l2") else "half"


def group_scores_reference(
    x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> list[Tensor]:
    """The fp64 score of every group of every layer; -inf where a group has no coordinate in the region."""
    check_region("group_scores", x, owner, views, score, region)
    scores = []
    for layer, view in enumerate(views_of(views)):
        inside = in_region(x[layer], owner[layer] if owner else None, region)
        values, eligible = score_groups(x[layer], inside, view, weighs(score))
        scores.append(torch.where(eligible, values.double(), float("-inf")))
    return scores


def _group_scores_fake(
    x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> list[Tensor]:
    check_region("group_scores", x, owner, views, score, region)
    pairs = zip(x, views_of(views), strict=True)
    return [tensor.new_empty((view[1],), dtype=torch.float64) for tensor, view in pairs]


def scored_samples(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor], list[Tensor], list[View], str, str]]:
    """Layers, owners, views, score, region: the shared part of the samples of scoring and projecting."""
    draw = Draw()
    everything: list[Tensor] = []
    for size in (*EDGE_SIZES, LARGE_SIZE):
        x = draw.normal((size,), dtype)
        yield f"size {size}", [x], everything, [(1, size, 1)], "magnitude", "all"
        yield f"size {size}, signed", [x], everything, [(1, size, 1)], "signed", "all"
    for name, free in (("mixed owner", 0.5), ("all free", 1.0), ("all owned", 0.0)):
        for size in (33, LARGE_SIZE):
            x, owner = draw.normal((size,), dtype), draw.owner((size,), free)
            yield f"free of {name}, size {size}", [x], [owner], [(1, size, 1)], "magnitude", "free"
            yield f"owned of {name}, size {size}", [x], [owner], [(1, size, 1)], "signed", "owned"
    shapes = [(5, 7), (16, 3, 3, 3), (33, 129), (64, 8, 9), (1, 40), (40, 1), (300, 257), (3, 5000)]
    layers = [draw.normal(shape, dtype) for shape in shapes]
    owners = [draw.owner(shape) for shape in shapes]
    for pattern in PATTERNS:
        views = [group_view(shape, pattern) for shape in shapes]
        yield f"{pattern}s of unequal layers", layers, everything, views, "l2", "all"
        yield f"free part of {pattern}s", layers, owners, views, "l2", "free"
        yield f"owned part of {pattern}s", layers, owners, views, "half", "owned"
    whole = [owner.clone() for owner in owners]
    for owner in whole:
        owner.view(owner.shape[0], -1)[:, ::2] = 3
        owner.view(owner.shape[0], -1)[:, 1::2] = 0
    views = [group_view(shape, "column") for shape in shapes]
    yield "whole columns owned", layers, whole, views, "l2", "free"
    yield "not contiguous", [strided(x) for x in layers], [strided(o) for o in owners], views, "l2", "free"
    constant = torch.full((40, 50), 0.25, dtype=dtype)
    yield "all equal", [constant.view(-1)], everything, [(1, 2000, 1)], "magnitude", "all"
    yield "all equal columns", [constant], everything, [(40, 50, 1)], "l2", "all"
    ones = torch.ones(LARGE_SIZE, dtype=dtype)
    yield "large and all equal", [ones], everything, [(1, LARGE_SIZE, 1)], "signed", "all"
    ties = torch.randint(0, 4, (LARGE_SIZE,), generator=torch.Generator().manual_seed(1)).to(dtype)
    yield "many ties", [ties], everything, [(1, LARGE_SIZE, 1)], "magnitude", "all"
    yield "sorted", [torch.linspace(-1, 1, LARGE_SIZE).to(dtype)], everything, [(1, LARGE_SIZE, 1)], "magnitude", "all"
    nan, inf = float("nan"), float("inf")
    odd = torch.tensor([1.0, -nan, 0.0, -0.0, -inf, inf, nan, -2.0, 0.5, -0.0, 0.0, nan], dtype=dtype)
    yield "NaN and Inf by magnitude", [odd], everything, [(1, 12, 1)], "magnitude", "all"
    yield "NaN and Inf by value", [odd], everything, [(1, 12, 1)], "signed", "all"
    yield "NaN and Inf in groups", [odd], everything, [(2, 3, 2)], "half", "all"
    tall = draw.normal((300_000,), dtype)
    yield "a long run in a group", [tall], everything, [(1, 2, 150_000)], "l2", "all"


def _group_scores_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for name, layers, owners, views, score, region in scored_samples(dtype):
        yield Sample(name, (layers, owners, flat_views(views), score, region))


def region_bad_inputs(op: str, tail: Args, keep: Args) -> Iterator[BadInput]:
    """Refusals that ``group_scores`` and ``project`` share; ``keep`` and ``tail`` are the latter's own arguments."""
    x, owner = [torch.zeros(4, 6), torch.zeros(3, 5)], [torch.zeros(4, 6, dtype=torch.uint8)] * 2
    columns = [4, 6, 1, 3, 5, 1]

    def call(layers: object, owners: object, views: object, score: str, region: str) -> Args:
        return (layers, owners, *keep, views, score, region, *tail)

    yield BadInput(
        "score", call(x, [], columns, "l1", "all"), f"{op}: score: expected one of {', '.join(SCORES)}, got l1"
    )
    yield BadInput(
        "region", call(x, [], columns, "l2", "mine"), f"{op}: region: expected one of all, free, owned, got mine"
    )
    yield BadInput(
        "dtype",
        call([x[0], x[1].int()], [], columns, "l2", "all"),
        f"{op}: x[1]: expected dtype float32, float64, bfloat16 or float16, got int32",
    )
    yield BadInput(
        "mixed dtypes",
        call([x[0], x[1].double()], [], columns, "l2", "all"),
        f"{op}: x[1]: expected dtype float32 (that of x[0]), got float64",
    )
    yield BadInput(
        "owner without region",
        call(x, owner, columns, "l2", "all"),
        f"{op}: owner: expected 0 tensors (region is all), got 2",
    )
    yield BadInput(
        "owner missing", call(x, [], columns, "l2", "free"), f"{op}: owner: expected 2 tensors (one a layer), got 0"
    )
    yield BadInput(
        "owner shape",
        call(x, owner, columns, "l2", "free"),
        f"{op}: owner[1]: expected shape [3, 5] (that of x[1]), got [4, 6]",
    )
    yield BadInput(
        "views length",
        call(x, [], columns[:3], "l2", "all"),
        f"{op}: views: expected 6 ints (A, G, B of each layer), got 3",
    )
    yield BadInput(
        "view size",
        call(x, [], [4, 6, 1, 5, 5, 1], "l2", "all"),
        f"{op}: views[1]: expected A * G * B = 15 (the weights of layer 1), got [5, 5, 1]",
    )
    yield BadInput(
        "negative view",
        call(x, [], [4, 6, 1, -3, -5, 1], "l2", "all"),
        f"{op}: views[1]: expected A * G * B = 15 (the weights of layer 1), got [-3, -5, 1]",
    )
    yield BadInput(
        "groups of several by magnitude",
        call(x, [], columns, "magnitude", "all"),
        f"{op}: views[0]: expected groups of one weight for score magnitude (l2 and half take any), got [4, 6, 1]",
    )


def _group_scores_bad_inputs() -> Iterator[BadInput]:
    yield from region_bad_inputs("lps::group_scores", (), ())


def _group_scores_cost(
    x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> Cost:
    weights = sum(tensor.numel() for tensor in x)
    read = sum(tensor.nbytes for tensor in (*x, *owner))
    return Cost(read + 8 * sum(view[1] for view in views_of(views)), 2 * weights)


def _group_scores_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    views = [group_view(shape, "column") for shape in shapes]
    return [([draw.normal(shape) for shape in shapes], [], flat_views(views), "l2", "all")]


_group_scores = declare(
    "group_scores",
    schema="(Tensor[] x, Tensor[] owner, int[] views, str score, str region) -> Tensor[]",
    reference=group_scores_reference,
    fake=_group_scores_fake,
    dtypes=FLOATS,
    samples=_group_scores_samples,
    bad_inputs=_group_scores_bad_inputs,
    tolerance=SUMS,
    cost=_group_scores_cost,
    workload=_group_scores_workload,
    sums="groups",
    launches=2,
)


def group_scores(
    x: Sequence[Tensor], views: Sequence[View], *, score: str, owner: Sequence[Tensor] = (), region: str = "all"
) -> list[Tensor]:
    """The fp64 score of every group of every layer; -inf where a group has no coordinate in the region."""
    scores: list[Tensor] = _group_scores(list(x), list(owner), flat_views(views), score, region)
    return scores
