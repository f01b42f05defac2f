"""Gradient episodic memory (Lopez-Paz and Ranzato, NeurIPS 2017): no step may raise the loss on remembered examples.

Of every task some examples are kept. In each step the gradient g of the shared weights is compared with the gradients
g_k of the earlier tasks' losses on their examples. If one has a negative product with g (Eq. 8), g is replaced by the
closest vector that has none (Eq. 9 to 11), found through the dual (Eq. 12) with one variable v_k >= 0 per earlier task:
g + sum((v_k + gamma) g_k). As in the paper, gamma favours steps that help earlier tasks.

Constraints are on the weights that all tasks share; the head of an earlier task stays as it is. The remembered
examples are seen in eval mode, as the task will be asked for them: without dropout, and with the statistics of
normalisation layers as they are.

Adam goes on from task to task, as in :mod:`lps.methods.lwf` and for the same reason: steps by the whole learning rate
for every weight, however small its gradient, leave little of a gradient that was bent to harm nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lps.errors import ConfigError, FileFormatError
from lps.methods.dense import MOMENTS, Dense, DenseLearner, gradients, protected, some_examples
from lps.methods.fit import precision_of
from lps.methods.options import READS, GEMOptions
from lps.task import Task
from lps_kernels.calls import vectors

# Of the memory: a list with one tensor per task each.
INPUTS = "inputs"
LABELS = "labels"
WEIGHTS = "class_weights"

# Added to the diagonal of the products of unit vectors: in fp32 those of equal gradients may come out indefinite.
RIDGE = 1e-5


class GEMLearner(DenseLearner):
    """Bends gradients that would harm an earlier task."""

    own: GEMOptions

    def begin_task(self) -> None:
        """Make room for the gradients of all earlier tasks."""
        self.weights: list[Tensor] = list(protected(self.net).values())
        if self.number > 1:
            solver()
            length = sum(weight.numel() for weight in self.weights)
            self.rows = self.weights[0].new_empty(self.number - 1, length)

    def before_update(self) -> None:
        """Replace the gradient by the closest one that harms no earlier task."""
        if self.number == 1:
            return
        with self._eval_mode():
            for index in range(self.number - 1):
                torch.cat([part.flatten() for part in self._gradient_of(index)], out=self.rows[index])
        own = gradients(self.weights)
        change = correction(torch.cat([part.flatten() for part in own]), self.rows, self.own.margin)
        if change is not None:
            parts = torch.split(change, [weight.numel() for weight in self.weights])
            torch._foreach_add_(own, [part.view_as(old) for part, old in zip(parts, own, strict=True)])

    def _gradient_of(self, index: int) -> Sequence[Tensor]:
        """The gradient of an earlier task's loss on its remembered examples."""
        torch.clear_autocast_cache()
        with precision_of(self.config, self.device):
            private = self.net.private_of(index + 1) if self.net.private_names else {}
            features = vectors(functional_call(self.net.backbone, private, (self.memory[INPUTS][index],)))
            logits = self.net.heads[index](features)
            loss = cross_entropy(logits, self.memory[LABELS][index], self.memory[WEIGHTS][index].to(logits.dtype))
        return torch.autograd.grad(loss, self.weights, materialize_grads=True)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.net.modules()]
        self.net.eval()
        yield
        for module, training in modes:
            module.training = training

    def finish(self) -> None:
        """Remember examples of the task."""
        inputs, labels = some_examples(self.task, self.own.memory_size)
        assert isinstance(inputs, Tensor)  # by takes_one_tensor
        weights = self.task.class_weights
        new = {
            INPUTS: inputs,
            LABELS: labels.long(),
            WEIGHTS: torch.ones(self.task.classes) if weights is None else torch.tensor([float(w) for w in weights]),
        }
        self.memory = {name: [*self.memory.get(name, []), value.to(self.device)] for name, value in new.items()}


class GEM(Dense):
    """Keeps steps from raising the losses of earlier tasks."""

    name = "gem"
    reads = READS[name]
    own_losses = False  # a function cannot be remembered beside the examples
    task_learner = GEMLearner
    takes_one_tensor = True  # examples are remembered as one
    keeps_moments = True

    def check(self, tasks: Sequence[Task]) -> None:
        """The solver is needed from the second task on."""
        super().check(tasks)
        if len(tasks) > 1:
            solver()

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Examples of every learnt task, with labels that its head has, and what Adam knows."""
        super().load_memory({kind: memory[kind] for kind in MOMENTS if kind in memory})
        device, shape = self.net.like.device, self.net.metadata.input_shape
        kept = {name: _tensors(memory, name, len(self.learnt)) for name in (INPUTS, LABELS, WEIGHTS)}
        for index, learnt in enumerate(self.learnt):
            inputs, labels, weights = (tensors[index] for tensors in kept.values())
            fit = (
                (weights.shape, weights.dtype) == ((learnt.classes,), torch.float32)
                and (labels.dim(), labels.dtype) == (1, torch.long)
                and list(inputs.shape[1:]) == shape
                and len(inputs) == len(labels) > 0
                and 0 <= int(labels.min()) <= int(labels.max()) < learnt.classes
            )
            if not fit:
                raise FileFormatError(
                    f"task {learnt.name}: expected remembered examples {shape} with labels of {learnt.classes} classes"
                )
        self.memory |= {name: [tensor.to(device) for tensor in tensors] for name, tensors in kept.items()}


def _tensors(memory: dict[str, Any], name: str, count: int) -> list[Tensor]:
    values = memory.get(name)
    if not isinstance(values, list) or len(values) != count or not all(isinstance(value, Tensor) for value in values):
        raise FileFormatError(f"{name}: expected a tensor for each of {count} tasks")
    return values


Solver = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[Any, ...]]


def solver() -> Solver:
    """The solver of small quadratic programs, which only this method needs."""
    try:
        from quadprog import solve_qp  # noqa: PLC0415
    except ImportError:
        raise ConfigError("gem: quadprog is missing; pip install 'learn-prune-share[rivals]' brings it") from None
    found: Solver = solve_qp
    return found


@torch.no_grad()
def correction(gradient: Tensor, rows: Tensor, margin: float = 0.0) -> Tensor | None:
    """What is added to a gradient so that its product with no row is negative; None if there is none already.

    Of all such changes it is the smallest one (up to RIDGE), plus ``margin`` times all rows.
    """
    products = rows @ gradient
    if not bool((products < 0).any()):
        return None
    gram = rows @ rows.T
    if not bool(gram.isfinite().all()):
        return None  # learning has diverged, which the training loop reports
    lengths = gram.diagonal().sqrt()
    used = lengths > 0  # a task that has no gradient is not in the way
    unit = lengths[used].double().cpu()
    matrix = gram[used][:, used].double().cpu() / torch.outer(unit, unit)
    matrix = (matrix + matrix.T) / 2 + RIDGE * torch.eye(len(unit), dtype=torch.float64)
    pull = -products[used].double().cpu() / unit
    found = solver()(matrix.numpy(), pull.numpy(), np.eye(len(unit)), np.zeros(len(unit)))[0]
    factors = torch.zeros_like(lengths)
    factors[used] = (torch.from_numpy(found).clamp_min(0) / unit).to(factors)
    return (factors + margin) @ rows
