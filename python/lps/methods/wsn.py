"""Winning SubNetworks (Kang et al., ICML 2022): weights and scores are learnt together, and a task runs with the
weights of the best scores.

Algorithm 1, Eqs. (2) to (5): the forward pass uses the weights whose scores are the best ``share`` of each layer, over
all of its weights. A score gets the gradient of the effective weight times the weight. Free weights inside the mask
learn as usual; those in an earlier task's mask do not move. Scores and free weights go on from one task to the next, as
in the authors' code. Nothing is pruned at the end: the final mask is that of the last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lps.draft import Draft
from lps.methods.lps.steppers import load_moments
from lps.methods.scored import SCORES, WEIGHTS, Scored, ScoredLearner
from lps.task import Task

if TYPE_CHECKING:
    from lps.methods.lps.config import TaskConfig


class WSNLearner(ScoredLearner):
    """Weights move where they are free and in the mask."""

    def __init__(self, method: Scored, task: Task, config: TaskConfig, draft: Draft) -> None:
        super().__init__(method, task, config, draft)
        self.moving = [nn.Parameter(layer.weights) for layer in self.layers]
        self.weights_adam = torch.optim.Adam([{"params": self.moving}], config.lr, fused=True)

    @torch.no_grad()
    def refresh(self) -> None:
        """Also which weights the next step moves."""
        super().refresh()
        self.inside = [kept & layer.partition.free() for layer, kept in zip(self.layers, self.kept(), strict=True)]

    @torch.no_grad()
    def move_weights(self) -> None:
        """One step of Adam, with the mask of the forward pass; then the effective weights have the new values."""
        for layer, parameter, inside in zip(self.layers, self.moving, self.inside, strict=True):
            grad = layer.parameter.grad
            parameter.grad = None if grad is None else torch.where(inside, grad, 0)
        self.weights_adam.param_groups[0]["lr"] = self.lr
        self.weights_adam.step()
        self.weights_adam.zero_grad()
        self.refresh()

    def state_dict(self) -> dict[str, Any]:
        """With the moments of the weights."""
        return {**super().state_dict(), "weights_adam": self.weights_adam.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task."""
        super().load_state_dict(state, phase)
        load_moments(self.weights_adam, state["weights_adam"]["state"])


class WSN(Scored):
    """Weights and scores learnt together; later tasks reuse whatever their scores select."""

    name = "wsn"
    task_learner = WSNLearner
    remembers = (WEIGHTS, SCORES)
