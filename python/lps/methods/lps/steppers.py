"""The two ways to step the trained tensor ``v`` of every layer.

By default the module's parameter holds the effective weight, and one fused operator steps ``v`` and rewrites it. With
any other optimiser ``v`` is the parameter, and the effective weight is composed from it under autograd.

In a straight-through phase the effective weight is that of the projection of ``v``, made anew in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lps.errors import ConfigError, FileFormatError
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.plan import LayerPlan
from lps.partition import Partition, parts
from lps.runs.checkpoint import fitting
from lps_kernels import (
    ProximalAdam,
    Selection,
    StraightThroughAdam,
    WeightState,
    admm_update_,
    compose_owned,
    proximal_grad_,
)
from lps_kernels.ops.step import movable
from lps_kernels.optim import MaskedAdam
from lps_kernels.owner import free_coordinates, is_kept

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


# How much faster masks learn than weights: a mask has to travel about as far as 1, a weight about 0.05. With the pull
# of the paper, masks and weights share a rate.
MASK_RATE = 10.0


@dataclass
class Weight:
    """A prunable weight in training; ``centre`` exists in the phase of ADMM only."""

    partition: Partition
    parameter: nn.Parameter
    v: Tensor
    plan: LayerPlan
    selection: Selection  # of the latest and the next projection; the plan's at the end
    centre: Tensor | None = None

    @property
    def emerging(self) -> bool:
        """Whether the share of reused weights emerges from the masks."""
        return self.plan.masks.emerges


def _by_emerging(weights: Sequence[Weight]) -> Iterator[tuple[bool, list[Weight]]]:
    """The weights with a fixed share of masks and those whose share emerges, each where there are any."""
    for emerging in (False, True):
        some = [weight for weight in weights if weight.emerging == emerging]
        if some:
            yield emerging, some


@torch.no_grad()
def project(weights: Sequence[Weight], *, fresh: bool) -> None:
    """Project ``v`` of all weights: the kept bits and, where they exist, the centres; ``fresh`` sets the duals to 0."""
    for emerging, some in _by_emerging(weights):
        admm_update_(
            [weight.v for weight in some],
            [weight.centre for weight in some if weight.centre is not None],
            [weight.partition.owner for weight in some],
            [weight.selection.keep_free for weight in some],
            [weight.selection.keep_owned for weight in some],
            [weight.selection.view for weight in some],
            [weight.selection.sharing_view for weight in some],
            emerging=emerging,
            fresh=fresh,
        )


def _states(weights: Sequence[Weight]) -> list[WeightState]:
    """The weights as the fused optimisers take them."""
    return [WeightState(w.parameter, w.v, w.partition.w_bar, w.partition.owner, w.centre, w.selection) for w in weights]


def masks_rate(config: TaskConfig) -> float:
    """The learning rate of masks as a multiple of that of weights."""
    return 1.0 if config.solver == "admm" and config.pull == "gradient" else MASK_RATE


class Stepper(Protocol):
    """Steps the weights and the ordinary parameters (the head; in task 1, or if private, also biases and norms)."""

    def start_phase(self, moves: Sequence[str], *, straight: bool = False) -> None:
        """Begin with new optimiser state; ``moves`` says per weight which coordinates may change."""

    def step(self, lr_factor: float, rho: float) -> float:
        """One step from the gradients of a backward pass; clears them and returns the learning rate."""

    def refresh(self) -> None:
        """Update the effective weights after ``v`` was changed outside of :meth:`step`."""

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state in the phase that has begun."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same phase, which must have begun."""

    def close(self) -> None:
        """Leave the backbone as it was found: plain parameters."""


class FusedStepper:
    """Adam, with the masked step as one operator over all layers."""

    def __init__(self, weights: Sequence[Weight], others: Sequence[nn.Parameter], config: TaskConfig) -> None:
        self.weights, self.others, self.config, self.lr = weights, others, config, config.lr
        self.straight = False
        self.refresh()

    def start_phase(self, moves: Sequence[str], *, straight: bool = False) -> None:
        """Reset the moments of Adam."""
        self.straight = straight
        self.masked: list[ProximalAdam | StraightThroughAdam] = []
        config = self.config
        for kind, weights in _by_moves(self.weights, moves).items():
            if straight:
                for emerging, some in _by_emerging(weights):
                    cost = config.share_cost
                    adam = StraightThroughAdam(_states(some), self.lr, emerging=emerging, moves=kind, share_cost=cost)
                    self.masked.append(adam)
            else:
                self.masked.append(ProximalAdam(_states(weights), self.lr, moves=kind, pull=config.pull))
        # As a group: there may be none of them.
        self.plain = torch.optim.Adam([{"params": self.others}], self.lr, fused=True)

    def step(self, lr_factor: float, rho: float) -> float:
        """One fused call for the weights (more where some masks are fixed), one for the other parameters."""
        lr = self.lr * lr_factor
        for adam in self.masked:
            group = adam.param_groups[0]
            group.update(lr=lr, mask_lr=lr * masks_rate(self.config))
            if not self.straight:
                group.update(rho=rho, tau=rho)
            adam.step()
            adam.zero_grad()
        self.plain.param_groups[0]["lr"] = lr
        self.plain.step()
        self.plain.zero_grad()
        return lr

    @torch.no_grad()
    def refresh(self) -> None:
        """Rewrite the effective weights."""
        if self.straight:
            project(self.weights, fresh=True)
        for weight in self.weights:
            partition = weight.partition
            if self.straight:
                _compose_kept(weight.v, partition.w_bar, partition.owner, out=weight.parameter)
            else:
                compose_owned(weight.v, partition.w_bar, partition.owner, out=weight.parameter)

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts."""
        return {"masked": [adam.state_dict() for adam in self.masked], "plain": self.plain.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moments and step counts."""
        for adam, saved in zip([*self.masked, self.plain], [*state["masked"], state["plain"]], strict=True):
            load_moments(adam, saved["state"])

    def close(self) -> None:
        """The parameters are the backbone's own already."""


def load_moments(adam: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]]) -> None:
    """Moments and step counts; everything else in the state of an optimiser follows from the settings."""
    known = adam.state_dict()
    parameters = [parameter for group in adam.param_groups for parameter in group["params"]]
    names = adam.moments if isinstance(adam, MaskedAdam) else ("exp_avg", "exp_avg_sq")
    for index, moments in state.items():
        for name in names:
            fitting(f"{name} of parameter {index}", moments[name], parameters[index])
        if not (len(moments) == len(names) + 1 and 0 <= float(moments["step"]) < 2**31):
            raise FileFormatError(f"step of parameter {index}: expected a count, got {float(moments['step'])}")
    adam.load_state_dict({**known, "state": state})


def _by_moves(weights: Sequence[Weight], moves: Sequence[str]) -> dict[str, list[Weight]]:
    groups: dict[str, list[Weight]] = {}
    for weight, kind in zip(weights, moves, strict=True):
        groups.setdefault(kind, []).append(weight)
    return groups


def _compose_kept(v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor) -> None:
    """The effective weight of the latest projection: ``v`` where free, ``w_bar`` where owned, 0 where not kept."""
    for value, committed, owners, to in parts(v, w_bar, owner, out.detach()):
        to.copy_(torch.where(is_kept(owners), torch.where(free_coordinates(owners), value, committed), 0))


class _StraightThrough(torch.autograd.Function):
    """The effective weight of the latest projection, with the gradient that ``v`` would have without it."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, w_bar: Tensor, owner: Tensor, share_cost: float) -> Tensor:
        ctx.save_for_backward(w_bar, owner)
        ctx.share_cost = share_cost
        effective = torch.empty_like(v)
        _compose_kept(v, w_bar, owner, effective)
        return effective

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        w_bar, owner = ctx.saved_tensors
        of_v = compose_owned(grads[0].contiguous(), w_bar, owner)
        return torch.where(free_coordinates(owner), of_v, of_v + ctx.share_cost), None, None, None


class _Composed(nn.Module):
    """The effective weight as a function of ``v``."""

    def __init__(self, partition: Partition, share_cost: float) -> None:
        super().__init__()
        # In a tuple, so that the partition does not become a submodule of the backbone.
        self.partition = (partition,)
        self.straight, self.share_cost = False, share_cost

    def forward(self, v: Tensor) -> Tensor:
        partition = self.partition[0]
        if self.straight:
            args = v, partition.w_bar, partition.owner, self.share_cost
            effective: Tensor = _StraightThrough.apply(*args)  # type: ignore[no-untyped-call]
            return effective
        return compose_owned(v, partition.w_bar, partition.owner)


class ComposedStepper:
    """Any optimiser on ``v``, which takes the place of the backbone's parameters as a parametrization."""

    def __init__(
        self,
        backbone: nn.Module,
        weights: Sequence[Weight],
        others: Sequence[nn.Parameter],
        config: TaskConfig,
        factory: OptimizerFactory,
    ) -> None:
        self.backbone, self.weights, self.others = backbone, weights, others
        self.config, self.factory, self.straight = config, factory, False
        self.composed: list[_Composed] = []
        places = {module for weight in weights for module, _ in weight.partition.places}
        self._order = {module: list(backbone.get_submodule(module)._parameters) for module in places}
        try:
            for weight in weights:
                weight.parameter.data = weight.v  # from here on the parameter is v
                for module, name in weight.partition.places:
                    composed = _Composed(weight.partition, config.share_cost)
                    self.composed.append(composed)
                    parametrize.register_parametrization(backbone.get_submodule(module), name, composed, unsafe=True)
        except BaseException:
            self.close()
            raise

    def start_phase(self, moves: Sequence[str], *, straight: bool = False) -> None:
        """A new optimiser, and a copy of the values that it must not change."""
        self.straight = straight
        for composed in self.composed:
            composed.straight = straight
        self.groups = _by_moves(self.weights, moves)
        self.optimizer = self.factory([*(weight.parameter for weight in self.weights), *self.others])
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ConfigError("Lifelong: optimizer: expected one that steps without a closure, got LBFGS")
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.frozen = [~movable(weight.partition.owner, kind) for weight, kind in zip(self.weights, moves, strict=True)]
        self.values = [weight.v.clone() for weight in self.weights]

    @torch.no_grad()
    def step(self, lr_factor: float, rho: float) -> float:
        """Add the pull to the gradients, step, pull by a proximal step, and restore frozen coordinates (weight decay
        moves them). What an optimiser moves masks by counts ``masks_rate`` times: they share a tensor with weights.
        """
        pull = rho if self.config.pull == "gradient" else 0.0
        for kind, weights in self.groups.items():
            trained = [weight for weight in weights if weight.parameter.grad is not None]
            proximal_grad_(
                [weight.parameter.grad for weight in trained if weight.parameter.grad is not None],
                [weight.v for weight in trained],
                [weight.centre for weight in trained if weight.centre is not None] if pull else [],
                [weight.partition.owner for weight in trained],
                moves=kind,
                rho=pull,
                tau=pull,
            )
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * lr_factor
        rate = masks_rate(self.config) if "all" in self.groups else 1.0  # elsewhere no mask moves
        before = [weight.v.clone() if rate != 1 else weight.v for weight in self.weights]
        self.optimizer.step()
        self.optimizer.zero_grad()
        for weight, old, frozen, values in zip(self.weights, before, self.frozen, self.values, strict=True):
            moved = weight.v
            if rate != 1:
                moved = torch.where(weight.partition.free(), moved, old + rate * (moved - old))
            if rho and not pull and weight.centre is not None:
                moved = (moved + rho * weight.centre) / (1 + rho)
            weight.v.copy_(torch.where(frozen, values, moved))
        self.refresh()
        return float(self.optimizer.param_groups[0]["lr"])

    def refresh(self) -> None:
        """Project anew if the phase is a straight-through one; the effective weight follows when it is used."""
        if self.straight:
            project(self.weights, fresh=True)

    def state_dict(self) -> dict[str, Any]:
        """The state of the user's optimiser."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The state of the user's optimiser."""
        self.optimizer.load_state_dict(state)

    def close(self) -> None:
        """Take the parametrizations off again."""
        for weight in self.weights:
            for module_name, name in weight.partition.places:
                module = self.backbone.get_submodule(module_name)
                if parametrize.is_parametrized(module, name):
                    parametrize.remove_parametrizations(module, name, leave_parametrized=False)
        for module_name, order in self._order.items():  # parameters that come back stand last
            parameters = self.backbone.get_submodule(module_name)._parameters
            for name in order:
                parameters[name] = parameters.pop(name)
