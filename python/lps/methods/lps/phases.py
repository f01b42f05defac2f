"""One task of Learn-Prune-Share: warm-up (learn), ADMM (prune and share), final (retrain the kept weights)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from lps.draft import Draft
from lps.errors import ConfigError
from lps.methods.fit import Fit, Phase
from lps.methods.lps.admm import density, projection, residuals, targets_of
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.plan import LayerPlan
from lps.methods.lps.schedule import penalties
from lps.methods.lps.steppers import ComposedStepper, FusedStepper, OptimizerFactory, Stepper, Weight
from lps.partition import Partition, parts
from lps.task import Task, steps_per_epoch
from lps_kernels import pack_bits, unpack_bits
from lps_kernels.owner import KEPT_BIT, TASK_BITS, free_coordinates, is_kept

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

PHASES = ("warm-up", "admm", "final")


class PhasedLearner:
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
        self.net, self.task, self.config, self.plans = net, task, config, plans
        self.number = draft.number
        self.phases: Sequence[Phase] = [Phase(name, epochs) for name, epochs in zip(PHASES, config.epochs, strict=True)]
        self.device = next(net.parameters()).device
        self.rho = self.lr = 0.0
        per_epoch = steps_per_epoch(task.train, config.batch_size)
        # ADMM steps before which the weights are projected, each with the new penalty and whether duals restart at 0.
        self._projections = penalties(config.rho, config.rho_levels, config.epochs[1] * per_epoch, per_epoch)
        others = self._make_trainable(draft)
        # The common tensors that change meanwhile; buffers of a user's own module are put back after the task.
        self._changing = [
            name
            for name, tensor in net.common_tensors()
            if self.number == 1 or name in net.private_names or not isinstance(tensor, nn.Parameter)
        ]
        self.weights = [self._begin(*layer, plan) for layer, plan in zip(net.prunable(), plans, strict=True)]
        self._stepper: Stepper = (
            FusedStepper(self.weights, others, config.lr)
            if optimizer is None
            else ComposedStepper(net.backbone, self.weights, others, optimizer)
        )

    def begin_epoch(self) -> None:
        """Back to training mode: validation or a listener may have changed it."""
        self.net.train()

    def _make_trainable(self, draft: Draft) -> list[nn.Parameter]:
        """Add the head; returns the parameters that are trained beside the prunable weights."""
        net = self.net
        head = self.task.make_head(net.features).to(self.device, next(net.prunable())[1].dtype)
        draft.add_head(head)
        for parameter in net.parameters():
            parameter.grad = None  # left by a backward pass of the caller
        for partition, weight in net.prunable():
            weight.requires_grad_(True)
            for tensor in (weight, partition.owner, partition.w_bar):
                tensor.data = tensor.data.contiguous()  # channels-last backbones; the operators write in place
        if self.number == 1:
            common = [parameter for parameter in net.common_parameters() if parameter.requires_grad]
        else:
            common = self._start_private()
        return [*head.parameters(), *common]

    @torch.no_grad()
    def _start_private(self) -> list[nn.Parameter]:
        """Private tensors of a later task start with task 1's values; returns the trainable ones."""
        trained = []
        for tensor, value in self.net.private_pairs(1):
            tensor.copy_(value)
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(True)
                trained.append(tensor)
        return trained

    @torch.no_grad()
    def _begin(self, partition: Partition, weight: nn.Parameter, plan: LayerPlan) -> Weight:
        """Start from the backbone's weights in task 1, later from fresh ones and masks of 1 (0 where beta is 0)."""
        if self.number == 1:
            return Weight(partition, weight, weight.detach().clone())
        masks = 0.0 if plan.beta == 0 else 1.0
        return Weight(partition, weight, torch.where(partition.free(), partition.fresh_weights(), masks))

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """Before the final phase, prune; then prepare the steps of the phase."""
        if phase == "final":
            self._prune(fit)
        self._make_ready(phase)

    def _make_ready(self, phase: str) -> None:
        """Reset the optimiser and choose which coordinates the phase may move."""
        self.rho = 0.0
        moves = ["free"] * len(self.plans)
        if phase == "admm":
            for weight in self.weights:
                weight.centre = torch.empty_like(weight.v)
            # Masks that must be all 0 or all 1 are fixed from the start.
            moves = ["all" if self.number > 1 and 0 < plan.beta < 1 else "free" for plan in self.plans]
        elif phase == "final":
            moves = ["kept"] * len(self.plans)
        self._stepper.start_phase(moves)

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """In the ADMM phase, project before the scheduled steps."""
        if phase == "admm" and step in self._projections:
            self.rho, fresh = self._projections[step]
            self.project(fit, fresh=fresh)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of the task being learnt."""
        features = self.net.backbone(inputs)
        if features.shape != (len(inputs), self.net.features):
            raise ConfigError(
                f"Lifelong: features: expected a backbone that gives [{len(inputs)}, {self.net.features}], "
                f"got {list(features.shape)}"
            )
        logits: Tensor = self.net.heads[-1](features)
        return logits

    def step(self, lr_factor: float) -> None:
        """One step of all weights from the gradients of a backward pass."""
        self.lr = self._stepper.step(lr_factor, self.rho)

    def validate(self) -> float:
        """Accuracy on the validation examples, in fp32; NaN if there are none."""
        torch.clear_autocast_cache()
        validation = self.task.validation
        if validation is None:
            return float("nan")
        return self.net.accuracy(self.number, validation, loader=self.task.loader)

    @torch.no_grad()
    def project(self, fit: Fit, *, fresh: bool) -> None:
        """One ADMM update of targets and duals, with its residuals."""
        # The first projection of a level has no earlier target.
        old = [weight.v if fresh else targets_of(weight) for weight in self.weights]
        projection(self.weights, self.plans, fresh=fresh)
        primal, dual = residuals(self.weights, old)
        dual = float("nan") if fresh else self.rho * dual
        fit.report.residuals.append((self.rho, primal, dual))
        epoch = fit.position.epoch + 1
        fit.log("admm", "projection", epoch, primal=primal, dual=dual, density=density(self.weights))

    @torch.no_grad()
    def _prune(self, fit: Fit) -> None:
        """The final projection: exactly the planned weights survive and the masks become binary."""
        fit.report.accuracy_before_projection = self.validate()
        projection(self.weights, self.plans, fresh=True)
        for weight in self.weights:
            weight.centre = None
            for v, owner in parts(weight.v, weight.partition.owner):
                kept = is_kept(owner)
                v.copy_(torch.where(free_coordinates(owner), torch.where(kept, v, 0), kept.to(v.dtype)))
        self._stepper.refresh()
        self.rho = 0.0
        after = fit.report.accuracy_after_projection = self.validate()
        fit.log("final", "pruned", 0, accuracy=after, density=density(self.weights))

    def close(self) -> None:
        """Leave the backbone with plain parameters."""
        self._stepper.close()

    def check_weights(self, fit: Fit) -> None:
        """Refuse infinite or NaN weights: the loss cannot show what the last step did."""
        tensors = [*(weight.v for weight in self.weights), *self.net.heads[-1].parameters()]
        tensors += [tensor for _, tensor in self.net.common_tensors() if tensor.is_floating_point()]
        if not all(part.isfinite().all() for tensor in tensors for (part,) in parts(tensor.detach().contiguous())):
            raise fit.diverged("a weight became infinite or NaN", "final", self.config.epochs[2])

    def _common(self, name: str) -> Tensor:
        """The backbone's tensor of this name as it is now: a module may put another in a buffer's place."""
        module, _, attribute = name.rpartition(".")
        return cast("Tensor", getattr(self.net.backbone.get_submodule(module), attribute))

    def state_dict(self) -> dict[str, Any]:
        """Weights, projections, head, common tensors and optimiser."""
        return {
            "rho": self.rho,
            "lr": self.lr,
            "v": [weight.v for weight in self.weights],
            "centre": [weight.centre for weight in self.weights],
            "kept": [pack_bits(is_kept(weight.partition.owner)) for weight in self.weights],
            "head": dict(self.net.heads[-1].state_dict()),
            "common": [self._common(name) for name in self._changing],
            "stepper": self._stepper.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task; ``phase`` is the phase under way, None between two phases."""
        for weight, v, kept in zip(self.weights, state["v"], state["kept"], strict=True):
            weight.v.copy_(v)
            flags = unpack_bits(kept.to(self.device), weight.v.shape)
            owner = weight.partition.owner
            owner.copy_((owner & TASK_BITS) | flags.to(torch.uint8) * KEPT_BIT)
        self.net.heads[-1].load_state_dict(state["head"])
        for name, values in zip(self._changing, state["common"], strict=True):
            self._common(name).copy_(values)
        if phase is not None:
            self._make_ready(phase)
            self._stepper.load_state_dict(state["stepper"])
        for weight, centre in zip(self.weights, state["centre"], strict=True):
            if weight.centre is not None:
                weight.centre.copy_(centre)
            elif centre is not None:
                weight.centre = centre.to(self.device)
        self.rho, self.lr = state["rho"], state["lr"]
        self._stepper.refresh()
