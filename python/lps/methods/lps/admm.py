"""The ADMM projection over all layers, and its residuals."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import cast

import torch
from torch import Tensor

from lps.methods.lps.plan import LayerPlan
from lps.methods.lps.steppers import Weight
from lps.partition import parts
from lps_kernels import admm_update_
from lps_kernels.owner import free_coordinates, is_kept


def projection(weights: Sequence[Weight], plans: Sequence[LayerPlan], *, fresh: bool) -> None:
    """One ADMM update of targets and duals; ``fresh`` sets the duals to 0 first."""
    admm_update_(
        [weight.v for weight in weights],
        [cast("Tensor", weight.centre) for weight in weights],
        [weight.partition.owner for weight in weights],
        [plan.keep_free for plan in plans],
        [plan.keep_owned for plan in plans],
        [plan.view for plan in plans],
        [plan.sharing_view for plan in plans],
        fresh=fresh,
    )


def residuals(weights: Sequence[Weight], before: Sequence[Tensor]) -> tuple[float, float]:
    """Primal (weights to their projection) and dual (projection to the one ``before``) distance, in the L2 norm."""
    primal = dual = 0.0
    for weight, old in zip(weights, before, strict=True):
        for v, centre, owner, z in parts(weight.v, cast("Tensor", weight.centre), weight.partition.owner, old):
            target = _target(centre, owner)
            primal += float((v - target).square().sum())
            dual += float((target - z).square().sum())
    return sqrt(primal), sqrt(dual)


def targets_of(weight: Weight) -> Tensor:
    """The latest projection of the whole weight."""
    targets = torch.empty_like(weight.v)
    for target, centre, owner in parts(targets, cast("Tensor", weight.centre), weight.partition.owner):
        target.copy_(_target(centre, owner))
    return targets


def _target(centre: Tensor, owner: Tensor) -> Tensor:
    """The projection, read from ``centre`` and the ``kept`` bits: Z where free, Y where owned."""
    kept = is_kept(owner)
    return torch.where(free_coordinates(owner), torch.where(kept, centre, 0), kept.to(centre.dtype))


def density(weights: Sequence[Weight]) -> float:
    """Share of all weights that the latest projection keeps, own and reused."""
    kept = sum(int(is_kept(owner).sum()) for weight in weights for (owner,) in parts(weight.partition.owner))
    return kept / sum(weight.v.numel() for weight in weights)
