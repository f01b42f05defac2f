"""Synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017): weights that brought the loss down are held.

Eq. (3): every weight adds up what its steps took off the task's loss, omega = -sum(gradient * step), the path integral
of the gradient. Eq. (5): its importance is the sum over tasks of omega / (change^2 + xi), with the weight's change over
the task. Eq. (4): while a task is learnt, c * importance * (theta - start)^2 is added for every weight, with the
weights that the task started from. The gradient in omega is that of the task's loss alone, without this term.

An importance below 0 counts as 0: it would push the weight away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lps.methods.dense import Dense, DenseLearner, fitting_all, gradients, protected
from lps.methods.options import READS, SIOptions

IMPORTANCE = "importance"  # of the memory: a tensor for every parameter, by name
PATH = "path"  # of a state: omega so far, likewise


class SILearner(DenseLearner):
    """Follows every weight's share in the fall of the loss."""

    own: SIOptions

    def begin_task(self) -> None:
        """Keep the weights that the task starts from."""
        self.held = protected(self.net)
        self.weights: list[Tensor] = list(self.held.values())
        self.start = [weight.detach().clone() for weight in self.weights]
        self.before = [torch.empty_like(weight) for weight in self.start]
        self.path = [torch.zeros_like(weight) for weight in self.start]

    @torch.no_grad()
    def before_update(self) -> None:
        """Add 2 c importance (theta - start), the gradient of Eq. (4), and keep that of the task's loss."""
        self.gradients = gradients(self.weights)
        torch._foreach_copy_(self.before, self.weights)
        if self.number > 1:
            away = torch._foreach_sub(self.weights, self.start)
            importance = list(self.memory[IMPORTANCE].values())
            whole = torch._foreach_addcmul(self.gradients, importance, away, value=2 * self.own.strength)
            for weight, gradient in zip(self.weights, whole, strict=True):
                weight.grad = gradient

    @torch.no_grad()
    def after_update(self) -> None:
        """One more step of Eq. (3)."""
        torch._foreach_sub_(self.before, self.weights)  # the step, with its sign turned
        torch._foreach_addcmul_(self.path, self.gradients, self.before)

    @torch.no_grad()
    def finish(self) -> None:
        """Eq. (5) with this task."""
        earlier = self.memory.get(IMPORTANCE, {})
        self.memory = {IMPORTANCE: {}}
        for (name, weight), start, path in zip(self.held.items(), self.start, self.path, strict=True):
            importance = path / ((weight - start).square() + self.own.damping)
            self.memory[IMPORTANCE][name] = (importance + earlier.get(name, 0)).clamp_min(0)

    def extra_state(self) -> dict[str, Any]:
        """The path integral so far."""
        return {PATH: dict(zip(self.held, self.path, strict=True))}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self.path = [values.clone() for values in fitting_all(PATH, state[PATH], self.held).values()]


class SI(Dense):
    """Holds weights by what they contributed to learning."""

    name = "si"
    reads = READS[name]
    task_learner = SILearner

    def load_memory(self, memory: dict[str, Any]) -> None:
        """The importance of every parameter of this backbone."""
        self.memory = {IMPORTANCE: fitting_all(IMPORTANCE, memory.get(IMPORTANCE), protected(self.net))}
