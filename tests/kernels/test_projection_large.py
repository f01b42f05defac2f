"""Selection on layers of many work units: against numpy's stable sort, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import lps_kernels
from lps_kernels._checks import FLOATS
from lps_kernels._registry import Op
from tests.helpers import assert_same_bits, copy_of, each_op, results_of, weights_in

SIZE = 100_003


def _numbers(generator: np.random.Generator) -> dict[str, Callable[[], np.ndarray]]:
    normal = generator.standard_normal
    return {
        "normal": lambda: normal(SIZE),
        "uniform": lambda: generator.random(SIZE),
        "wide range": lambda: normal(SIZE) * np.exp(normal(SIZE) * 20),
        "few values": lambda: generator.integers(-3, 4, SIZE).astype(float),
        "constant but for a few": lambda: np.where(generator.random(SIZE) < 1e-4, normal(SIZE), 1.0),
        "mostly zeros of both signs": lambda: normal(SIZE) * (generator.random(SIZE) < 0.05),
        "ascending": lambda: np.linspace(-1, 1, SIZE),
        "descending": lambda: np.linspace(3, 1, SIZE),
        "subnormal": lambda: normal(SIZE) * 1e-40,
        "one outlier": lambda: np.where(np.arange(SIZE) == SIZE // 2, 1e4, normal(SIZE) * 1e-4),
        "two far apart heaps": lambda: np.where(generator.random(SIZE) < 0.5, 1e-4, 1e4) * normal(SIZE),
        "many NaN and Inf": lambda: generator.choice([np.nan, np.inf, -np.inf, 1.0, -2.0, 0.0], SIZE),
        "period of the sampling": lambda: np.tile(np.arange(1024.0), SIZE // 1024 + 1)[:SIZE],
    }


DISTRIBUTIONS = tuple(_numbers(np.random.default_rng(0)))


def _order(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The candidates in the documented order, by numpy: NaN first, then the larger score, then the lower index."""
    chosen = scores[candidates]
    order = np.lexsort((-np.where(np.isnan(chosen), 0, chosen), ~np.isnan(chosen)))
    return candidates[order]


def _kept(order: np.ndarray, keep: int, size: int) -> np.ndarray:
    kept = np.zeros(size, dtype=bool)
    kept[order[:keep]] = True
    return kept


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_selection_is_that_of_a_stable_sort(distribution: str, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(DISTRIBUTIONS.index(distribution))
    x = torch.from_numpy(_numbers(generator)[distribution]()).to(dtype)
    owner = torch.from_numpy(generator.choice([0, 0x80, 5, 0x85], SIZE).astype(np.uint8))
    numbers, free = x.double().numpy(), (owner.numpy() & 0x7F) == 0
    cases = (
        ("magnitude", np.abs(numbers), "all", np.arange(SIZE)),
        ("magnitude", np.abs(numbers), "free", np.flatnonzero(free)),
        ("signed", numbers, "all", np.arange(SIZE)),
        ("signed", numbers, "owned", np.flatnonzero(~free)),
    )
    for score, key, region, candidates in cases:
        order, count = _order(key, candidates), candidates.size
        for keep in (1, count // 10, count // 2, count - 1):
            (values,), (bits,) = lps_kernels.project(
                [x], [keep], [(1, SIZE, 1)], score=score, owner=[owner] if region != "all" else [], region=region
            )
            want = _kept(order, keep, SIZE)
            got = np.unpackbits(bits.numpy(), count=SIZE, bitorder="little").astype(bool)
            what = f"{distribution}, {region}, {score}, keep {keep} of {count}"
            assert got.sum() == keep, what
            assert np.array_equal(got, want), what
            assert_same_bits([values], [torch.where(torch.from_numpy(want), x, 0)], what)


@pytest.mark.parametrize("view", [(1, 1000, 100), (100, 1000, 1), (20, 1000, 5), (1000, 100, 1), (1, 100, 1000)])
def test_selection_of_groups_is_that_of_a_stable_sort(view: tuple[int, int, int]) -> None:
    generator = np.random.default_rng(7)
    # Multiples of 1/8: squares and sums are exact, so that equal groups tie exactly in any order of summation.
    numbers = generator.integers(-8, 9, view) / 8
    numbers[:, ::3] = numbers[:, :1]
    owner = generator.choice([0, 5], view, p=[0.3, 0.7]).astype(np.uint8)
    owner[:, 1::4] = 0
    x, tensor = torch.from_numpy(numbers).float(), torch.from_numpy(owner)
    for region, inside in (("all", np.ones(view, bool)), ("free", owner == 0), ("owned", owner > 0)):
        candidates = np.flatnonzero(inside.any(axis=(0, 2)))
        for score, terms in (("l2", numbers**2), ("half", numbers - 0.5)):
            key = np.where(inside, terms, 0).sum(axis=(0, 2))
            for keep in (0, 1, candidates.size // 3, candidates.size):
                _, (bits,) = lps_kernels.project(
                    [x], [keep], [view], score=score, owner=[tensor] if region != "all" else [], region=region
                )
                got = np.unpackbits(bits.numpy(), count=x.numel(), bitorder="little").astype(bool).reshape(view)
                want = _kept(_order(key, candidates), keep, view[1])[None, :, None] & inside
                assert np.array_equal(got, want), f"{region}, {score}, keep {keep} of {candidates.size}"


@each_op
def test_results_have_the_same_bits_for_any_number_of_threads(op: Op) -> None:
    # 70,001 weights are several work units, and 8,751 bytes when packed.
    large = [sample for sample in op.samples(op.dtypes[0]) if weights_in(sample) >= 8_000]
    assert large, f"{op.name}: no sample that spans several work units"
    for sample in large:
        results: list[list[Tensor]] = []
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            results.append(results_of(op, op.overload, copy_of(sample.args)))
        for threads, result in zip((2, 3, 4), results[1:], strict=True):
            assert_same_bits(result, results[0], f"{op.name}, {sample.name}, {threads} threads")


def test_a_call_of_many_layers_has_the_bits_of_a_call_each() -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(64, 2, 7), (64, 64), (512, 128), (3,), (1,), (0, 4), (128, 512), (256, 64, 3), (2000, 30)] * 3
    x = [torch.randn(shape, generator=generator) for shape in shapes]
    views = [lps_kernels.group_view(shape, "irregular") for shape in shapes]
    keep = [tensor.numel() // 10 for tensor in x]
    together = lps_kernels.project(x, keep, views, score="magnitude")
    for layer in range(len(x)):
        alone = lps_kernels.project([x[layer]], [keep[layer]], [views[layer]], score="magnitude")
        assert_same_bits([together[0][layer], together[1][layer]], [alone[0][0], alone[1][0]], f"layer {layer}")
