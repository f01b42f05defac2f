"""The schedules of projections and of the learning rate."""

from __future__ import annotations

import pytest
from lps.methods.lps.schedule import projections, proximal_penalty
from lps.methods.schedule import learning_rate


def test_three_levels_of_evenly_spaced_projections() -> None:
    plan = projections(1e-3, 3, steps=90, steps_per_epoch=1, pull="gradient")
    assert list(plan) == list(range(1, 90)), "one per epoch, except for the first"
    assert [step for step, (_, fresh) in plan.items() if fresh] == [1, 30, 60]
    assert plan[29][0] == pytest.approx(1e-3)
    assert plan[30][0] == pytest.approx(1e-2)
    assert plan[89][0] == pytest.approx(1e-1)


def test_at_least_three_projections_per_level() -> None:
    plan = projections(1e-3, 3, steps=3 * 420, steps_per_epoch=420, pull="gradient")
    assert list(plan) == [140, 280, 420, 560, 700, 840, 980, 1120]


@pytest.mark.parametrize("steps", range(12))
def test_every_level_that_has_a_step_begins_afresh(steps: int) -> None:
    plan = projections(1.0, 3, steps=steps, steps_per_epoch=max(1, steps), pull="gradient")
    assert all(0 <= step < steps for step in plan)
    for level in range(3):
        start, end = steps * level // 3, steps * (level + 1) // 3
        inside = [plan[step] for step in sorted(plan) if start <= step < end]
        assert bool(inside) == (end > start)
        assert all(rho == 10.0**level for rho, _ in inside)
        assert [fresh for _, fresh in inside] == [index == 0 for index in range(len(inside))]


def test_the_proximal_pull_projects_in_one_level_and_grows_smoothly() -> None:
    plan = projections(1e-4, 3, steps=90, steps_per_epoch=1, pull="proximal")
    assert list(plan) == list(range(1, 90))
    assert [step for step, (_, fresh) in plan.items() if fresh] == [1], "duals restart nowhere else"
    assert [proximal_penalty(1e-4, 3, p) for p in (0, 1 / 3, 1)] == pytest.approx([1e-4, 1e-3, 1e-1])


def test_learning_rates() -> None:
    assert [learning_rate("constant", p) for p in (0, 0.5, 0.99)] == [1, 1, 1]
    assert [learning_rate("linear", p) for p in (0, 0.5, 0.75)] == [1, 0.5, 0.25]
    assert [learning_rate("cosine", p) for p in (0, 0.5)] == [1, pytest.approx(0.5)]
    assert learning_rate("cosine", 0.75) == pytest.approx(0.1464466)
