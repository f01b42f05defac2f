"""Continual Learning via Neural Pruning (Golkar, Kagan and Cho, 2019): a task gets the units that are active for it.

A task trains the weights into free units, from any units, with an L1 penalty on them; the units of earlier tasks are
reused as they are. Then units whose mean activation over the training examples is at most a threshold are pruned. The
threshold is the largest in a list with which accuracy falls by no more than a tolerance, which the paper calls
graceful forgetting: a little accuracy for units that later tasks can use. At last the weights that are left are
retrained. Of the epochs W, A, F a task trains W + A before it is pruned and F after it.

The task owns all weights into its units. Those from units that it does not have are 0 and never trained, so that
nothing that a later task does can reach it. Thresholds are shares of the largest mean activation in the layer, because
layers differ in scale; accuracy is that on the validation examples, or on the training examples where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lps.methods.chain import ChainLearner, ChainMethod, modules_in_order
from lps.methods.fit import Fit, Phase
from lps.methods.options import READS
from lps.partition import Partition
from lps.runs.checkpoint import fitting
from lps.sources import batches
from lps_kernels.calls import Inputs

TRAIN, FINAL = "train", "final"
THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
EXAMPLES = 128  # per batch in which activations are measured


class CLNPLearner(ChainLearner):
    """Trains the weights into free units, prunes units and retrains those that are left."""

    phase = TRAIN

    def first_values(self, partition: Partition) -> Tensor:
        """New ones."""
        return partition.fresh_weights()

    def begin_task(self) -> None:
        """All units may become the task's."""
        super().begin_task()
        self._choose([torch.ones_like(used) for used in self.used])

    def _choose(self, units: Sequence[Tensor]) -> None:
        """The task has these units from here on; only weights between them move, and not those into units in use."""
        self.units = list(units)
        self.new = [units & ~used for units, used in zip(self.units, self.used, strict=True)]
        befores = [None, *self.units[:-1]]
        moving = zip(self.layers, self.new, befores, strict=True)
        self.frozen = [~layer.between(new, before) for layer, new, before in moving]

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """Before the last phase, prune."""
        if phase == FINAL:
            fit.report.accuracy_before_projection = self.validate()
            self._prune()
            self.optimizer.state.clear()  # moments would go on moving what is pruned
            after = fit.report.accuracy_after_projection = self.validate()
            kept = sum(int(kept.sum()) for kept in self.connections(self.units))
            weights = sum(layer.module.weight.numel() for layer in self.layers)
            fit.log(FINAL, "pruned", 0, accuracy=after, density=kept / weights)

    @torch.no_grad()
    def _prune(self) -> None:
        """Close the units below the largest threshold that accuracy allows; none if even the smallest costs more."""
        activity = self._activity()
        tensors = [tensor for layer in self.layers for tensor in layer.module.parameters()]
        before, values = self._accuracy(), [tensor.clone() for tensor in tensors]
        for threshold in (*THRESHOLDS, 0.0):
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            means = zip(self.used, activity, strict=True)
            # The most active one stays even where all are 0: no signal would pass the layer.
            self._choose([used | (mean > threshold * mean.max()) | (mean == mean.max()) for used, mean in means])
            for layer, units, kept in zip(self.layers, self.units, self.connections(self.units), strict=True):
                layer.module.weight.masked_fill_(~kept, 0)
                if layer.module.bias is not None:
                    layer.module.bias.masked_fill_(~units, 0)
            if self._accuracy() >= before - self.own.tolerance:
                return

    def _accuracy(self) -> float:
        examples = self.task.train if self.task.validation is None else self.task.validation
        return self.net.accuracy(self.number, examples, loader=self.task.loader)

    def _activity(self) -> list[Tensor]:
        """Per layer, the mean activation of each unit over the training examples and all positions."""
        sums = [torch.zeros(layer.units, dtype=torch.float64, device=self.device) for layer in self.layers]
        with self.net.keep_modes():
            self.net.eval()
            for inputs, _ in batches(self.task.train, EXAMPLES, loader=self.task.loader):
                assert isinstance(inputs, Tensor)  # a chain takes no other
                for total, values in zip(sums, self._activations(inputs.to(self.device)), strict=True):
                    total.add_(values.abs().mean(2).sum(0))
        return sums  # all of the same number of examples: only their ratios count

    def _activations(self, values: Tensor) -> list[Tensor]:
        """Per layer what the next one reads of it, as [examples, units, positions]."""
        found, read = [], True  # whether a layer has read what the latest of ours gave
        modules = {id(layer.module) for layer in self.layers}
        for _, module in modules_in_order(self.net.backbone):
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                if not read:
                    found.append(values)
                read = id(module) not in modules
            values = module(values)
        if not read:
            found.append(values)
        return [each.reshape(len(each), layer.units, -1) for each, layer in zip(found, self.layers, strict=True)]

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """The loss and the penalty, in which frozen weights are a constant."""
        if self.phase == FINAL:
            return loss
        norms = [layer.module.weight.abs().sum() for layer in self.layers]
        penalty: Tensor = self.own.strength * torch.stack(norms).sum()
        return loss + penalty

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """Note the phase."""
        self.phase = phase

    def before_update(self) -> None:
        """Hold what earlier tasks use and what is pruned, biases too."""
        super().before_update()
        for layer, new in zip(self.layers, self.new, strict=True):
            if layer.module.bias is not None and layer.module.bias.grad is not None:
                layer.module.bias.grad.masked_fill_(~new, 0)

    def open_units(self) -> list[Tensor]:
        """Those of earlier tasks and the new ones."""
        return self.units

    def kept(self) -> list[Tensor]:
        """All weights into the task's units."""
        shapes = [layer.module.weight.shape for layer in self.layers]
        rows = zip(self.units, shapes, strict=True)
        return [units.view(-1, *[1] * (len(shape) - 1)).expand(shape) for units, shape in rows]

    def extra_state(self) -> dict[str, Any]:
        """The task's units."""
        return {"units": self.units}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """The task's units."""
        names = [f"units of {layer.partition.name}" for layer in self.layers]
        saved = zip(names, state["units"], self.used, strict=True)
        self._choose([fitting(name, units, used).to(self.device) for name, units, used in saved])


class CLNP(ChainMethod):
    """Prunes units by their activation."""

    name = "clnp"
    reads = READS[name]
    task_learner = CLNPLearner

    def phases(self, number: int) -> list[Phase]:
        """Before and after units are pruned."""
        before, solver, after = self.task_config(number).epochs
        return [Phase(TRAIN, before + solver), Phase(FINAL, after)]
