"""What all benchmarks are made of: the stream, randomness by purpose, the held-out part."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from lps.sources import Arrays
from lps.task import Task

Network = tuple[str, dict[str, Any]]  # the arguments of lps.models.create
Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Raw:
    """The bytes that a task's data files hold, and how they become what the network reads."""

    shape: tuple[int | None, ...]  # of an example as ``transform`` takes it; None stands for any length
    image: tuple[int, int, int] | None  # channels, height and width if it is an image
    top: int  # the largest value: white
    transform: Transform  # of a batch


class Examples(NamedTuple):
    """Inputs in their small stored form and their labels, both uint8."""

    inputs: Tensor
    labels: Tensor


class Stream(Sequence[Task]):
    """The tasks of a benchmark, each built when it is first asked for.

    ``architecture`` is the name and the arguments of the benchmark's default network, for ``lps.models.create``.
    """

    def __init__(self, name: str, architecture: Network, tasks: int, build: Callable[[int], Task]) -> None:
        self.name = name
        self.architecture = architecture
        self._build = build
        self._tasks: list[Task | None] = [None] * tasks

    def __len__(self) -> int:
        """How many tasks there are."""
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        """Task ``index``, counted from 0, or a list of tasks."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = range(len(self))[index]  # counts negative ones from the end, raises IndexError past it
        task = self._tasks[number]
        if task is None:
            task = self._tasks[number] = self._build(number)
        return task


def random(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    """A separate generator per purpose and number, so that another draw for one changes nothing for the others."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), number])


def hold_out(train: Examples, generator: np.random.Generator) -> tuple[Examples, Examples]:
    """Split training examples into nine tenths to learn from and one tenth for validation."""
    order = torch.from_numpy(generator.permutation(len(train.labels)))
    count = len(order) // 10
    # Sorted: the copies read memory in order, and batches are shuffled later anyway.
    held, kept = order[:count].sort().values, order[count:].sort().values
    return Examples(*(part[kept] for part in train)), Examples(*(part[held] for part in train))


def classification_task(
    name: str,
    class_names: Sequence[str],
    train: Examples,
    validation: Examples,
    test: Examples,
    transform: Transform,
    augment: Transform | None = None,
) -> Task:
    """A task whose three parts are prepared by one transform; the validation part may be empty."""
    learn, check, judge = (Arrays(part.inputs, part.labels, transform) for part in (train, validation, test))
    known = check if len(check) else None
    return Task(name, len(class_names), learn, judge, known, class_names=tuple(class_names), augment=augment)


def of_classes(examples: Examples, classes: Sequence[int]) -> Examples:
    """The examples of these classes, with labels 0, 1, ... in the order of ``classes``."""
    new = torch.full((256,), 255, dtype=torch.uint8)
    new[torch.tensor(classes)] = torch.arange(len(classes), dtype=torch.uint8)
    labels = new[examples.labels.long()]
    chosen = (labels != 255).nonzero().squeeze(1)
    return Examples(examples.inputs[chosen], labels[chosen])
