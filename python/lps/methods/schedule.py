"""How the learning rate falls within a phase."""

from __future__ import annotations

from math import cos, pi


def learning_rate(schedule: str, progress: float) -> float:
    """Factor of the learning rate after this share of a phase."""
    if schedule == "cosine":
        return 0.5 * (1 + cos(pi * progress))
    return 1 - progress if schedule == "linear" else 1.0
