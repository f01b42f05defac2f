"""When the penalty of ADMM grows and the weights are projected."""

from __future__ import annotations

# Every level of the penalty starts with duals of 0; with fewer projections than this they would stay near 0.
MINIMUM_PROJECTIONS = 3
GROWTH = 10.0


def projections(rho: float, levels: int, steps: int, steps_per_epoch: int, pull: str) -> dict[int, tuple[float, bool]]:
    """ADMM steps before which the weights are projected, each with the penalty from there on and whether the projection
    is the first of its level.

    Levels are equally long; within each, projections are evenly spaced, one per epoch and at least three. The very
    first is left out: all masks start at 1, so there is nothing yet to choose by. With the proximal pull the penalty
    grows all the time (:func:`proximal_penalty`), so duals are never rescaled: the phase is one level.
    """
    found: dict[int, tuple[float, bool]] = {}
    count_of_levels = levels if pull == "gradient" else 1
    for level in range(count_of_levels):
        start, end = steps * level // count_of_levels, steps * (level + 1) // count_of_levels
        # A level cannot have more projections than steps.
        count = min(end - start, max(MINIMUM_PROJECTIONS, round((end - start) / steps_per_epoch)))
        first = 1 if level == 0 and count > 1 else 0
        for index in range(first, count):
            found[start + (end - start) * index // count] = (rho * GROWTH**level, index == first)
    return found


def proximal_penalty(rho: float, levels: int, progress: float) -> float:
    """The penalty of the proximal pull: from ``rho`` tenfold per level, smoothly, over the whole phase."""
    growth: float = GROWTH ** (levels * progress)
    return rho * growth
