"""One full network per task: nothing is shared, nothing can be forgotten, and the file grows by a network a task.

Every task starts from the same first weights. The line that reuse is measured against: what a task learns here, it
learns alone.
"""

from __future__ import annotations

from typing import Any

import torch

from lps.methods.dense import Dense, DenseLearner, fitting_all
from lps.private import WHOLE

FIRST = "first"  # of the memory: every tensor of the backbone before task 1


class SingleLearner(DenseLearner):
    """Trains a network of the task's own."""

    @torch.no_grad()
    def begin_task(self) -> None:
        """Start from the first weights."""
        tensors = dict(self.net.common_tensors())
        if self.number == 1:
            self.memory[FIRST] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for name, values in self.memory[FIRST].items():
            tensors[name].copy_(values)


class Single(Dense):
    """A network per task; ``net`` must be made with ``norms="network"``."""

    name = "single"
    forgets = False
    norms = WHOLE
    task_learner = SingleLearner

    def load_memory(self, memory: dict[str, Any]) -> None:
        """The first weights of this backbone."""
        self.memory = {FIRST: fitting_all(FIRST, memory.get(FIRST), dict(self.net.common_tensors()))}
