"""The fused steps as :class:`torch.optim.Optimizer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from lps_kernels.ops.scores import View
from lps_kernels.ops.step import MOVES, PULLS, proximal_adam_
from lps_kernels.ops.straight_through import MOVES as STRAIGHT_THROUGH_MOVES
from lps_kernels.ops.straight_through import straight_through_adam_


@dataclass
class Selection:
    """Which coordinates of one weight survive: the best groups, free and owned, up to these counts."""

    view: View
    sharing_view: View
    keep_free: int
    keep_owned: int


@dataclass
class WeightState:
    """The training state of one prunable weight; all tensors have the shape of ``effective``.

    ``effective`` is the module's own parameter, whose ``grad`` the step reads. ``v`` holds W where free and M where
    owned; ``centre`` is only needed while there is a proximal term, ``selection`` by :class:`StraightThroughAdam`.
    """

    effective: Tensor
    v: Tensor
    w_bar: Tensor
    owner: Tensor
    centre: Tensor | None = None
    selection: Selection | None = None


class MaskedAdam(torch.optim.Optimizer, ABC):
    """What the two fused optimisers share: Adam on ``v`` from the gradient of the effective weight, which the step
    rewrites in the same pass.

    One fused call steps all layers that have a gradient and the same step count. The state dict has the layout of
    :class:`torch.optim.Adam` (``step``, ``exp_avg``, ``exp_avg_sq`` per parameter), so either loads the other's, as
    long as Adam used no weight decay, AMSGrad or maximisation. Owned coordinates learn at ``mask_lr``, or at ``lr``
    where that is None. What lies in ``param_groups[0]`` can be set at any time, like the learning rate.

    With ``capturable`` the step counts lie on the device of the layers and the host does not read them, so that a step
    can be captured in a CUDA graph and replayed. All layers that have a gradient must then have taken the same number
    of steps. What lies in ``param_groups`` is captured as it is.
    """

    def __init__(
        self,
        layers: Iterable[WeightState],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        moves: str,
        allowed: Sequence[str],
        **options: object,
    ) -> None:
        self.layers = list(layers)
        name = type(self).__name__
        if lr < 0:
            raise ValueError(f"{name}: lr: expected at least 0, got {lr}")
        if eps < 0:
            raise ValueError(f"{name}: eps: expected at least 0, got {eps}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{name}: betas: expected two numbers at least 0 and below 1, got {betas}")
        if moves not in allowed:
            raise ValueError(f"{name}: moves: expected one of {', '.join(allowed)}, got {moves}")
        # weight_decay is always 0; it stands here because torch.optim.Adam expects it in a state dict.
        defaults = {"lr": lr, "betas": betas, "eps": eps, "moves": moves, "weight_decay": 0, **options}
        super().__init__([layer.effective for layer in self.layers], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only the constructor adds its one group: a parameter without its layer could not be stepped."""
        if self.param_groups:
            raise ValueError(f"{type(self).__name__}: add_param_group: expected all layers in the constructor")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """A copy keeps its layers."""
        return {**super().__getstate__(), "layers": self.layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A group that comes from torch.optim.Adam lacks the options that only we have."""
        super().__setstate__(state)
        for group in self.param_groups:
            for option in ("weight_decay", "amsgrad", "maximize"):
                if group.get(option):
                    raise ValueError(f"{type(self).__name__}: {option}: expected 0 or absent, got {group[option]}")
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every layer whose effective weight has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        if group["capturable"]:
            self._capturable_step(group)
            return loss
        by_step: dict[int, list[WeightState]] = {}
        for layer in self.layers:
            if layer.effective.grad is not None:
                by_step.setdefault(int(self._state_of(layer)["step"].item()) + 1, []).append(layer)
        for step, layers in by_step.items():
            self._step_layers(layers, step, group)
            for layer in layers:  # counted once taken: a refused step leaves everything as it was
                self.state[layer.effective]["step"] += 1
        return loss

    def _capturable_step(self, group: dict[str, Any]) -> None:
        layers = [layer for layer in self.layers if layer.effective.grad is not None]
        counts = [self._state_of(layer)["step"] for layer in layers]
        if not layers:
            return
        device_step = (counts[0] + 1).to(torch.int64).reshape(1)
        self._step_layers(layers, 1, group, device_step)
        torch._foreach_add_(counts, 1)

    def _state_of(self, layer: WeightState) -> dict[str, Any]:
        state: dict[str, Any] = self.state[layer.effective]
        if not state:
            capturable = self.param_groups[0]["capturable"]
            state["step"] = torch.zeros((), device=layer.v.device if capturable else "cpu")
            for name in self.moments:
                state[name] = torch.zeros_like(layer.v, memory_format=torch.contiguous_format)
        return state

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of the tensors in the state of a parameter."""
        return "exp_avg", "exp_avg_sq"

    @abstractmethod
    def _step_layers(
        self, layers: list[WeightState], step: int, group: dict[str, Any], device_step: Tensor | None = None
    ) -> None:
        """One fused call for layers that have taken the same number of steps."""

    def _numbers(self, step: int, group: dict[str, Any], device_step: Tensor | None) -> dict[str, Any]:
        """The arguments that every fused step takes."""
        return {
            "moves": group["moves"],
            "step": step,
            "lr": float(group["lr"]),
            "mask_lr": float(group["lr"] if group["mask_lr"] is None else group["mask_lr"]),
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "eps": group["eps"],
            "device_step": device_step,
        }

    def _moments(self, layers: list[WeightState], name: str) -> list[Tensor]:
        return [self.state[layer.effective][name] for layer in layers]


class ProximalAdam(MaskedAdam):
    """Adam with a pull of ``v`` towards ``centre``; see :class:`MaskedAdam`.

    ``moves``, ``pull``, ``rho`` and ``tau`` are those of :func:`proximal_adam_`.
    """

    def __init__(
        self,
        layers: Iterable[WeightState],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        moves: str = "all",
        mask_lr: float | None = None,
        pull: str = "gradient",
        rho: float = 0.0,
        tau: float = 0.0,
        capturable: bool = False,
    ) -> None:
        if pull not in PULLS:
            raise ValueError(f"ProximalAdam: pull: expected one of {', '.join(PULLS)}, got {pull}")
        options = {"mask_lr": mask_lr, "pull": pull, "rho": rho, "tau": tau, "capturable": capturable}
        super().__init__(layers, lr, betas, eps, moves, MOVES, **options)

    def _step_layers(
        self, layers: list[WeightState], step: int, group: dict[str, Any], device_step: Tensor | None = None
    ) -> None:
        pulled = group["rho"] != 0 or group["tau"] != 0
        proximal_adam_(
            [layer.effective for layer in layers],
            [layer.effective.grad for layer in layers if layer.effective.grad is not None],
            [layer.v for layer in layers],
            [layer.w_bar for layer in layers],
            [layer.centre for layer in layers if layer.centre is not None] if pulled else [],
            [layer.owner for layer in layers],
            self._moments(layers, "exp_avg"),
            self._moments(layers, "exp_avg_sq"),
            pull=group["pull"],
            rho=group["rho"],
            tau=group["tau"],
            **self._numbers(step, group, device_step),
        )


class StraightThroughAdam(MaskedAdam):
    """Adam on ``v`` where the effective weight is that of the projection of ``v``; see :class:`MaskedAdam`.

    Every layer has a ``selection``, whose counts may change from step to step. ``emerging``, ``moves`` and
    ``share_cost`` are those of :func:`straight_through_adam_`. With ``weights_learn``, owned weights whose kept bit is
    set learn beside their masks, at ``lr``: ``w_bar`` changes, and the state has its moments too (``weight_exp_avg``,
    ``weight_exp_avg_sq``). The thresholds of the last step, which only make the next one faster, are not part of the
    state dict.
    """

    def __init__(
        self,
        layers: Iterable[WeightState],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        emerging: bool,
        moves: str = "all",
        mask_lr: float | None = None,
        share_cost: float = 0.0,
        weights_learn: bool = False,
        capturable: bool = False,
    ) -> None:
        options = {"mask_lr": mask_lr, "emerging": emerging, "share_cost": share_cost, "capturable": capturable}
        options["weights_learn"] = weights_learn
        super().__init__(layers, lr, betas, eps, moves, STRAIGHT_THROUGH_MOVES, **options)
        self._thresholds: dict[tuple[int, ...], Tensor] = {}  # by the layers that step together

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy and a loaded state begin without thresholds."""
        super().__setstate__(state)
        self._thresholds = {}

    @property
    def moments(self) -> tuple[str, ...]:
        """With those of weights that learn."""
        of_weights = ("weight_exp_avg", "weight_exp_avg_sq") if self.param_groups[0]["weights_learn"] else ()
        return *super().moments, *of_weights

    def _step_layers(
        self, layers: list[WeightState], step: int, group: dict[str, Any], device_step: Tensor | None = None
    ) -> None:
        selections = [layer.selection for layer in layers if layer.selection is not None]
        key = tuple(id(layer) for layer in layers)
        if key not in self._thresholds:
            self._thresholds[key] = torch.full((len(layers), 2, 2), torch.nan).to(layers[0].v)
        straight_through_adam_(
            [layer.effective for layer in layers],
            [layer.effective.grad for layer in layers if layer.effective.grad is not None],
            [layer.v for layer in layers],
            [layer.w_bar for layer in layers],
            [layer.owner for layer in layers],
            self._moments(layers, "exp_avg"),
            self._moments(layers, "exp_avg_sq"),
            self._thresholds[key],
            [selection.keep_free for selection in selections],
            [selection.keep_owned for selection in selections],
            [selection.view for selection in selections],
            [selection.sharing_view for selection in selections],
            emerging=group["emerging"],
            share_cost=group["share_cost"],
            weight_exp_avg=self._moments(layers, "weight_exp_avg") if group["weights_learn"] else [],
            weight_exp_avg_sq=self._moments(layers, "weight_exp_avg_sq") if group["weights_learn"] else [],
            **self._numbers(step, group, device_step),
        )
