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
from torch import Tensor, nn

from lps.draft import Draft
from lps.methods.lps.steppers import load_moments
from lps.methods.scored import SCORES, WEIGHTS, Scored, ScoredLearner
from lps.task import Task
from lps_kernels import proximal_grad_

if TYPE_CHECKING:
    from lps.methods.lps.config import TaskConfig


class WSNLearner(ScoredLearner):
    """Weights move where they are free and in the mask."""

    def __init__(self, method: Scored, task: Task, config: TaskConfig, draft: Draft) -> None:
        super().__init__(method, task, config, draft)
        self.moving = [nn.Parameter(layer.weights) for layer in self.layers]
        self.weights_adam = torch.optim.Adam([{"params": self.moving}], config.lr, fused=True)

    def first_weights(self, drawn: Tensor) -> Tensor:
        """As drawn, but nothing is 0: the step takes what is not 0 in the effective weight for the mask."""
        return torch.where(drawn == 0, torch.finfo(drawn.dtype).tiny, drawn)

    @torch.no_grad()
    def before_scores(self) -> None:
        """The gradient of the weights, by the mask of the forward pass."""
        for layer, weights in zip(self.layers, self.moving, strict=True):
            grad = layer.parameter.grad
            if grad is None:  # the loss does not depend on this layer
                weights.grad = None
                continue
            if weights.grad is None:
                weights.grad = torch.empty_like(weights)
            put_where_set(grad, layer.parameter, out=weights.grad)
            if self.number > 1:
                proximal_grad_([weights.grad], [layer.weights], [], [layer.partition.owner], moves="free")

    @torch.no_grad()
    def after_scores(self) -> None:
        """One step of Adam; what the new mask selects gets its new values."""
        self.weights_adam.param_groups[0]["lr"] = self.lr
        self.weights_adam.step()
        for layer in self.layers:
            put_where_set(layer.weights, layer.parameter, out=layer.parameter)

    def state_dict(self) -> dict[str, Any]:
        """With the moments of the weights."""
        return {**super().state_dict(), "weights_adam": self.weights_adam.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task."""
        super().load_state_dict(state, phase)
        load_moments(self.weights_adam, state["weights_adam"]["state"])


def put_where_set(values: Tensor, marks: Tensor, out: Tensor) -> None:
    """Write the values where ``marks`` is not 0, and 0 elsewhere.

    The gradient of hardshrink is that in one pass; a comparison and ``torch.where`` take three times as long.
    """
    torch.ops.aten.hardshrink_backward.grad_input(values, marks, 0.0, grad_input=out)


class WSN(Scored):
    """Weights and scores learnt together; later tasks reuse whatever their scores select."""

    name = "wsn"
    task_learner = WSNLearner
    remembers = (WEIGHTS, SCORES)
