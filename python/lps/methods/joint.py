"""Joint training: the data of all tasks at once, in one network with a head per task.

The upper line of every comparison, as nothing can be forgotten that is always there. Tasks before the last only get
their heads; with the last one the network is trained on the union of all training examples from its first weights, for
as many epochs as that task has, so that every example is seen as often as with any other method. An example's softmax
is over the classes of its own task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lps.batch import Batch, together
from lps.draft import Draft
from lps.errors import ConfigError
from lps.methods.afresh import Afresh, AfreshLearner
from lps.methods.base import Method
from lps.methods.dense import DenseLearner
from lps.methods.fit import Fit, Phase
from lps.methods.options import READS
from lps.observed import seen
from lps.signature import Signature, text_of
from lps.sources import Arrays, length, steps_per_epoch
from lps.task import Task
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.lifelong import Lifelong
    from lps.methods.lps.config import LPSConfig, TaskConfig


class AllExamples(Arrays):
    """The examples of several tasks, each prepared by its own task; the classes are counted on from task to task."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = [(_arrays(task), task.augment) for task in tasks]
        sizes = [len(examples) for examples, _ in self.tasks]
        self.task_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)  # of the tasks' examples
        before = torch.tensor([0, *(task.classes for task in tasks[:-1])]).cumsum(0)  # classes of earlier tasks
        labels = torch.cat([examples.labels for examples, _ in self.tasks]) + before[self.task_of]
        super().__init__(torch.arange(len(labels)), labels)

    def batch(self, indices: Tensor) -> Batch:
        """The examples at these indices, task after task."""
        indices = indices[self.task_of[indices].argsort(stable=True)]
        counts = torch.bincount(self.task_of[indices], minlength=len(self.tasks)).tolist()
        found = []
        for (examples, augment), start, some in zip(self.tasks, self.starts, torch.split(indices, counts), strict=True):
            if len(some):
                inputs, _ = examples.batch(some - start)
                found.append(inputs if augment is None else augment(inputs))
        return together(found), self.labels[indices]


def _arrays(task: Task) -> Arrays:
    assert isinstance(task.train, Arrays)  # by Joint.check
    return task.train


def as_one(tasks: Sequence[Task]) -> Task:
    """All tasks as one, with the name of the last; its logits are those of all heads, one after another."""
    last, classes = tasks[-1], [task.classes for task in tasks]
    task_of = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor(classes))  # of a class
    weights = torch.cat([_weights(task) for task in tasks])

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        tasks_of_classes = task_of.to(logits.device)
        others = tasks_of_classes[labels, None] != tasks_of_classes
        masked = logits.masked_fill(others, float("-inf"))
        return cross_entropy(masked, labels, weights.to(logits.device, logits.dtype))

    return Task(last.name, sum(classes), train=AllExamples(tasks), test=last.test, loss=loss)


def _weights(task: Task) -> Tensor:
    values = [1.0] * task.classes if task.class_weights is None else [float(weight) for weight in task.class_weights]
    return torch.tensor(values)


class JointLearner(AfreshLearner):
    """Adds a head; with the last task, trains the backbone and all heads on all tasks."""

    method: Joint

    def begin_task(self) -> None:
        """With the last task, start from the first weights and new heads: the stream may have been learnt before, as a
        shorter one.
        """
        super().begin_task()
        self.trains = self.method.is_last(self.number)
        if not self.trains:
            return
        self.start_afresh()
        for task, head in zip(self.method.tasks[:-1], self.net.heads, strict=False):
            head.load_state_dict(task.make_head(self.net.features).state_dict())
            head.requires_grad_(True)

    def trained_beside(self) -> list[nn.Parameter]:
        """All heads."""
        return list(self.net.heads.parameters()) if self.trains else super().trained_beside()

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """Tasks before the last take no step that would show the shape of their inputs."""
        fit.signature = self.method.signature

    def begin_epoch(self) -> None:
        """To training mode, with the heads of earlier tasks."""
        super().begin_epoch()
        self.net.heads.train()

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits of all tasks, one after another."""
        features = self.net.features_of(inputs)
        return torch.cat([head(features) for head in self.net.heads], 1)


class Joint(Afresh):
    """Learns all tasks with the last one; :meth:`check` must have been called with all of them."""

    name = "joint"
    reads = READS[name]
    at_once = True
    task_learner = JointLearner

    def __init__(self, net: Lifelong, config: LPSConfig, own: Any = None) -> None:
        super().__init__(net, config, own)
        self.tasks: list[Task] = []
        self.signature: Signature = []

    def check(self, tasks: Sequence[Task]) -> None:
        """Keep the tasks; refuse those whose examples cannot be mixed in a batch."""
        Method.check(self, tasks)
        kinds: list[Signature] = []
        for task in tasks:
            if not isinstance(task.train, Arrays) or task.loss is not None:
                got = "a loss of its own" if task.loss is not None else type(task.train).__name__
                raise ConfigError(
                    f"joint: task {task.name}: expected training examples in lps.Arrays and the default loss, got {got}"
                )
            if task.sampler is not None:
                raise ConfigError(
                    f"joint: task {task.name}: sampler: the examples of all tasks are mixed; leave it out"
                )
            kinds.append(seen(task.train.batch(torch.arange(min(1, len(task.train))))[0]))
            if [(each.name, each.shape) for each in kinds[-1]] != [(each.name, each.shape) for each in kinds[0]]:
                raise ConfigError(
                    f"joint: task {task.name}: expected inputs {text_of(kinds[0])}, as in the first task, got "
                    f"{text_of(kinds[-1])}"
                )
        self.tasks, self.signature = list(tasks), kinds[0] if kinds else []

    def is_last(self, number: int) -> bool:
        """Whether the task of this number is the last of the stream."""
        return number == len(self.tasks)

    def phases(self, number: int) -> list[Phase]:
        """No epochs before the last task."""
        return super().phases(number) if self.is_last(number) else [Phase("train", 0)]

    def steps(self, number: int, task: Task) -> int:
        """With the last task, those of all tasks' examples."""
        epochs, size = sum(phase.epochs for phase in self.phases(number)), self.task_config(number).batch_size
        return epochs * steps_per_epoch(AllExamples(self.tasks), size) if epochs else 0

    def learner(self, task: Task, config: TaskConfig, draft: Draft) -> DenseLearner:
        """Refused for a task that the stream does not have at this place."""
        if draft.number > len(self.tasks) or self.tasks[draft.number - 1] is not task:
            raise ConfigError(
                f"joint: task {task.name}: all tasks must be known before the first is learnt; call check(tasks) with "
                f"them, in their order"
            )
        return super().learner(task, config, draft)

    def fit_task(self, task: Task) -> Task:
        """With the last task, all of them."""
        return as_one(self.tasks) if self.is_last(len(self.learnt) + 1) else task

    def belongs_to(self, task: Task, config: TaskConfig) -> dict[str, Any]:
        """With the whole stream."""
        stream = [[each.name, each.classes, length(each.train)] for each in self.tasks]
        return {**super().belongs_to(task, config), "stream": stream}
