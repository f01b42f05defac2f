"""What all methods share: the interface, and how a task is learnt as a whole (seeded, resumable) or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from lps.draft import ROUNDING, Draft
from lps.errors import CapacityError, ConfigError, FileFormatError
from lps.methods.first_batch import check_examples, try_first_batches
from lps.methods.fit import Fit, Learner, Phase
from lps.methods.lps.config import LPSConfig
from lps.methods.options import OWNERS_USE, Reads
from lps.names import check_new_name
from lps.runs.checkpoint import Checkpoint
from lps.runs.events import Listener, TaskReport
from lps.runs.metrics import capacity, capacity_per_layer, coded_capacity, density, separate_bytes
from lps.signature import text_of
from lps.sources import length
from lps.task import Learnt, Task
from lps_kernels.owner import MAX_TASKS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong
    from lps.methods.lps.config import TaskConfig


class TaskLearner(Learner, Protocol):
    """How a method learns one task, from its first step until it is part of the network."""

    def end(self) -> None:
        """Called after the last step."""

    def commit(self, task: Task, fit: Fit) -> None:
        """Make the trained task part of the network; refuses weights that are not finite."""

    def close(self) -> None:
        """Leave the backbone as a plain module; called whether or not learning succeeded."""


class Method(ABC):
    """Teaches a :class:`lps.Lifelong` network tasks one after another.

    ``config`` holds the settings that methods share, ``own`` those of this method: an instance of ``reads.options``. A
    method may keep a ``memory`` between tasks beside the network; a run saves it after every task.
    """

    name: ClassVar[str]
    reads: ClassVar[Reads]
    forgets: ClassVar[bool] = False  # whether learning a task changes the answers of earlier ones
    at_once: ClassVar[bool] = False  # whether it learns all tasks with the last one, so that none was learnt before it
    takes_one_tensor: ClassVar[bool] = False  # whether several inputs of a network are refused

    def __init__(self, net: Lifelong, config: LPSConfig, own: Any = None) -> None:
        norms = self.reads.norms
        if norms not in (None, net.norms):
            raise ConfigError(f"{self.name}: expected a network made with norms={norms!r}, got {net.norms!r}")
        for name in OWNERS_USE - self.reads.uses:
            if getattr(config, name) != getattr(LPSConfig, name):
                raise ConfigError(f"{name}: {self.name} does not use it; leave it out")
        self.net, self.config = net, config
        self.own: Any = self.reads.options() if own is None else own
        self.memory: dict[str, Any] = {}

    @property
    def learnt(self) -> list[Learnt]:
        """The tasks learnt so far."""
        return self.net.learnt

    @abstractmethod
    def learner(self, task: Task, config: TaskConfig, draft: Draft) -> TaskLearner:
        """Begin with a task: add its head to the draft and prepare its first step."""

    def task_config(self, number: int) -> TaskConfig:
        """The settings of a task, counted from 1."""
        return self.config.of_task(number)

    def phases(self, number: int) -> list[Phase]:
        """The phases of a task, counted from 1; by default one, of all epochs of the budget."""
        return [Phase("train", sum(self.task_config(number).epochs))]

    def steps(self, number: int, task: Task) -> int:
        """How many steps learning the task takes."""
        epochs = sum(phase.epochs for phase in self.phases(number))
        return epochs * task.steps_per_epoch(self.task_config(number).batch_size)

    def fit_task(self, task: Task) -> Task:
        """What the training loop goes through to learn the task: by default, the task itself."""
        return task

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse a stream that cannot be learnt to its end, before its first task is."""
        if len(tasks) > MAX_TASKS:
            raise CapacityError(f"expected at most {MAX_TASKS} tasks in one network, got {len(tasks)}")

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Take over what a run saved as ``memory`` after its latest task; refuses what does not fit the network."""
        if memory:
            raise FileFormatError(f"expected nothing that {self.name} remembers, got {', '.join(map(str, memory))}")

    def learn(
        self,
        task: Task,
        *,
        listener: Listener | None = None,
        checkpoint: Checkpoint | None = None,
        tested: bool = False,
    ) -> TaskReport:
        """Learn one more task and leave the network in eval mode; if that fails, the network does not change.

        ``tested`` measures its accuracy on the test examples too, for the report and the file. A run leaves that out:
        it tests all tasks after each one.
        """
        net, number = self.net, len(self.net.learnt) + 1
        config = self.task_config(number)
        check_new_name(net.learnt, task.name)
        check_examples(task)
        if config.patience is not None and task.validation is None:
            raise ConfigError(
                f"task {task.name}: patience: expected validation examples to see when to stop, got none; give the "
                "task validation="
            )
        with net.transaction() as draft, _all_generators_kept(), net.keep_modes():
            # A seed per task: a later task does not depend on how many random numbers the earlier ones drew.
            torch.manual_seed(int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0]))
            belongs_to = self.belongs_to(task, config)
            signature = try_first_batches(net, task)
            draft.restore_all()
            draft.rounding = ROUNDING[config.store]
            if self.takes_one_tensor and (len(signature) > 1 or signature[0].name is not None):
                raise ConfigError(
                    f"task {task.name}: {self.name} expects inputs in one tensor, got {text_of(signature)}"
                )
            learner = self.learner(task, config, draft)
            belongs_to["head"] = [[name, list(tensor.shape)] for name, tensor in net.heads[-1].state_dict().items()]
            try:
                fit = Fit(
                    learner, self.fit_task(task), config, listener or Listener(), checkpoint, belongs_to, signature
                )
                report, begin = fit.run(), perf_counter()
                learner.end()
                report.seconds[learner.phases[-1].name] += perf_counter() - begin
                report.accuracy = learner.validate()
                if tested:
                    report.test = net.accuracy(number, task.test, loader=task.loader)
            finally:
                learner.close()
            learner.commit(task, fit)
            if draft.rounding is not None:
                report.accuracy = validation_accuracy(net, number, task)
            net.metadata.add_validation(number, report.accuracy)
            net.metadata.add_accuracy(number, report.test)
        net.eval()  # as `load` leaves it: in training mode, dropout would answer at random
        return report

    def belongs_to(self, task: Task, config: TaskConfig) -> dict[str, Any]:
        """What must be the same for a saved state to go on."""
        net = self.net
        return {
            "method": self.name,
            "number": len(net.learnt) + 1,
            "name": task.name,
            "classes": task.classes,
            "examples": length(task.train),
            "digests": [learnt.digest for learnt in net.learnt],
            "layers": [[partition.name, list(partition.shape)] for partition, _ in net.prunable()],
            "first weights of spread": [partition.init_std for partition, _ in net.prunable()],
            "pattern": net.pattern,
            "sharing": net.sharing,
            "norms": net.norms,
            "frozen": sorted(net.frozen) or None,  # states of earlier versions say nothing of it
            "class_weights": None if task.class_weights is None else [float(weight) for weight in task.class_weights],
            "loss": "cross entropy" if task.loss is None else "another",
            "augmentation": task.augment is not None,
            "sampler": None if task.sampler is None else [type(task.sampler).__name__, length(task.sampler)],
            **{name: _listed(value) for name, value in asdict(config).items()},
            "store": None if config.store == LPSConfig.store else config.store,  # as in states of earlier versions
            **{f"{self.name}.{name}": _listed(value) for name, value in asdict(self.own).items()},
        }

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of a learnt task, counted from 1."""
        logits: Tensor = self.net(x, task=task)
        return logits

    def figures(self) -> dict[str, Any]:
        """The method's own entries of results.json: shares of the weights, and the size of separate networks."""
        return {
            "capacity": capacity(self.net),
            "capacity_per_layer": capacity_per_layer(self.net),
            "coded_capacity": coded_capacity(self.net),
            "density": density(self.net),
            "separate_bytes": separate_bytes(self.net),
        }


def validation_accuracy(net: Lifelong, number: int, task: Task) -> float:
    """Accuracy of the task being learnt on its validation examples, in fp32; NaN if there are none."""
    torch.clear_autocast_cache()
    if task.validation is None:
        return float("nan")
    return net.accuracy(number, task.validation, loader=task.loader)


def _all_generators_kept() -> AbstractContextManager[None]:
    """Restore the generators of all devices afterwards: seeding changes every one."""
    devices = range(torch.cuda.device_count())
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices)
    return kept


def _listed(value: Any) -> Any:
    """The value as JSON returns it: with lists for tuples."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
