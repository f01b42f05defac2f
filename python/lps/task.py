"""A task (training, validation and test examples, loss, head) and how its examples become batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from lps.errors import ConfigError, DataError
from lps.names import check_class_names, check_name

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Head = Callable[[int, int], nn.Module]
# A data set of individual examples, or an iterable of batches with a length, such as a user's DataLoader.
TaskData = Dataset[Batch] | Iterable[Batch]

# Options of a DataLoader that batches() sets; the user may set all others.
_OURS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator")


class Arrays(Dataset[Batch]):
    """Examples held in two tensors.

    Labels are class numbers [examples], or for a custom loss floats [examples, classes]. ``transform`` maps
    a batch of stored inputs to what the network reads, so that inputs can stay in their small original form (bytes,
    one copy for all permutations).
    """

    def __init__(self, inputs: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        for name, value in (("inputs", inputs), ("labels", labels)):
            if not isinstance(value, Tensor):
                got = type(value).__name__
                raise DataError(f"Arrays: {name}: expected a tensor, got {got}; torch.as_tensor makes one of an array")
        many = labels.dim() == 2 and labels.is_floating_point()
        if not (labels.dim() == 1 or many) or len(inputs) != len(labels):
            raise DataError(
                f"Arrays: labels: expected one for each of the {len(inputs)} inputs, got shape {list(labels.shape)}"
            )
        if not many and labels.is_floating_point() and not torch.equal(labels, labels.round()):
            raise DataError("Arrays: labels: expected class numbers, got fractions; several labels per example are 2-D")
        self.inputs = inputs
        self.labels = labels.cpu() if many else labels.long().cpu()
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

    ``train``, ``test`` and ``validation`` are data sets of individual examples, or iterables of batches with a length
    (a DataLoader); ``validation`` is for accuracies in the log, and nothing is ever chosen on ``test``. ``loader``
    holds options for the DataLoader that batches a data set (``num_workers``, ``pin_memory``, ``collate_fn``, ...).
    ``augment`` changes a batch of training inputs and draws from torch's global generator.

    The loss is cross entropy, weighted per class by ``class_weights``, unless ``loss(logits, labels)`` is given; it
    then gets the labels as the data set has them. The head is a Linear layer unless ``head(features, classes)`` is
    given.
    """

    name: str
    classes: int
    train: TaskData
    test: TaskData
    validation: TaskData | None = None
    class_names: tuple[str, ...] = ()
    class_weights: Sequence[float] | None = None
    loss: Loss | None = None
    head: Head | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    loader: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other."""
        check_name(self.name)
        check_class_names(self.name, self.class_names)
        if type(self.classes) is not int or self.classes < 1:
            raise DataError(f"task {self.name}: classes: expected a whole number of at least 1, got {self.classes!r}")
        for name, values in (("class_names", self.class_names or None), ("class_weights", self.class_weights)):
            if values is not None and len(values) != self.classes:
                raise DataError(f"task {self.name}: {name}: expected {self.classes}, one per class, got {len(values)}")
        if self.class_weights is not None:
            if self.loss is not None:
                raise ConfigError(f"task {self.name}: class_weights: they are for the default loss; give them to loss")
            if not _are_weights(self.class_weights):
                raise DataError(f"task {self.name}: class_weights: expected numbers of at least 0, and one above it")
        for option in self.loader:
            if option in _OURS:
                raise ConfigError(f"task {self.name}: loader: {option} is decided by learn(); leave it out")

    def make_head(self, features: int) -> nn.Module:
        """A new head, which maps features to logits."""
        head = nn.Linear(features, self.classes) if self.head is None else self.head(features, self.classes)
        if not isinstance(head, nn.Module):
            raise ConfigError(f"task {self.name}: head: expected an nn.Module, got {type(head).__name__}")
        return head

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        if self.loss is not None:
            return self.loss(logits, labels.to(logits.device))
        weights = None
        if self.class_weights is not None:
            weights = torch.as_tensor(self.class_weights, dtype=logits.dtype, device=logits.device)
        return cross_entropy(logits, labels.to(logits.device, torch.long), weights)


def _are_weights(values: Sequence[float]) -> bool:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return False
    return all(isfinite(number) and number >= 0 for number in numbers) and sum(numbers) > 0


@dataclass(frozen=True)
class Learnt:
    """What a network stores about a learnt task, beside its weights."""

    name: str
    classes: int
    digest: str  # sha256 over everything the task's logits depend on, computed when it was learnt
    class_names: tuple[str, ...] = ()
    damage: str = ""  # what is wrong with it in the file that it was salvaged from


def length(examples: TaskData) -> int:
    """How many examples a data set has, or batches an iterable of batches; 0 if it has no length."""
    try:
        return len(cast("Sized", examples))
    except TypeError:
        return 0


def is_foreign(examples: TaskData) -> bool:
    """Whether these are ready-made batches, whose order is not ours, so that an epoch cannot resume in its middle."""
    return isinstance(examples, DataLoader) or not hasattr(examples, "__getitem__")


def steps_per_epoch(examples: TaskData, size: int) -> int:
    """How many batches an epoch has.

    A last batch of one example is left out: normalisation layers cannot train on it.
    """
    count = length(examples)
    if is_foreign(examples):
        return count
    return max(1, -(-count // size) - (count % size == 1 and size > 1))


def batches(
    examples: TaskData,
    size: int,
    *,
    shuffle: torch.Generator | None = None,
    skip: int = 0,
    loader: Mapping[str, Any] | None = None,
) -> Iterator[Batch]:
    """Batches of a data set, in its order or shuffled by a generator, without the first ``skip``.

    The same generator state gives the same batches for any ``skip``. Ready-made batches are passed through.
    """
    if is_foreign(examples):
        return iter(cast("Iterable[Batch]", examples))
    count = length(examples)
    number = -(-count // size) if shuffle is None else steps_per_epoch(examples, size)
    order = torch.arange(count) if shuffle is None else torch.randperm(count, generator=shuffle)
    chosen = torch.split(order, size)[skip:number]
    if isinstance(examples, Arrays):
        return (examples.batch(indices) for indices in chosen)
    options, dataset = dict(loader or {}), cast("Dataset[Batch]", examples)
    # The loader draws a seed for its workers; from its own generator, so that ours do not advance.
    options["generator"] = torch.Generator()
    if not options.get("num_workers"):
        return _loaded(dataset, [part.tolist() for part in chosen], options)
    base = int(torch.randint(2**62, (), generator=shuffle)) if shuffle is not None else 0
    seeded = [[(base ^ index, index) for index in part.tolist()] for part in chosen]
    return _loaded(_Seeded(dataset), seeded, options)


def _loaded(dataset: Dataset[Batch], sampler: list[Any], options: dict[str, Any]) -> Iterator[Batch]:
    try:
        return iter(DataLoader(dataset, batch_sampler=sampler, **options))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loader: expected options of a DataLoader that fit together, got a problem: {error}"
        ) from None


class _Seeded(Dataset[Batch]):
    """A data set that seeds all generators per example, so that draws do not depend on which worker makes them."""

    def __init__(self, dataset: Dataset[Batch]) -> None:
        self.dataset = dataset

    def __getitem__(self, place: tuple[int, int]) -> Batch:
        seed, index = place
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        return self.dataset[index]
