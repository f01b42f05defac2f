"""``admm_update_`` against textbook ADMM with separate W, M, Z, U, Y and K."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lps_kernels

SHAPES = [(6, 5), (4, 3, 2), (1,), (9, 8), (0, 3)]
Array = np.ndarray


class Textbook:
    """One layer of Eq. (14) and the dual updates of the appendix, in fp64, role by role."""

    def __init__(self, free: Array, view: tuple[int, int, int], sharing: tuple[int, int, int]) -> None:
        self.free, self.view, self.sharing = free, view, sharing
        self.z, self.u, self.y, self.k = (np.zeros(free.shape) for _ in range(4))
        self.kept = np.zeros(free.shape, dtype=bool)

    def update(self, v: Array, keep_free: int, keep_owned: int) -> None:
        """One round: project both roles, then move both duals."""
        w, m = np.where(self.free, v, 0), np.where(self.free, 0, v)
        of_w, of_m = w + self.u, m + self.k
        of_free = _best(of_w**2, self.free, self.view, keep_free)
        of_owned = _best(of_m - 0.5, ~self.free, self.sharing, keep_owned)
        self.kept = of_free | of_owned
        self.z = np.where(of_free, of_w, 0)
        self.y = of_owned.astype(float)
        self.u = of_w - self.z
        self.k = of_m - self.y

    def centre(self) -> Array:
        """What the proximal term pulls v to."""
        pull: Array = np.where(self.free, self.z - self.u, self.y - self.k)
        return pull


def _best(terms: Array, inside: Array, view: tuple[int, int, int], keep: int) -> Array:
    """True at coordinates in ``inside`` of the ``keep`` groups with the largest sums; ties go to the lowest index."""
    sums = np.where(inside, terms, 0).reshape(view).sum(axis=(0, 2))
    candidates = np.flatnonzero(inside.reshape(view).any(axis=(0, 2)))
    chosen = np.zeros(view[1], dtype=bool)
    chosen[candidates[np.argsort(-sums[candidates], kind="stable")[:keep]]] = True
    result: Array = np.broadcast_to(chosen[None, :, None], view).reshape(inside.shape) & inside
    return result


def _groups(inside: Array, view: tuple[int, int, int]) -> int:
    return int(inside.reshape(view).any(axis=(0, 2)).sum())


def _numbers(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Multiples of 1/64 up to 2: every sum and square here is exact, in fp32 too, so nothing is left to rounding."""
    exact: Array = generator.integers(-128, 129, shape) / 64
    return exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sharing", ["irregular", "column"])
@pytest.mark.parametrize("pattern", ["irregular", "filter", "column", "channel"])
def test_successive_updates_are_those_of_textbook_admm(pattern: str, sharing: str, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(5)
    views = [lps_kernels.group_view(shape, pattern) for shape in SHAPES]
    sharing_views = [lps_kernels.group_view(shape, sharing) for shape in SHAPES]
    tasks = [generator.choice([0, 0, 1, 2, 127], shape).astype(np.uint8) for shape in SHAPES]
    layers = [Textbook(t == 0, *both) for t, *both in zip(tasks, views, sharing_views, strict=True)]
    keep_free = [(_groups(layer.free, layer.view) + 1) // 2 for layer in layers]
    keep_owned = [(_groups(~layer.free, layer.sharing) + 2) // 3 for layer in layers]
    owner = [torch.from_numpy(t | 0x80) for t in tasks]
    centre = [torch.full(shape, float("nan"), dtype=dtype) for shape in SHAPES]
    for iteration in range(8):
        v = [_numbers(generator, shape) for shape in SHAPES]
        lps_kernels.admm_update_(
            [torch.from_numpy(x).to(dtype) for x in v],
            centre,
            owner,
            keep_free,
            keep_owned,
            views,
            sharing_views,
            fresh=iteration == 0,
        )
        for index, layer in enumerate(layers):
            layer.update(v[index], keep_free[index], keep_owned[index])
            what = f"iteration {iteration}, layer {index}"
            assert np.array_equal(centre[index].double().numpy(), layer.centre()), what
            assert np.array_equal(owner[index].numpy() & 0x7F, tasks[index]), what
            assert np.array_equal(owner[index].numpy() >= 0x80, layer.kept), what


def test_updates_of_ordinary_numbers_stay_within_rounding_of_textbook_admm() -> None:
    generator = np.random.default_rng(6)
    view, task = (1, 40 * 50, 1), generator.choice([0, 3], (40, 50)).astype(np.uint8)
    layer, owner = Textbook(task == 0, view, view), torch.from_numpy(task.copy())
    centre = torch.zeros(40, 50, dtype=torch.float64)
    v = generator.standard_normal((40, 50))
    for iteration in range(20):
        v = v + 0.1 * generator.standard_normal((40, 50))
        lps_kernels.admm_update_(
            [torch.from_numpy(v)], [centre], [owner], [500], [700], [view], [view], fresh=iteration == 0
        )
        layer.update(v, 500, 700)
        # Each round rounds a handful of times, and duals reach about 20.
        np.testing.assert_allclose(centre.numpy(), layer.centre(), rtol=0, atol=1e-12)
        assert np.array_equal(owner.numpy() >= 0x80, layer.kept)


def test_a_fresh_update_does_not_read_the_old_centre_and_kept_bits() -> None:
    v = torch.linspace(-1, 1, 24).view(4, 6)
    task = (torch.arange(24, dtype=torch.uint8) % 3).view(4, 6)
    view, results = (1, 24, 1), []
    for filling, kept in ((0.0, 0), (float("nan"), 0x80)):
        centre, owner = torch.full((4, 6), filling), task | kept
        lps_kernels.admm_update_([v], [centre], [owner], [3], [5], [view], [view], fresh=True)
        results.append((centre, owner))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_exactly_as_many_weights_are_kept_in_each_role_as_asked_for() -> None:
    generator = torch.Generator().manual_seed(0)
    v, owner = (
        torch.randn(1000, generator=generator),
        torch.arange(1000, dtype=torch.int32).remainder(4).to(torch.uint8),
    )
    view = (1, 1000, 1)
    for keep_free, keep_owned in ((0, 0), (1, 749), (100, 375), (250, 750)):
        centre = torch.zeros(1000)
        for fresh in (True, False):
            lps_kernels.admm_update_([v], [centre], [owner], [keep_free], [keep_owned], [view], [view], fresh=fresh)
            kept, free = owner >= 0x80, (owner & 0x7F) == 0
            assert int((kept & free).sum()) == keep_free
            assert int((kept & ~free).sum()) == keep_owned


def test_a_constant_v_inside_the_set_is_a_fixed_point() -> None:
    # W already sparse and M already binary: projection and duals change nothing, so the pull vanishes.
    owner = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2], dtype=torch.uint8)
    v = torch.tensor([0.5, 0.0, -2.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    centre, view = torch.zeros(8), (1, 8, 1)
    for fresh in (True, False, False):
        lps_kernels.admm_update_([v], [centre], [owner], [2], [2], [view], [view], fresh=fresh)
        assert torch.equal(centre, v)
        assert torch.equal(owner >= 0x80, v != 0)
