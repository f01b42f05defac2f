"""Hard Attention to the Task (Serra et al., ICML 2018): every task learns gates that open and close units.

Beside its weights a task trains an embedding e of every unit, and the unit's output counts a = sigmoid(s e) times
(section 2.2). Within an epoch of B steps s rises from 1 / smax to smax, s = 1 / smax + (smax - 1 / smax) (b - 1) /
(B - 1), so that gates begin soft and end hard (2.4). The gradient of a weight counts 1 - min(a_i, a_j) times, with the
largest gates that earlier tasks have for the units at its ends (2.3): between two units in use it is frozen. The
gradient of an embedding is multiplied by smax (cosh(s e) + 1) / (s (cosh(e) + 1)), which makes it smax times what it
is where s is 1 (2.5). The loss has a penalty: c times the share that a task opens of the units not in use (2.6).

At the end of a task its gates are made 0 or 1. A task owns the weights between two of its units that no earlier task
had both of. Biases are a task's own. Embeddings learn at ten times the rate of the weights: Adam takes steps of about
its rate, whatever the gradient, and an embedding has about ten times as far to go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lps.draft import Draft
from lps.methods.chain import ChainLearner, ChainMethod, Layer
from lps.methods.dense import fitting_all
from lps.methods.fit import Fit
from lps.methods.options import READS
from lps.partition import Partition
from lps.task import Task
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.methods.lps.config import TaskConfig

WEIGHTS = "weights"  # of the memory: also those that no task owns go on from task to task
EMBEDDING_RATE = 10.0
MOST_SLOPED, MOST_EMBEDDED = 50.0, 6.0  # bounds of |s e| in the compensation and of |e|, as in section 2.5


class HATLearner(ChainLearner):
    """Trains weights and gates; in eval mode gates are 0 or 1, as they will be."""

    def __init__(self, method: HAT, task: Task, config: TaskConfig, draft: Draft) -> None:
        self.handles: list[RemovableHandle] = []
        self.slope = 1 / method.own.smax
        super().__init__(method, task, config, draft)
        groups = [[*self.shared.values(), *self.head.parameters()], self.embeddings]
        self.optimizer = torch.optim.Adam([{"params": group} for group in groups], config.lr, fused=True)
        for layer, embedding in zip(self.layers, self.embeddings, strict=True):
            self.handles.append(layer.module.register_forward_hook(self._gating(layer, embedding)))

    def first_values(self, partition: Partition) -> Tensor:
        """Those that the task before left, also of weights that it does not own."""
        weights: Tensor = self.memory[WEIGHTS][partition.name]
        return weights

    def begin_task(self) -> None:
        """Draw the embeddings, and freeze what is between two units in use."""
        super().begin_task()
        self.embeddings = [nn.Parameter(torch.randn(layer.units).to(self.net.like)) for layer in self.layers]
        self.frozen = self.connections(self.used)

    def _gating(self, layer: Layer, embedding: nn.Parameter) -> Any:
        def gate(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            gates = torch.sigmoid(self.slope * embedding) if module.training else _opened(embedding)
            if not isinstance(layer.module, nn.Linear):  # units are the second dimension, not the last
                gates = gates.view(-1, *[1] * (layer.module.weight.dim() - 2))
            return output * gates.to(output.dtype)

        return gate

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """Set the slope of the gates."""
        low, high = 1 / self.own.smax, self.own.smax
        self.slope = low + (high - low) * fit.position.batch / max(1, fit.steps - 1)

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """The loss and the cost of opening units."""
        free = torch.cat([~used for used in self.used])
        gates = torch.sigmoid(self.slope * torch.cat(list(self.embeddings)))
        cost: Tensor = self.own.c * (gates * free).sum() / free.sum().clamp(min=1)
        return loss + cost

    @torch.no_grad()
    def before_update(self) -> None:
        """Hold what earlier tasks use, and compensate the embeddings for the slope."""
        super().before_update()
        for embedding in self.embeddings:
            if embedding.grad is not None:
                sloped = (self.slope * embedding).clamp(-MOST_SLOPED, MOST_SLOPED)
                ratio = (sloped.cosh() + 1) / (embedding.cosh() + 1)
                embedding.grad.mul_(self.own.smax / self.slope * ratio)

    def step(self, lr_factor: float) -> None:
        """One step of Adam, with a rate of their own for the embeddings."""
        self.optimizer.param_groups[1]["lr"] = EMBEDDING_RATE * self.config.lr * lr_factor
        super().step(lr_factor)

    @torch.no_grad()
    def after_update(self) -> None:
        """Keep the embeddings where a sigmoid has a slope."""
        for embedding in self.embeddings:
            embedding.clamp_(-MOST_EMBEDDED, MOST_EMBEDDED)

    def open_units(self) -> list[Tensor]:
        """The units whose gate is above 1/2."""
        return [_opened(embedding) for embedding in self.embeddings]

    def kept(self) -> list[Tensor]:
        """The weights between two open units: from a closed one comes 0."""
        return self.connections(self.open_units())

    def finish(self) -> None:
        """Remember the weights."""
        self.memory[WEIGHTS] = {layer.partition.name: layer.module.weight.detach().clone() for layer in self.layers}

    def close(self) -> None:
        """Take the gates off."""
        for handle in self.handles:
            handle.remove()

    def _state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from super()._state_tensors()
        for layer, embedding in zip(self.layers, self.embeddings, strict=True):
            yield f"embedding of {layer.partition.name}", embedding


def _opened(embedding: Tensor) -> Tensor:
    """The units with a gate above 1/2, and the most open one if there is none: no signal would pass the layer."""
    opened = embedding.detach() > 0
    opened[embedding.argmax()] = True
    return opened


class HAT(ChainMethod):
    """Learns gates."""

    name = "hat"
    reads = READS[name]
    task_learner = HATLearner

    def load_memory(self, memory: dict[str, Any]) -> None:
        """A weight for every layer of this network."""
        like = {partition.name: partition.w_bar for partition, _ in self.net.prunable()}
        self.memory = {WEIGHTS: fitting_all(WEIGHTS, memory.get(WEIGHTS), like)}
