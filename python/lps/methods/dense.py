"""Methods that keep changing the weights that all tasks share: what they have in common.

The backbone is trained as a whole by Adam in every task, with a head per task. Every task then runs with the weights of
the latest one, so earlier tasks may be forgotten; methods differ by what they do against that. In the file all weights
belong to task 1, and every later task reuses all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lps.batch import Batch, picked, together
from lps.draft import Draft
from lps.errors import ConfigError, FileFormatError
from lps.methods.base import Method, validation_accuracy
from lps.methods.fit import Fit, Phase
from lps.methods.lps.steppers import load_moments
from lps.partition import is_sound
from lps.runs.checkpoint import fitting
from lps.signature import Signature
from lps.sources import batches
from lps.task import Task
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.lifelong import Lifelong
    from lps.methods.lps.config import TaskConfig


# Of the memory where Adam goes on from task to task: what it knows of every parameter, by name.
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Dense(Method):
    """Trains all weights in every task; ``task_learner`` is what a subclass changes."""

    forgets = True
    keeps_moments: ClassVar[bool] = False  # whether Adam goes on from task to task instead of beginning anew
    task_learner: ClassVar[type[DenseLearner]]
    own_losses: ClassVar[bool] = True  # whether a task may have another loss than cross entropy

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that the method cannot learn."""
        super().check(tasks)
        for task in tasks:
            self.check_task(task)

    def check_task(self, task: Task) -> None:
        """Refuse a task that the method cannot learn in this network."""
        if task.loss is not None and not self.own_losses:
            raise ConfigError(f"task {task.name}: loss: {self.name} expects cross entropy, got another loss")

    def learner(self, task: Task, config: TaskConfig, draft: Draft) -> DenseLearner:
        """A learner of the method's own kind."""
        self.check_task(task)
        return self.task_learner(self, task, config, draft)

    def load_memory(self, memory: dict[str, Any]) -> None:
        """What Adam knows of the parameters of this network, where it goes on; else nothing."""
        if not self.keeps_moments:
            super().load_memory(memory)
            return
        if memory.keys() != set(MOMENTS):
            raise FileFormatError(f"expected {', '.join(MOMENTS)}, got {', '.join(map(str, memory)) or 'none'}")
        like = dict(named_trained(self.net))
        counts = {name: torch.zeros((), device=parameter.device) for name, parameter in like.items()}
        expected: dict[str, Mapping[str, Tensor]] = {"exp_avg": like, "exp_avg_sq": like, "step": counts}
        self.memory = {kind: fitting_all(kind, memory[kind], expected[kind]) for kind in MOMENTS}
        for name, count in self.memory["step"].items():
            if not 0 <= float(count) < 2**31:
                raise FileFormatError(f"step of {name}: expected a count, got {float(count)}")


class DenseLearner:
    """Trains the whole backbone and the head of one task; a method overrides what it does otherwise.

    ``memory`` is what the method's ``memory`` becomes once the task is committed. The shared parameters are those of
    the backbone that are not frozen, by name.
    """

    rho = 0.0  # there is no penalty to log

    def __init__(self, method: Dense, task: Task, config: TaskConfig, draft: Draft) -> None:
        self.method, self.task, self.config, self.draft = method, task, config, draft
        self.net, self.own, self.number = method.net, method.own, draft.number
        self.phases: Sequence[Phase] = method.phases(draft.number)
        self.device = next(self.net.backbone.parameters()).device
        self.memory = dict(method.memory)
        self.lr = 0.0
        self.head = task.make_head(self.net.features).to(self.device, self.net.like.dtype)
        draft.add_head(self.head)
        for parameter in self.net.parameters():
            parameter.grad = None  # left by a backward pass of the caller
        self._start()
        self.shared = dict(trained_of(self.net))
        for parameter in self.shared.values():
            parameter.requires_grad_(True)
            parameter.data = parameter.data.contiguous()
        self.begin_task()
        parameters = [*self.shared.values(), *self.trained_beside()]
        self.optimizer = torch.optim.Adam(parameters, config.lr, fused=True)
        self._take_over_moments()

    @torch.no_grad()
    def _start(self) -> None:
        """Go on from the weights of the task before; the backbone may hold those of any."""
        if self.number > 1:
            for partition, weight in self.net.prunable():
                partition.compose(self.number - 1, out=weight)
            for tensor, value in self.net.private_pairs(self.number - 1):
                tensor.copy_(value)

    def _take_over_moments(self) -> None:
        """Go on with Adam where the task before stopped; the new head, which it does not know, begins anew."""
        trained = {id(parameter) for parameter in self.optimizer.param_groups[0]["params"]}
        for name, parameter in named_trained(self.net):
            if name in self.memory.get("step", {}) and id(parameter) in trained:
                self.optimizer.state[parameter] = {kind: self.memory[kind][name].clone() for kind in MOMENTS}

    def _moments(self) -> dict[str, dict[str, Tensor]]:
        """What Adam knows of every parameter; zeros where it had no gradient."""
        found: dict[str, dict[str, Tensor]] = {kind: {} for kind in MOMENTS}
        for name, parameter in named_trained(self.net):
            state = self.optimizer.state.get(parameter)
            if not state:
                means, squares = (torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
                state = {"exp_avg": means, "exp_avg_sq": squares, "step": torch.zeros((), device=parameter.device)}
            for kind in MOMENTS:
                found[kind][name] = state[kind]
        return found

    # What a method overrides.

    def begin_task(self) -> None:
        """Called before the first step, also of a resumed task: the backbone is as the task before left it."""

    def trained_beside(self) -> list[nn.Parameter]:
        """The parameters that are trained beside the shared ones."""
        return list(self.head.parameters())

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """What is minimised."""
        return loss

    def before_update(self) -> None:
        """Change the gradients before the optimiser uses them."""

    def after_update(self) -> None:
        """Called when the optimiser has moved the weights."""

    def finish(self) -> None:
        """Called after the last step, in eval mode: make ``memory``."""

    def take_in(self, task: Task, signature: Signature) -> None:
        """Let all tasks run with the weights of this one."""
        self.draft.commit_whole(task, signature)

    def extra_state(self) -> dict[str, Any]:
        """What the method has gathered within the task so far, for a saved state."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore it."""

    # What the loop calls.

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """There is one phase, and all is ready."""

    def begin_epoch(self) -> None:
        """To training mode, normalisation too: its statistics go on changing, unless a task keeps a copy of its own."""
        self.net.train()
        for module in self.net.backbone.modules():
            if isinstance(module, _NormBase):
                module.train()

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """Nothing."""

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits of the task being learnt; the features stay at hand for the method."""
        self.features = self.net.features_of(inputs)
        logits: Tensor = self.head(self.features)
        return logits

    def step(self, lr_factor: float) -> None:
        """One step of Adam."""
        self.before_update()
        self.lr = self.config.lr * lr_factor
        self.optimizer.param_groups[0]["lr"] = self.lr
        self.optimizer.step()
        self.after_update()
        self.optimizer.zero_grad()

    def validate(self) -> float:
        """Accuracy on the validation examples, in fp32; NaN if there are none."""
        return validation_accuracy(self.net, self.number, self.task)

    def end(self) -> None:
        """Let the method look at the trained network."""
        self.net.eval()
        self.finish()

    def close(self) -> None:
        """The backbone's parameters are plain."""

    def commit(self, task: Task, fit: Fit) -> None:
        """Make the task part of the network, if all its values are finite."""
        for name, tensor in self._state_tensors():
            if not is_sound(tensor.detach().contiguous(), infinite=not isinstance(tensor, nn.Parameter)):
                raise fit.diverged(f"{name} became infinite or NaN", self.phases[-1].name, self.phases[-1].epochs)
        self.take_in(task, fit.signature)
        if self.method.keeps_moments:
            self.memory |= self._moments()
        self.method.memory = self.memory

    def _state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that learning a task can change; looked up anew, as a module may replace a buffer."""
        yield from self.net.backbone.named_parameters()
        yield from self.net.backbone.named_buffers()
        yield from self.net.heads.state_dict(prefix="heads.", keep_vars=True).items()

    def state_dict(self) -> dict[str, Any]:
        """Weights, buffers, heads, optimiser, and what the method gathers."""
        return {
            "lr": self.lr,
            "tensors": [tensor for _, tensor in self._state_tensors()],
            "optimizer": self.optimizer.state_dict(),
            "extra": self.extra_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task."""
        for (name, tensor), values in zip(self._state_tensors(), state["tensors"], strict=True):
            tensor.copy_(fitting(name, values, tensor))
        load_moments(self.optimizer, state["optimizer"]["state"])
        self.load_extra_state(state["extra"])
        self.lr = float(state["lr"])


def trained_of(net: Lifelong) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of the backbone that are not frozen."""
    yield from ((name, tensor) for name, tensor in net.backbone.named_parameters() if name not in net.frozen)


def named_trained(net: Lifelong) -> Iterator[tuple[str, nn.Parameter]]:
    """Those, and the parameters of all heads."""
    yield from trained_of(net)
    yield from net.heads.named_parameters(prefix="heads")


def protected(net: Lifelong) -> dict[str, nn.Parameter]:
    """The backbone's parameters that all tasks run with, by name: what a method protects."""
    found = {name: tensor for name, tensor in trained_of(net) if name not in net.private_names}
    if not found:
        raise ConfigError(f"Lifelong: norms: expected weights that tasks share, got norms={net.norms}: there are none")
    return found


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of a backward pass, which are made zero where the loss does not depend on a parameter."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found.append(parameter.grad)
    return found


def some_examples(task: Task, count: int) -> Batch:
    """Training examples of a task, at most ``count``: at random, or the first ones of ready-made batches."""
    shuffle = torch.Generator().manual_seed(torch.initial_seed())
    parts: list[Batch] = []
    for batch in batches(task.train, count, shuffle=shuffle, loader=task.loader):
        parts.append(batch)
        if sum(len(labels) for _, labels in parts) >= count:
            break
    inputs, labels = zip(*parts, strict=True)
    return picked(together(inputs), slice(count)), torch.cat(labels)[:count]


def fitting_all(where: str, values: object, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values that a memory holds for tensors by name, on their devices; those of others are refused."""
    if not isinstance(values, dict) or values.keys() != like.keys():
        raise FileFormatError(f"{where}: expected a tensor for each of {', '.join(like)}")
    return {name: fitting(f"{where} of {name}", values[name], like[name]).to(like[name].device) for name in like}


Dense.task_learner = DenseLearner
