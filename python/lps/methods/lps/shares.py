"""How many weights the latest projection keeps, own and reused."""

from __future__ import annotations

from collections.abc import Sequence

from lps.methods.lps.steppers import Weight
from lps.partition import parts
from lps_kernels.owner import free_coordinates, is_kept


def density(weights: Sequence[Weight]) -> float:
    """Share of all weights that are kept."""
    kept = sum(int(is_kept(owner).sum()) for weight in weights for (owner,) in parts(weight.partition.owner))
    return kept / sum(weight.v.numel() for weight in weights)


def reused(weight: Weight) -> float:
    """Share of the earlier tasks' weights of a layer that are kept; NaN where there are none."""
    owned = kept = 0
    for (owner,) in parts(weight.partition.owner):
        of_others = ~free_coordinates(owner)
        owned += int(of_others.sum())
        kept += int((of_others & is_kept(owner)).sum())
    return kept / owned if owned else float("nan")
