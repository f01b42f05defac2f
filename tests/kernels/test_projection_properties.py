"""What a projection is by definition, on small layers: exact, idempotent, and nothing in the set is closer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import inf, isnan

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lps_kernels
from lps_kernels._checks import FLOATS

settings.register_profile("lps", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("lps")

# Many ties (also of magnitude, also of zeros), and ordinary numbers that all four dtypes hold with few bits.
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0]),
    st.floats(-4, 4, width=16),
)
NONFINITE = st.sampled_from([float("nan"), inf, -inf])
# A free weight, and weights of tasks 1 and 127, each with and without the bit that the latest projection left.
OWNERS = st.sampled_from([0, 0x80, 1, 0x81, 127, 0xFF])


@dataclass
class Projection:
    """One small layer and how it is to be projected."""

    x: Tensor
    owner: Tensor
    view: tuple[int, int, int]
    region: str
    keep: int

    def inside(self) -> Tensor:
        """True at the coordinates of the region, as [A, G, B]."""
        free = (self.owner & 0x7F) == 0
        return {"all": torch.ones_like(free), "free": free, "owned": ~free}[self.region].view(self.view)

    def groups(self) -> list[int]:
        """The groups that have a coordinate in the region."""
        return [group for group in range(self.view[1]) if self.inside()[:, group].any()]

    def on(self, groups: tuple[int, ...]) -> Tensor:
        """True at the region's coordinates of these groups."""
        chosen = torch.zeros(self.view, dtype=torch.bool)
        chosen[:, list(groups)] = True
        return chosen & self.inside()

    def project(self, score: str, output: str) -> tuple[Tensor, Tensor]:
        """The result and the kept coordinates, both as [A, G, B]."""
        owner = [] if self.region == "all" else [self.owner]
        (projected,), (bits,) = lps_kernels.project(
            [self.x], [self.keep], [self.view], score=score, owner=owner, region=self.region, output=output
        )
        return projected.view(self.view), lps_kernels.unpack_bits(bits, list(self.view))


@st.composite
def layers(
    draw: st.DrawFn, single: bool = False, values: st.SearchStrategy[float] = VALUES, region: str | None = None
) -> Projection:
    """Layers of up to six groups, which the region covers in unequal parts."""
    a, b = (1, 1) if single else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    g = draw(st.integers(0, 9 if single else 6))
    size, dtype = a * g * b, draw(st.sampled_from(FLOATS))
    x = torch.tensor(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype)
    owner = torch.tensor(draw(st.lists(OWNERS, min_size=size, max_size=size)), dtype=torch.uint8)
    layer = Projection(x, owner, (a, g, b), region or draw(st.sampled_from(["all", "free", "owned"])), 0)
    layer.keep = draw(st.integers(0, len(layer.groups())))
    return layer


def distance(first: Tensor, second: Tensor) -> float:
    """Squared Euclidean distance in fp64."""
    return float((first.double() - second.double()).square().sum())


def kept_groups(kept: Tensor) -> list[int]:
    """The groups that have a kept coordinate."""
    return kept.any(dim=2).any(dim=0).nonzero().flatten().tolist()


@given(layers())
def test_exactly_keep_groups_survive_with_all_their_coordinates_of_the_region(layer: Projection) -> None:
    for score, output in (("l2", "values"), ("half", "mask")):
        _, kept = layer.project(score, output)
        groups = kept_groups(kept)
        assert len(groups) == layer.keep
        assert torch.equal(kept, layer.on(tuple(groups)))


@given(layers())
def test_result_holds_the_values_or_ones_of_the_kept_coordinates_and_zero_elsewhere(layer: Projection) -> None:
    for score in ("l2", "half"):
        values, kept = layer.project(score, "values")
        assert torch.equal(values, torch.where(kept, layer.x.view(layer.view), 0))
        mask, same = layer.project(score, "mask")
        assert torch.equal(mask, kept.to(layer.x.dtype))
        assert torch.equal(same, kept)


@given(layers())
def test_projecting_twice_is_projecting_once(layer: Projection) -> None:
    once, _ = layer.project("l2", "values")
    layer.x = once.reshape(-1)
    assert torch.equal(layer.project("l2", "values")[0], once)


@given(layers())
def test_projecting_a_mask_twice_is_projecting_it_once(layer: Projection) -> None:
    once, kept = layer.project("half", "mask")
    layer.x = once.reshape(-1)
    again, same = layer.project("half", "mask")
    assert torch.equal(again, once)
    assert torch.equal(same, kept)


@given(layers())
def test_no_vector_on_as_many_groups_is_closer(layer: Projection) -> None:
    projected, _ = layer.project("l2", "values")
    target = torch.where(layer.inside(), layer.x.view(layer.view), 0)
    # Of the vectors on given groups, the closest one copies the values there.
    others = [torch.where(layer.on(some), target, 0) for some in combinations(layer.groups(), layer.keep)]
    closest = min(distance(other, target) for other in others)
    assert distance(projected, target) <= closest + 1e-9


@given(layers(single=True))
def test_no_binary_vector_with_as_many_ones_is_closer_as_appendix_b_proves(layer: Projection) -> None:
    mask, _ = layer.project("signed", "mask")
    target = torch.where(layer.inside(), layer.x.view(layer.view), 0)
    assert float(mask.sum()) == layer.keep
    others = [layer.on(some).double() for some in combinations(layer.groups(), layer.keep)]
    closest = min(distance(other, target) for other in others)
    assert distance(mask, target) <= closest + 1e-9


@given(layers(region="owned"))
def test_no_binary_vector_constant_on_groups_is_closer(layer: Projection) -> None:
    mask, _ = layer.project("half", "mask")
    owned = layer.inside()
    target = torch.where(owned, layer.x.view(layer.view), 0)
    others = [layer.on(some).double() for some in combinations(layer.groups(), layer.keep)]
    closest = min(distance(other, target) for other in others)
    assert distance(torch.where(owned, mask, 0), target) <= closest + 1e-9


def _selected(scores: list[float], candidates: list[int], keep: int) -> list[int]:
    """The documented order in plain Python: NaN first, then the larger score, then the lower index."""
    order = sorted(candidates, key=lambda i: (not isnan(scores[i]), 0.0 if isnan(scores[i]) else -scores[i], i))
    return sorted(order[:keep])


@given(layers(single=True, values=st.one_of(VALUES, NONFINITE)))
def test_ties_go_to_the_lowest_index_and_nan_counts_as_largest(layer: Projection) -> None:
    numbers = layer.x.double().tolist()
    for score, key in (("magnitude", [abs(x) for x in numbers]), ("signed", numbers)):
        _, kept = layer.project(score, "mask")
        assert kept_groups(kept) == _selected(key, layer.groups(), layer.keep)


@given(layers(values=st.sampled_from([0.0, 1.0, -1.0, 2.0, float("nan"), inf, -inf])))
def test_tied_and_nan_groups_follow_the_same_order(layer: Projection) -> None:
    # Whole numbers: the sums are exact in any order, so equal groups tie exactly.
    values, inside = layer.x.view(layer.view).double(), layer.inside()
    of_l2 = torch.where(inside, values.square(), 0).sum(dim=(0, 2)).tolist()
    of_half = torch.where(inside, values - 0.5, 0).sum(dim=(0, 2)).tolist()
    if layer.view[0] * layer.view[2] == 1:
        of_half = values.flatten().tolist()
    for score, key in (("l2", of_l2), ("half", of_half)):
        _, kept = layer.project(score, "mask")
        assert kept_groups(kept) == _selected(key, layer.groups(), layer.keep)


@given(layers())
def test_every_kept_score_is_at_least_every_dropped_one(layer: Projection) -> None:
    owner = [] if layer.region == "all" else [layer.owner]
    for score in ("l2", "half"):
        (scores,) = lps_kernels.group_scores([layer.x], [layer.view], score=score, owner=owner, region=layer.region)
        assert scores.isneginf().nonzero().flatten().tolist() == sorted(set(range(layer.view[1])) - set(layer.groups()))
        kept = kept_groups(layer.project(score, "mask")[1])
        dropped = [float(scores[group]) for group in layer.groups() if group not in kept]
        assert min((float(scores[group]) for group in kept), default=inf) >= max(dropped, default=-inf)


@given(st.lists(layers(region="free"), min_size=1, max_size=4))
def test_layers_of_one_call_do_not_affect_each_other(batch: list[Projection]) -> None:
    for layer in batch:
        layer.x = layer.x.float()
    together, bits = lps_kernels.project(
        [layer.x for layer in batch],
        [layer.keep for layer in batch],
        [layer.view for layer in batch],
        score="l2",
        owner=[layer.owner for layer in batch],
        region="free",
    )
    for layer, projected, kept in zip(batch, together, bits, strict=True):
        alone, coordinates = layer.project("l2", "values")
        assert torch.equal(projected.view(layer.view), alone)
        assert torch.equal(lps_kernels.unpack_bits(kept, list(layer.view)), coordinates)


@given(st.lists(st.booleans(), max_size=70), st.sampled_from([1, 2, 5]))
def test_packing_is_numpys_and_unpacking_undoes_it(flags: list[bool], rows: int) -> None:
    x = torch.tensor(flags * rows, dtype=torch.bool).reshape(rows, -1)
    bits = lps_kernels.pack_bits(x)
    assert bits.tolist() == np.packbits(x.numpy().reshape(-1), bitorder="little").tolist()
    assert torch.equal(lps_kernels.unpack_bits(bits, list(x.shape)), x)
