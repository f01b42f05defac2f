"""The straight-through step's hints: no hint changes a bit, and good ones spare the search."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from lps_kernels._registry import REGISTRY, Args
from lps_kernels._samples import Draw
from lps_kernels.ops.step import step_state
from tests.helpers import CorrectSqrt, assert_same_bits, copy_of, names_of, results_of
from tests.native.adaptors import ADAPTORS, Native

pytestmark = pytest.mark.native

OP = REGISTRY["straight_through_adam_"]

# Two units and a bit, one unit, less than a block.
SHAPES = [(70_001,), (90, 100), (5,)]

# Where every role's threshold lies inside its bracket: the pass, the exact thresholds, the corrections.
ROUNDS = 3

INFINITY, NAN = float("inf"), float("nan")
HINTS = (0.0, -0.0, 0.5, 0.84, 1.0, -1.0, 1e-30, 3e38, INFINITY, -INFINITY, NAN)


def call(keep: tuple[float, float], *, emerging: bool, dtype: torch.dtype = torch.float32) -> Args:
    """Layers of single weights that keep these shares of their free and of their owned weights, without hints."""
    effective, grad, v, w_bar, _, owner, mean, square = step_state(Draw(), SHAPES, dtype)
    views = [size for layer in v for size in (1, layer.numel(), 1)]
    thresholds = torch.full((len(v), 2, 2), NAN, dtype=dtype)
    counts = [[round(share * layer.numel() / 2) for layer in v] for share in keep]
    scalars: Args = (emerging, "all", 3, 1e-3, 1e-2, 0.9, 0.999, 1e-8, 1e-3, [], [], None)
    return effective, grad, v, w_bar, owner, mean, square, thresholds, *counts, views, views, *scalars


def changed(args: Args, **changes: object) -> Args:
    return tuple((dict(zip(names_of(OP), args, strict=True)) | changes).values())


def ways(bridge: ModuleType) -> Iterator[Native]:
    for isa in bridge.isas():
        yield Native(bridge, isa)
        yield Native(bridge, isa, threads=3, grain=1, shifted=True)


@pytest.mark.parametrize("emerging", [False, True])
@pytest.mark.parametrize("dtype", OP.dtypes, ids=str)
def test_no_hint_changes_a_bit(dtype: torch.dtype, emerging: bool, bridge: ModuleType) -> None:
    args, every = call((0.3, 0.3), emerging=emerging, dtype=dtype), list(ways(bridge))
    with CorrectSqrt():
        *want, _ = results_of(OP, OP.reference, copy_of(args))
    torch.manual_seed(0)
    for draw in range(40):
        hints = torch.tensor(HINTS, dtype=dtype)[torch.randint(len(HINTS), (len(SHAPES), 2, 2))]
        given = changed(args, thresholds=hints)
        with CorrectSqrt():
            *_, thresholds = results_of(OP, OP.reference, copy_of(given))
        way = every[draw % len(every)]
        assert_same_bits(ADAPTORS[OP.name](way, *given), [*want, thresholds], f"{hints.tolist()} on {way.isa}")


@pytest.mark.parametrize("emerging", [False, True])
def test_fifty_steps_in_which_less_and_less_is_kept_are_those_of_the_reference(
    emerging: bool, bridge: ModuleType
) -> None:
    for way in ways(bridge):
        args, searched = call((0.5, 0.5), emerging=emerging), []
        draw = Draw(7)
        for step in range(1, 51):
            # Less and less for twenty steps, then always the same.
            share = 0.25 - 0.01 * min(step, 20)
            counts = [round(share * layer.numel()) for layer in args[2]]
            grad = [draw.normal(tuple(layer.shape)) for layer in args[2]]
            args = changed(args, grad=grad, keep_free=counts, keep_owned=counts, step=step)
            before = way.runner.rounds
            got = ADAPTORS[OP.name](way, *args)
            searched.append(way.runner.rounds - before > ROUNDS)
            assert_same_bits(got, results_of(OP, OP.reference, args), f"step {step} on {way.isa}")
        assert searched[0]
        assert sum(searched[30:]) <= 3, searched


def test_a_good_hint_spares_the_search_and_a_bad_one_does_not(bridge: ModuleType) -> None:
    args = call((0.3, 0.3), emerging=False)
    *_, found = results_of(OP, OP.reference, copy_of(args))
    rounds = {}
    for name, hints in (
        ("good", found * torch.tensor([1.0, 0.1])),
        ("missing", found + torch.tensor([1.0, 0.0])),
        ("none", args[7]),
    ):
        native = Native(bridge, bridge.isas()[-1])
        ADAPTORS[OP.name](native, *changed(args, thresholds=hints))
        rounds[name] = native.runner.rounds
    assert rounds["good"] == ROUNDS
    assert rounds["missing"] > ROUNDS
    assert rounds["none"] > ROUNDS


def test_roles_of_which_all_or_none_survive_need_no_search(bridge: ModuleType) -> None:
    for emerging in (False, True):
        for share in (0.0, 2.0):
            args = call((share, share), emerging=emerging)
            native = Native(bridge, bridge.isas()[-1])
            ADAPTORS[OP.name](native, *args)
            assert native.runner.rounds == ROUNDS, (emerging, share)
