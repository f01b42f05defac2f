"""When the penalty of ADMM grows and the weights are projected."""

from __future__ import annotations

# Levels of the penalty start from a dual of 0, so fewer than this many projections would leave it no say.
MINIMUM_PROJECTIONS = 3
GROWTH = 10.0


def penalties(rho: float, levels: int, steps: int, steps_per_epoch: int) -> dict[int, tuple[float, bool]]:
    """The steps of the ADMM phase before which the weights are projected: the penalty from there on, and whether the
    projection is the first of its level.

    Levels are equally long; within each, projections are evenly spaced, one an epoch and at least three. The very
    first is left out: masks all begin at 1, and which of them to keep cannot be told before they have moved.
    """
    plan: dict[int, tuple[float, bool]] = {}
    for level in range(levels):
        start, end = steps * level // levels, steps * (level + 1) // levels
        # A level cannot have more projections than steps.
        count = min(end - start, max(MINIMUM_PROJECTIONS, round((end - start) / steps_per_epoch)))
        first = 1 if level == 0 and count > 1 else 0
        for index in range(first, count):
            plan[start + (end - start) * index // count] = (rho * GROWTH**level, index == first)
    return plan
