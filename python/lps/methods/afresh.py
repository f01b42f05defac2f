"""What methods share in which a task starts from the first weights: those that the backbone has before task 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lps.methods.dense import Dense, DenseLearner, fitting_all

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

FIRST = "first"  # of the memory: every tensor of the backbone before task 1


class AfreshLearner(DenseLearner):
    """Can start from the first weights."""

    def begin_task(self) -> None:
        """Remember the first weights before they change."""
        if self.number == 1:
            self.memory[FIRST] = {name: tensor.detach().clone() for name, tensor in tensors_of(self.net).items()}

    @torch.no_grad()
    def start_afresh(self) -> None:
        """Back to the first weights."""
        tensors = tensors_of(self.net)
        for name, values in self.memory[FIRST].items():
            tensors[name].copy_(values)


class Afresh(Dense):
    """Remembers the first weights."""

    def load_memory(self, memory: dict[str, Any]) -> None:
        """The first weights of this backbone."""
        self.memory = {FIRST: fitting_all(FIRST, memory.get(FIRST), tensors_of(self.net))}


def tensors_of(net: Lifelong) -> dict[str, Tensor]:
    """Every tensor of the backbone, by name."""
    return {**dict(net.backbone.named_parameters()), **dict(net.backbone.named_buffers())}
