"""Data sets of other libraries as data sets of a task: without what they give beside input and label, and with labels
from 0.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lps.batch import Batch
from lps.errors import DataError
from lps.task import Task

VALIDATION = 0.1  # share of the training examples that is held out unless another is asked for


class Examples(Dataset[Batch]):
    """The examples of a data set at these indices, with the places of their labels in ``classes`` as labels."""

    def __init__(self, dataset: Any, indices: Sequence[int], classes: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices
        self.labels = {int(label): place for place, label in enumerate(classes)}

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.indices)

    def __getitem__(self, index: int) -> Batch:
        """One example."""
        inputs, label, *_ = self.dataset[self.indices[index]]
        if not isinstance(inputs, Tensor):
            raise DataError(f"expected tensors as inputs, got {type(inputs).__name__}; add a transform that makes them")
        if int(label) not in self.labels:
            raise DataError(f"expected labels {sorted(self.labels)}, as the task says, got {int(label)}")
        return inputs, torch.tensor(self.labels[int(label)])


def make_task(
    name: str, classes: Sequence[int], train: Any, test: Any, *, validation: float = VALIDATION, seed: int = 0
) -> Task:
    """A task from two data sets of (input, label, ...); a share of the training examples is held out by the seed."""
    if not 0 <= validation < 1:
        raise DataError(f"task {name}: validation: expected a share from 0 to below 1, got {validation}")
    count = len(cast("Sized", train))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held = int(count * validation)
    parts = [
        Examples(train, sorted(order[held:]), classes),
        Examples(test, range(len(cast("Sized", test))), classes),
        Examples(train, sorted(order[:held]), classes),
    ]
    learn, judge, check = parts
    names = tuple(str(label) for label in classes)
    return Task(name, len(classes), learn, judge, check if held else None, class_names=names)
