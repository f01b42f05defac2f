"""The paper's solver: ADMM (Eqs. 11 to 16), by either pull."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import cast

import torch
from torch import Tensor

from lps.methods.fit import Fit
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.schedule import projections, proximal_penalty
from lps.methods.lps.shares import density
from lps.methods.lps.steppers import Weight, project
from lps.partition import parts
from lps_kernels.owner import free_coordinates, is_kept


class ADMM:
    """Pulls the weights towards their projection, ever more strongly."""

    straight = False

    def __init__(self, weights: Sequence[Weight], config: TaskConfig, steps: int, steps_per_epoch: int) -> None:
        self.weights, self.config, self.steps = weights, config, steps
        self.rho = 0.0
        # Steps before which the weights are projected, each with the new penalty and whether duals restart at 0.
        self.projections = projections(config.rho, config.rho_levels, steps, steps_per_epoch, config.pull)

    def begin(self) -> None:
        """Masks begin at 1, as the warm-up left them."""

    def make_ready(self) -> None:
        """Room for the centres, which are written by the first projection."""
        for weight in self.weights:
            weight.centre = torch.empty_like(weight.v)

    def before_step(self, step: int, fit: Fit) -> None:
        """Project before the scheduled steps; there is no penalty before the first projection."""
        if self.config.pull == "proximal" and step >= min(self.projections):
            self.rho = proximal_penalty(self.config.rho, self.config.rho_levels, step / self.steps)
        if step in self.projections:
            rho, fresh = self.projections[step]
            self.rho = rho if self.config.pull == "gradient" else self.rho
            self._project(fit, fresh=fresh)

    def end(self) -> None:
        """The centres are no longer needed."""
        self.rho = 0.0
        for weight in self.weights:
            weight.centre = None

    @torch.no_grad()
    def _project(self, fit: Fit, *, fresh: bool) -> None:
        """One update of targets and duals, with its residuals."""
        # The first projection of a level has no earlier target.
        old = [weight.v if fresh else targets_of(weight) for weight in self.weights]
        project(self.weights, fresh=fresh)
        primal, dual = residuals(self.weights, old)
        dual = float("nan") if fresh else self.rho * dual
        fit.report.residuals.append((self.rho, primal, dual))
        fit.log("admm", "projection", fit.position.epoch + 1, primal=primal, dual=dual, density=density(self.weights))


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
