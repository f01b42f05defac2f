"""A task: labelled examples to learn from, to check on and to be judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lps.errors import DataError

Batch = tuple[Tensor, Tensor]


class Arrays(Dataset[Batch]):
    """Examples held in two tensors, served by the batch.

    ``transform`` maps a batch of stored inputs to what the network reads, so that inputs can stay in their small
    original form (bytes, one copy for all permutations).
    """

    def __init__(self, inputs: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        for name, value in (("inputs", inputs), ("labels", labels)):
            if not isinstance(value, Tensor):
                got = type(value).__name__
                raise DataError(f"Arrays: {name}: expected a tensor, got {got}; torch.as_tensor makes one of an array")
        if labels.dim() != 1 or len(inputs) != len(labels):
            raise DataError(
                f"Arrays: labels: expected one for each of the {len(inputs)} inputs, got shape {list(labels.shape)}"
            )
        self.inputs = inputs
        self.labels = labels.long().cpu()
        self.transform = transform

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        """One example, transformed."""
        inputs, labels = self.batch(torch.tensor([index]))
        return inputs[0], labels[0]

    def batch(self, indices: Tensor) -> Batch:
        """The examples at these indices, transformed together."""
        inputs = self.inputs.index_select(0, indices.to(self.inputs.device))  # several times faster than indexing
        return (inputs if self.transform is None else self.transform(inputs)), self.labels[indices]


@dataclass(frozen=True)
class Task:
    """One classification task with labels 0 to ``classes - 1``.

    ``validation`` only informs the log; nothing is ever chosen on ``test``. ``class_names`` are those of the labels, if
    they have names. ``augment`` changes batches of training inputs at random; it draws from torch's global generator.
    """

    name: str
    classes: int
    train: Dataset[Batch]
    test: Dataset[Batch]
    validation: Dataset[Batch] | None = None
    class_names: tuple[str, ...] = field(default=(), kw_only=True)
    augment: Callable[[Tensor], Tensor] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Learnt:
    """What the network remembers of a task, beside its weights."""

    name: str
    classes: int
    digest: str  # sha256 over everything the task's answers depend on, taken when it was learnt


def steps_per_epoch(examples: int, size: int) -> int:
    """How many batches a shuffled pass over the examples has.

    A single example left over is left out of the pass: normalisation layers cannot train on one.
    """
    return max(1, -(-examples // size) - (examples % size == 1 and size > 1))


def batches(dataset: Dataset[Batch], size: int, shuffle: torch.Generator | None = None) -> Iterator[Batch]:
    """Batches of a data set in its order or in a random one."""
    count = len(dataset)  # type: ignore[arg-type]
    number = -(-count // size) if shuffle is None else steps_per_epoch(count, size)
    every: Iterator[Batch]
    if isinstance(dataset, Arrays):
        order = torch.arange(count) if shuffle is None else torch.randperm(count, generator=shuffle)
        every = (dataset.batch(indices) for indices in torch.split(order, size))
    else:
        every = iter(DataLoader(dataset, batch_size=size, shuffle=shuffle is not None, generator=shuffle))
    return islice(every, number)
