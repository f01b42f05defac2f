"""One task of Learn-Prune-Share: warm-up (learn), the solver (prune and share), final (retrain the kept weights)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lps.draft import Draft
from lps.errors import FileFormatError
from lps.methods.fit import Fit, Phase
from lps.methods.lps.admm import ADMM
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.plan import LayerPlan
from lps.methods.lps.shares import density, reused
from lps.methods.lps.steppers import ComposedStepper, FusedStepper, OptimizerFactory, Stepper, Weight, project
from lps.methods.lps.straight_through import StraightThrough
from lps.methods.split import SplitLearner
from lps.options import shown
from lps.partition import Partition, parts
from lps.runs.checkpoint import fitting
from lps.task import Task
from lps_kernels import Selection, pack_bits, unpack_bits
from lps_kernels.owner import free_coordinates, is_kept

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

WARM_UP, FINAL = "warm-up", "final"


def phases_of(config: TaskConfig) -> list[Phase]:
    """The three phases of a task; the second has the name of its solver."""
    names = (WARM_UP, config.solver, FINAL)
    found = [Phase(name, epochs) for name, epochs in zip(names, config.epochs, strict=True)]
    found[1] = found[1]._replace(whole=True)  # its penalty or its counts are planned over all its steps
    return found


class PhasedLearner(SplitLearner):
    """Learns one task, from its first step until it can be committed."""

    def __init__(
        self,
        net: Lifelong,
        task: Task,
        config: TaskConfig,
        plans: list[LayerPlan],
        draft: Draft,
        optimizer: OptimizerFactory | None,
    ) -> None:
        super().__init__(net, task, config, draft)
        self.plans = plans
        self.phases: Sequence[Phase] = phases_of(config)
        self.phase: str | None = None  # the latest that has begun
        self.weights = [self._begin(*layer, plan) for layer, plan in zip(net.prunable(), plans, strict=True)]
        per_epoch = task.steps_per_epoch(config.batch_size)
        steps = config.epochs[1] * per_epoch
        self._solver = (
            ADMM(self.weights, config, steps, per_epoch)
            if config.solver == "admm"
            else StraightThrough(self.weights, steps, per_epoch)
        )
        self._stepper: Stepper = (
            FusedStepper(self.weights, self.others, config)
            if optimizer is None
            else ComposedStepper(net.backbone, self.weights, self.others, config, optimizer)
        )

    @property
    def rho(self) -> float:
        """The penalty of the latest step, 0 where there is none."""
        return self._solver.rho

    @torch.no_grad()
    def _begin(self, partition: Partition, weight: nn.Parameter, plan: LayerPlan) -> Weight:
        """Start from the backbone's weights in task 1, later from fresh ones and masks of 1 (0 where beta is 0)."""
        selection = Selection(plan.view, plan.sharing_view, plan.keep_free, plan.keep_owned)
        if self.number == 1:
            return Weight(partition, weight, weight.detach().clone(), plan, selection)
        masks = 0.0 if plan.masks.share == 0 else 1.0
        v = torch.where(partition.free(), partition.fresh_weights(), masks)
        return Weight(partition, weight, v, plan, selection)

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """Before the final phase, prune; then prepare the steps of the phase."""
        if phase == FINAL:
            fit.report.accuracy_before_projection = self.validate()
            self._prune()
        elif phase == self.config.solver:
            self._solver.begin()
        self._make_ready(phase)
        if phase == FINAL:
            self._report_pruned(fit)

    def _make_ready(self, phase: str) -> None:
        """Reset the optimiser and choose which coordinates the phase may move."""
        self.phase = phase
        moves = ["kept" if phase == FINAL else "free"] * len(self.plans)
        if phase == self.config.solver:
            self._solver.make_ready()
            # Masks that must be all 0 or all 1 are fixed from the start.
            moves = ["all" if self.number > 1 and plan.masks.learns else "free" for plan in self.plans]
        self._stepper.start_phase(moves, straight=phase == self.config.solver and self._solver.straight)
        self._stepper.refresh()

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """In the solver's phase, what it does before the step."""
        if phase == self.config.solver:
            self._solver.before_step(step, fit)

    def step(self, lr_factor: float) -> None:
        """One step of all weights from the gradients of a backward pass."""
        self.lr = self._stepper.step(lr_factor, self.rho)

    @torch.no_grad()
    def _prune(self) -> None:
        """The final projection: exactly the planned weights survive and the masks become binary."""
        self._solver.end()
        project(self.weights, fresh=True)
        for weight in self.weights:
            for v, owner in parts(weight.v, weight.partition.owner):
                kept = is_kept(owner)
                v.copy_(torch.where(free_coordinates(owner), torch.where(kept, v, 0), kept.to(v.dtype)))

    def _report_pruned(self, fit: Fit) -> None:
        """Accuracy after the final projection, and what it kept."""
        after = fit.report.accuracy_after_projection = self.validate()
        fit.log(FINAL, "pruned", 0, accuracy=after, density=density(self.weights))
        for weight in self.weights:
            name = weight.partition.name
            share = fit.report.shares[name] = reused(weight)
            fit.log(FINAL, "layer", 0, name, share=share, density=density([weight]))

    def close(self) -> None:
        """Leave the backbone with plain parameters."""
        self._stepper.close()

    def commit(self, task: Task, fit: Fit) -> None:
        """Make the kept weights and masks part of the network."""
        self.check_weights((weight.v for weight in self.weights), fit, FINAL, self.config.epochs[2])
        spent = [plan.spent for plan in self.plans]
        self.draft.commit(task, [weight.v for weight in self.weights], spent, fit.signature)

    def state_dict(self) -> dict[str, Any]:
        """Weights, projections, head, common tensors and optimiser."""
        return {
            "phase": self.phase,
            "rho": self.rho,
            **self.common_state(),
            "v": [weight.v for weight in self.weights],
            "centre": [weight.centre for weight in self.weights],
            "keep": [[weight.selection.keep_free, weight.selection.keep_owned] for weight in self.weights],
            "kept": [pack_bits(is_kept(weight.partition.owner)) for weight in self.weights],
            "stepper": self._stepper.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task."""
        if state["phase"] != phase:
            raise FileFormatError(f"expected the state of the phase {phase}, got one of {shown(state['phase'])}")
        for weight, v, kept, keep in zip(self.weights, state["v"], state["kept"], state["keep"], strict=True):
            weight.v.copy_(fitting(f"v of {weight.partition.name}", v, weight.v))
            free, owned = keep
            if not (0 <= free <= weight.plan.free and 0 <= owned <= weight.plan.owned):
                raise FileFormatError(f"keep of {weight.partition.name}: expected counts of its groups, got {keep}")
            weight.selection.keep_free, weight.selection.keep_owned = int(free), int(owned)
            weight.partition.set_kept(unpack_bits(kept.to(self.device), weight.v.shape))
        self.load_common_state(state)
        if phase is not None:
            self._make_ready(phase)
            self._stepper.load_state_dict(state["stepper"])
        for weight, centre in zip(self.weights, state["centre"], strict=True):
            name = f"centre of {weight.partition.name}"
            if weight.centre is not None:  # made by the phase, and known to its optimiser
                weight.centre.copy_(fitting(name, centre, weight.v))
            elif centre is not None:
                weight.centre = fitting(name, centre, weight.v).to(self.device)
        self._solver.rho = float(state["rho"])
        if not (isfinite(self.rho) and isfinite(self.lr)):
            raise FileFormatError(f"rho, lr: expected numbers, got {self.rho}, {self.lr}")
