"""Top-k projections over a batch of layers, Eq. (14) and Appendix B of the paper.

Groups are scored (see :mod:`lps_kernels.ops.scores`), exactly ``keep`` of them survive, and the survivors are written
as values or as ones, with their packed bits.

Order of the scores: larger is better, equal scores go to the lowest group index, -0.0 equals 0.0, and NaN is larger
than everything, so a broken weight survives where it is seen instead of being pruned out of sight. The result does not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lps_kernels._checks import FLOATS, check_choice, check_length, refuse_unless
from lps_kernels._registry import Args, BadInput, Cost, Sample, Tolerance, declare
from lps_kernels._samples import Draw
from lps_kernels.ops.bits import pack_reference, packed_size
from lps_kernels.ops.scores import (
    View,
    check_region,
    flat_views,
    group_score_kind,
    group_view,
    in_region,
    region_bad_inputs,
    score_groups,
    scored_samples,
    views_of,
)

OUTPUTS = ("values", "mask")

SELECTION = Tolerance(
    dict.fromkeys(FLOATS, 0.0),
    "values are copied and selections are exact; only groups whose scores agree to 5e-7 may change places",
)


def select_groups(scores: Tensor, eligible: Tensor, keep: int) -> Tensor:
    """True for the ``keep`` best eligible groups; ties go to the lowest index, NaN is the best."""
    candidates = eligible.nonzero().squeeze(1)
    order = torch.sort(scores[candidates], descending=True, stable=True).indices
    kept = torch.zeros_like(eligible)
    kept[candidates[order[:keep]]] = True
    return kept


def select_coordinates(
    op: str, layer: int, keep_name: str, x: Tensor, inside: Tensor, view: View, kind: str, keep: int, region: str
) -> Tensor:
    """True at the coordinates of the selected groups that lie inside the region; refuses a keep that does not fit."""
    scores, eligible = score_groups(x, inside, view, kind)
    available = int(eligible.sum())
    kind = "" if region == "all" else f"{region} "
    expected = f"between 0 and {available} (the {kind}groups of layer {layer})"
    refuse_unless(0 <= keep <= available, op, f"{keep_name}[{layer}]", expected, keep)
    return _coordinates_of(select_groups(scores, eligible, keep), view, inside)


def select_up_to(x: Tensor, inside: Tensor, view: View, kind: str, keep: int, *, positive: bool) -> Tensor:
    """As :func:`select_coordinates`, but all survive where there are fewer groups than ``keep``.

    With ``positive`` only groups take part whose sum of ``x - 1/2`` is above 0: of one weight, where ``x > 1/2``.
    """
    scores, eligible = score_groups(x, inside, view, kind)
    if positive:
        least = 0.5 if view[0] * view[2] == 1 else 0.0
        eligible = eligible & ~(scores <= least)  # NaN is above everything
    return _coordinates_of(select_groups(scores, eligible, keep), view, inside)


def _coordinates_of(groups: Tensor, view: View, inside: Tensor) -> Tensor:
    return groups.view(1, -1, 1).expand(view).reshape(inside.shape) & inside


def project_reference(
    x: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[int],
    score: str,
    region: str,
    output: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """Keep the best groups of every layer; see the module's text for the order."""
    _check_project(x, owner, keep, views, score, region, output)
    projected, kept = [], []
    for layer, view in enumerate(views_of(views)):
        values = x[layer].contiguous()
        inside = in_region(values, owner[layer] if owner else None, region)
        chosen = select_coordinates(
            "project", layer, "keep", values, inside, view, group_score_kind(score), keep[layer], region
        )
        projected.append(torch.where(chosen, values, 0) if output == "values" else chosen.to(values.dtype))
        kept.append(pack_reference(chosen))
    return projected, kept


def _check_project(
    x: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[int],
    score: str,
    region: str,
    output: str,
) -> None:
    check_region("project", x, owner, views, score, region)
    check_choice("project", "output", output, OUTPUTS)
    check_length("project", "keep", keep, len(x), "counts")


def _project_fake(
    x: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[int],
    score: str,
    region: str,
    output: str,
) -> tuple[list[Tensor], list[Tensor]]:
    _check_project(x, owner, keep, views, score, region, output)
    projected = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in x]
    kept = [tensor.new_empty((packed_size(tensor.numel()),), dtype=torch.uint8) for tensor in x]
    return projected, kept


def _keeps(group_counts: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    yield "none", [0 for _ in group_counts]
    yield "some", [(count + 2) // 3 for count in group_counts]
    yield "all", list(group_counts)


def available_groups(
    layers: Sequence[Tensor], owners: Sequence[Tensor], views: Sequence[View], region: str
) -> list[int]:
    """How many groups of each layer have a coordinate in the region."""
    counts = []
    for layer, view in enumerate(views):
        inside = in_region(layers[layer], owners[layer] if owners else None, region)
        counts.append(int(inside.reshape(view).any(dim=2).any(dim=0).sum()))
    return counts


def _project_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for name, layers, owners, views, score, region in scored_samples(dtype):
        for amount, keep in _keeps(available_groups(layers, owners, views, region)):
            output = "values" if score in ("magnitude", "l2") else "mask"
            yield Sample(f"{name}, keep {amount}", (layers, owners, keep, flat_views(views), score, region, output))
    x = Draw(1).normal((100,), dtype)
    yield Sample("mask of magnitudes", ([x], [], [30], [1, 100, 1], "magnitude", "all", "mask"))
    yield Sample("values of signed", ([x], [], [30], [1, 100, 1], "signed", "all", "values"))


def _project_bad_inputs() -> Iterator[BadInput]:
    op, x = "lps::project", [torch.zeros(4, 6), torch.zeros(3, 5)]
    yield from region_bad_inputs(op, ("values",), ([1, 1],))
    columns = [4, 6, 1, 3, 5, 1]
    yield BadInput(
        "output",
        (x, [], [1, 1], columns, "l2", "all", "both"),
        f"{op}: output: expected one of values, mask, got both",
    )
    yield BadInput(
        "keep length",
        (x, [], [1], columns, "l2", "all", "values"),
        f"{op}: keep: expected 2 counts (one a layer), got 1",
    )
    yield BadInput(
        "keep too large",
        (x, [], [1, 6], columns, "l2", "all", "values"),
        f"{op}: keep[1]: expected between 0 and 5 (the groups of layer 1), got 6",
    )
    yield BadInput(
        "keep negative",
        (x, [], [-1, 1], columns, "l2", "all", "values"),
        f"{op}: keep[0]: expected between 0 and 6 (the groups of layer 0), got -1",
    )
    owner = [torch.zeros(4, 6, dtype=torch.uint8), torch.ones(3, 5, dtype=torch.uint8)]
    owner[0][:, :4] = 2
    yield BadInput(
        "more than is free",
        (x, owner, [3, 0], columns, "l2", "free", "values"),
        f"{op}: keep[0]: expected between 0 and 2 (the free groups of layer 0), got 3",
        reads_values=True,
    )
    yield BadInput(
        "more than is owned",
        ([x[0].view(-1)], [owner[0].view(-1)], [17], [1, 24, 1], "signed", "owned", "mask"),
        f"{op}: keep[0]: expected between 0 and 16 (the owned groups of layer 0), got 17",
        reads_values=True,
    )


def _project_cost(x: Sequence[Tensor], owner: Sequence[Tensor], *_: object) -> Cost:
    # Values are read to select and again to write; both reads are needed because the selection is global.
    read = 2 * sum(tensor.nbytes for tensor in (*x, *owner))
    written = sum(tensor.nbytes + packed_size(tensor.numel()) for tensor in x)
    return Cost(read + written, sum(tensor.numel() for tensor in x))


def _project_workload(shapes: Sequence[tuple[int, ...]]) -> list[Args]:
    draw = Draw()
    layers = [draw.normal(shape) for shape in shapes]
    keep = [round(0.1 * layer.numel()) for layer in layers]
    views = [group_view(shape, "irregular") for shape in shapes]
    return [(layers, [], keep, flat_views(views), "magnitude", "all", "values")]


_project = declare(
    "project",
    schema="(Tensor[] x, Tensor[] owner, int[] keep, int[] views, str score, str region, str output) "
    "-> (Tensor[], Tensor[])",
    reference=project_reference,
    fake=_project_fake,
    dtypes=FLOATS,
    samples=_project_samples,
    bad_inputs=_project_bad_inputs,
    tolerance=SELECTION,
    cost=_project_cost,
    workload=_project_workload,
    launches=4,
)


def project(
    x: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[View],
    *,
    score: str,
    owner: Sequence[Tensor] = (),
    region: str = "all",
    output: str = "values",
) -> tuple[list[Tensor], list[Tensor]]:
    """Project every layer onto exactly ``keep[i]`` groups in one call.

    ``views[i]`` is the layer's ``(A, G, B)`` (:func:`group_view`). ``score`` is ``magnitude`` or ``signed`` for
    groups of one weight, ``l2`` or ``half`` (the sum of ``x - 1/2``: the projection of a binary mask that is constant
    on groups) for any. ``region`` restricts the selection to ``free`` or ``owned`` coordinates of ``owner``; what
    lies outside comes out as 0. Returns the projected layers (the surviving values, or 1 where ``output`` is
    ``mask``) and, from the same selection, the packed bits of the surviving coordinates.
    """
    projected, kept = _project(list(x), list(owner), list(keep), flat_views(views), score, region, output)
    return projected, kept
