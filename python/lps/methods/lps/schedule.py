"""When the penalty of ADMM grows and the weights are projected."""

from __future__ import annotations

# Every level of the penalty starts with duals of 0; with fewer projections than this they would stay near 0.
MINIMUM_PROJECTIONS = 3
GROWTH = 10.0


def penalties(rho: float, levels: int, steps: int, steps_per_epoch: int) -> dict[int, tuple[float, bool]]:
    """ADMM steps before which the weights are projected, each with the penalty from there on and whether the projection
    is the first of its level.

    Levels are equally long; within each, projections are evenly spaced, one per epoch and at least three. The very
    first is left out: all masks start at 1, so there is nothing yet to choose by.
    """
    projections: dict[int, tuple[float, bool]] = {}
    for level in range(levels):
        start, end = steps * level // levels, steps * (level + 1) // levels
        # A level cannot have more projections than steps.
        count = min(end - start, max(MINIMUM_PROJECTIONS, round((end - start) / steps_per_epoch)))
        first = 1 if level == 0 and count > 1 else 0
        for index in range(first, count):
            projections[start + (end - start) * index // count] = (rho * GROWTH**level, index == first)
    return projections
