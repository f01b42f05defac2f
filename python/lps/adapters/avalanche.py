"""Avalanche (https://avalanche.continualai.org): its benchmarks as tasks, and our methods as a strategy of it.

Needs the package ``avalanche-lib``.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models import MultiTaskModule  # type: ignore[import-not-found]
from avalanche.training.templates import SupervisedTemplate  # type: ignore[import-not-found]
from torch import Tensor, nn

from lps.adapters.examples import VALIDATION, make_task
from lps.errors import DataError
from lps.lifelong import Lifelong
from lps.methods import METHODS
from lps.methods.base import Method
from lps.methods.lps.config import LPSConfig
from lps.task import Task


def task_of(experience: Any, test: Any, *, validation: float = VALIDATION, seed: int = 0) -> Task:
    """The task of an experience of the training stream and the one of the test stream that goes with it."""
    classes = sorted(int(label) for label in experience.classes_in_this_experience)
    name = f"experience-{experience.current_experience + 1}"
    return make_task(name, classes, experience.dataset, test.dataset, validation=validation, seed=seed)


def tasks_of(benchmark: Any, *, validation: float = VALIDATION, seed: int = 0) -> list[Task]:
    """All tasks of a benchmark, with labels from 0 in each; a share of the training examples is held out."""
    train, test = list(benchmark.train_stream), list(benchmark.test_stream)
    if len(train) != len(test):
        raise DataError(f"Avalanche: expected as many test as training experiences, got {len(test)} and {len(train)}")
    return [task_of(a, b, validation=validation, seed=seed) for a, b in zip(train, test, strict=True)]


class LifelongModel(MultiTaskModule):  # type: ignore[misc]
    """A :class:`lps.Lifelong` network as Avalanche calls it: with its task labels and the labels of its data."""

    def __init__(self, net: Lifelong) -> None:
        super().__init__()
        self.net = net
        self.tasks: dict[int, tuple[int, list[int]]] = {}  # by Avalanche's label: the task, and its classes there

    def forward(self, x: Tensor, task_labels: Tensor | int) -> Tensor:
        """Logits at the places of the data's own labels; -inf where a task lacks the class."""
        labels = torch.as_tensor(task_labels, device=x.device).expand(len(x))
        width = max((max(classes) for _, classes in self.tasks.values()), default=0) + 1
        logits = x.new_full((len(x), max(width, self.max_class_label)), -torch.inf)
        for label in sorted(set(labels.tolist())):
            rows = (labels == label).nonzero().squeeze(1)
            if label in self.tasks:
                task, classes = self.tasks[label]
                logits[rows[:, None], torch.tensor(classes, device=x.device)] = self.net(x[rows], task=task)
            else:  # a task of the stream that is still to come: no class is more likely than another
                logits[rows] = 0.0
        return logits


class LPSTraining(SupervisedTemplate):  # type: ignore[misc]
    """A strategy that learns every experience as a task with one of our methods, by default Learn-Prune-Share.

    Experiences need task labels that differ. Plugins and metrics see every experience; they do not see the single
    steps, which are the method's own.
    """

    def __init__(
        self,
        *,
        net: Lifelong,
        config: LPSConfig,
        method: str = "lps",
        options: Any = None,
        validation: float = VALIDATION,
        **template: Any,
    ) -> None:
        self.method: Method = METHODS[method](net, config, options)
        self.validation = validation
        model = LifelongModel(net)
        # Avalanche asks for an optimiser; the method has its own, so that this one is never stepped.
        unused = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
        super().__init__(model=model, optimizer=unused, criterion=nn.CrossEntropyLoss(), **template)

    def make_optimizer(self, **_: Any) -> None:
        """Nothing: the method makes its own."""

    def check_model_and_optimizer(self, **_: Any) -> None:
        """The model gets its new head from the method, and the optimiser is not used."""
        self.model.adaptation(self.experience)

    def _train_exp(self, experience: Any, eval_streams: Any = None, **_: Any) -> None:
        label = int(experience.task_label)
        if label in self.model.tasks:
            raise DataError(f"Avalanche: expected experiences with task labels that differ, got {label} twice")
        task = task_of(experience, experience, validation=self.validation, seed=self.method.config.seed)
        self.method.learn(task)
        classes = sorted(int(value) for value in experience.classes_in_this_experience)
        self.model.tasks[label] = len(self.method.learnt), classes
