"""The second solver: the pruned and masked network itself is trained, with gradients that pass straight through.

In every step the forward pass uses the exact projection of ``v``: of the free weights the k largest, of the earlier
tasks' weights those whose mask is above 1/2 (or the best share of them); the gradient of the loss goes to all of ``v``
as if nothing had been cut off, so that what was dropped can come back. k falls geometrically from everything to the
task's share over the first half of the phase. The final projection then changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch

from lps.methods.fit import Fit
from lps.methods.lps.shares import density
from lps.methods.lps.steppers import Weight, project
from lps.partition import parts
from lps_kernels.owner import free_coordinates, is_kept

# Where masks begin, a little above 1/2: everything is reused at first, and a few steps in one direction drop a weight.
FIRST_MASK = 0.6
RAMP = 0.5  # share of the phase over which the counts fall


class StraightThrough:
    """Trains the projection of the weights."""

    straight = True
    rho = 0.0

    def __init__(self, weights: Sequence[Weight], steps: int, steps_per_epoch: int) -> None:
        self.weights, self.steps, self.steps_per_epoch = weights, steps, steps_per_epoch

    @torch.no_grad()
    def begin(self) -> None:
        """Masks that learn begin just above 1/2, and everything is kept."""
        for weight in self.weights:
            if weight.plan.masks.learns:
                for v, owner in parts(weight.v, weight.partition.owner):
                    v.copy_(torch.where(free_coordinates(owner), v, FIRST_MASK))
        self._set_counts(0)

    def make_ready(self) -> None:
        """Nothing: there are no centres."""

    def before_step(self, step: int, fit: Fit) -> None:
        """The counts for the projection at the end of this step; a row of the log after every epoch."""
        if step and step % self.steps_per_epoch == 0:
            self._log(fit)
        self._set_counts(step + 1)

    def end(self) -> None:
        """The task's shares, also where the phase was too short to reach them."""
        self._set_counts(self.steps)

    def _set_counts(self, step: int) -> None:
        progress = min(1.0, step / (RAMP * self.steps)) if self.steps else 1.0
        for weight in self.weights:
            plan, selection = weight.plan, weight.selection
            selection.keep_free = shrunk(plan.free, plan.keep_free, progress)
            selection.keep_owned = shrunk(plan.owned, plan.keep_owned, progress)

    @torch.no_grad()
    def _log(self, fit: Fit) -> None:
        """How far the own weights are from their projection, and what share of everything is kept."""
        project(self.weights, fresh=True)
        primal = 0.0
        for weight in self.weights:
            for v, owner in parts(weight.v, weight.partition.owner):
                dropped = free_coordinates(owner) & ~is_kept(owner)
                primal += float(torch.where(dropped, v, 0).square().sum())
        primal = sqrt(primal)
        fit.report.residuals.append((0.0, primal, float("nan")))
        fit.log("straight-through", "projection", fit.position.epoch, primal=primal, density=density(self.weights))


def shrunk(everything: int, share: int, progress: float) -> int:
    """Geometrically from ``everything`` to ``share``."""
    if progress >= 1 or everything <= share:
        return share
    factor: float = (max(share, 1) / everything) ** progress
    return max(share, round(everything * factor))
