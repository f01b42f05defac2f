"""The two ways to step the trained tensor ``v`` of every layer.

By default the module's parameter holds the effective weight, and one fused operator steps ``v`` and rewrites it. With
any other optimiser ``v`` is the parameter, and the effective weight is composed from it under autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lps.errors import ConfigError
from lps.partition import Partition
from lps_kernels import ProximalAdam, WeightState, compose_owned, proximal_grad_
from lps_kernels.ops.step import movable

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Weight:
    """A prunable weight in training; ``centre`` exists during the ADMM phase only."""

    partition: Partition
    parameter: nn.Parameter
    v: Tensor
    centre: Tensor | None = None


class Stepper(Protocol):
    """Steps the weights and the ordinary parameters (the head; in task 1, or if private, also biases and norms)."""

    def start_phase(self, moves: Sequence[str]) -> None:
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
    """Adam, with the masked proximal step as one operator over all layers."""

    def __init__(self, weights: Sequence[Weight], others: Sequence[nn.Parameter], lr: float) -> None:
        self.weights, self.others, self.lr = weights, others, lr
        self.refresh()

    def start_phase(self, moves: Sequence[str]) -> None:
        """Reset the moments of Adam."""
        self.proximal = []
        for kind, weights in _by_moves(self.weights, moves).items():
            layers = [WeightState(w.parameter, w.v, w.partition.w_bar, w.partition.owner, w.centre) for w in weights]
            self.proximal.append(ProximalAdam(layers, self.lr, moves=kind))
        # As a group: there may be none of them.
        self.plain = torch.optim.Adam([{"params": self.others}], self.lr, fused=True)

    def step(self, lr_factor: float, rho: float) -> float:
        """One fused call for the weights (two where some masks are fixed), one for the other parameters."""
        lr = self.lr * lr_factor
        for adam in self.proximal:
            adam.param_groups[0].update(lr=lr, rho=rho, tau=rho)
            adam.step()
            adam.zero_grad()
        self.plain.param_groups[0]["lr"] = lr
        self.plain.step()
        self.plain.zero_grad()
        return lr

    @torch.no_grad()
    def refresh(self) -> None:
        """Rewrite the effective weights."""
        for weight in self.weights:
            compose_owned(weight.v, weight.partition.w_bar, weight.partition.owner, out=weight.parameter)

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts."""
        return {"proximal": [adam.state_dict() for adam in self.proximal], "plain": self.plain.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moments and step counts."""
        for adam, saved in zip(self.proximal, state["proximal"], strict=True):
            adam.load_state_dict(saved)
        self.plain.load_state_dict(state["plain"])

    def close(self) -> None:
        """The parameters are the backbone's own already."""


def _by_moves(weights: Sequence[Weight], moves: Sequence[str]) -> dict[str, list[Weight]]:
    groups: dict[str, list[Weight]] = {}
    for weight, kind in zip(weights, moves, strict=True):
        groups.setdefault(kind, []).append(weight)
    return groups


class _Composed(nn.Module):
    """The effective weight as a function of ``v``."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        # In a tuple, so that the partition does not become a submodule of the backbone.
        self.partition = (partition,)

    def forward(self, v: Tensor) -> Tensor:
        partition = self.partition[0]
        return compose_owned(v, partition.w_bar, partition.owner)


class ComposedStepper:
    """Any optimiser on ``v``, which takes the place of the backbone's parameters as a parametrization."""

    def __init__(
        self,
        backbone: nn.Module,
        weights: Sequence[Weight],
        others: Sequence[nn.Parameter],
        factory: OptimizerFactory,
    ) -> None:
        self.backbone, self.weights, self.others, self.factory = backbone, weights, others, factory
        places = {module for weight in weights for module, _ in weight.partition.places}
        self._order = {module: list(backbone.get_submodule(module)._parameters) for module in places}
        try:
            for weight in weights:
                weight.parameter.data = weight.v  # from here on the parameter is v
                for module, name in weight.partition.places:
                    composed = _Composed(weight.partition)
                    parametrize.register_parametrization(backbone.get_submodule(module), name, composed, unsafe=True)
        except BaseException:
            self.close()
            raise

    def start_phase(self, moves: Sequence[str]) -> None:
        """A new optimiser, and a copy of the values that it must not change."""
        self.groups = _by_moves(self.weights, moves)
        self.optimizer = self.factory([*(weight.parameter for weight in self.weights), *self.others])
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ConfigError("Lifelong: optimizer: expected one that steps without a closure, got LBFGS")
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.frozen = [~movable(weight.partition.owner, kind) for weight, kind in zip(self.weights, moves, strict=True)]
        self.values = [weight.v.clone() for weight in self.weights]

    @torch.no_grad()
    def step(self, lr_factor: float, rho: float) -> float:
        """Add the proximal pull to the gradients, step, and restore frozen coordinates (weight decay moves them)."""
        for kind, weights in self.groups.items():
            trained = [weight for weight in weights if weight.parameter.grad is not None]
            proximal_grad_(
                [weight.parameter.grad for weight in trained if weight.parameter.grad is not None],
                [weight.v for weight in trained],
                [weight.centre for weight in trained if weight.centre is not None] if rho else [],
                [weight.partition.owner for weight in trained],
                moves=kind,
                rho=rho,
                tau=rho,
            )
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * lr_factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        for weight, frozen, values in zip(self.weights, self.frozen, self.values, strict=True):
            weight.v.copy_(torch.where(frozen, values, weight.v))
        return float(self.optimizer.param_groups[0]["lr"])

    def refresh(self) -> None:
        """Nothing to do: the effective weight is computed from ``v`` whenever it is used."""

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
