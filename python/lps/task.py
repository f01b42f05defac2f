"""A task: training, validation and test examples, loss, head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Sampler

from lps.errors import ConfigError, DataError
from lps.names import check_class_names, check_name
from lps.sources import is_foreign, length, source_of, steps_per_epoch

Loss = Callable[[Tensor, Tensor], Tensor]
Head = Callable[[int, int], nn.Module]
TaskData = Any  # a data set of examples, arrays of inputs and labels, or an iterable of batches: see lps.sources

# Options of a DataLoader that batches() sets; the user may set all others.
_OURS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator")


@dataclass(frozen=True)
class Task:
    """One classification task with labels 0 to ``classes - 1``.

    ``train``, ``test`` and ``validation`` are data sets of individual examples, arrays ``(inputs, labels)``, or
    iterables of batches (a DataLoader); ``validation`` is for accuracies in the log and for early stopping, and nothing
    is ever chosen on ``test``, which may be left out. Inputs are a tensor, or several in a tuple or by name, which go
    to the network as its arguments. ``loader`` holds options for the DataLoader that batches a data set
    (``num_workers``, ``collate_fn``, ...). ``sampler`` draws the examples of an epoch, instead of all in random order.
    ``augment`` changes a batch of training inputs and draws from torch's global generator.

    The loss is cross entropy, weighted per class by ``class_weights``, unless ``loss(logits, labels)`` is given; it
    then gets the labels as the data set has them. The head is a Linear layer unless ``head(features, classes)`` is
    given.
    """

    name: str
    classes: int
    train: TaskData
    test: TaskData | None = None
    validation: TaskData | None = None
    class_names: tuple[str, ...] = ()
    class_weights: Sequence[float] | None = None
    loss: Loss | None = None
    head: Head | None = None
    augment: Callable[[Any], Any] | None = None
    loader: Mapping[str, Any] = field(default_factory=dict)
    sampler: Sampler[int] | None = None

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
                instead = "pass it to the task" if option == "sampler" else "leave it out"
                raise ConfigError(f"task {self.name}: loader: {option} is decided by learn(); {instead}")
        for name in ("train", "test", "validation"):
            data = getattr(self, name)
            if data is not None or name == "train":
                try:
                    object.__setattr__(self, name, source_of(data))
                except DataError as error:
                    raise DataError(f"task {self.name}: {name}: {error}") from None
        self._check_sampler()

    def _check_sampler(self) -> None:
        if self.sampler is None:
            return
        if is_foreign(self.train):
            got = type(self.train).__name__
            raise ConfigError(f"task {self.name}: sampler: expected a data set or arrays to draw from, got {got}")
        if getattr(self.sampler, "generator", None) is not None:
            raise ConfigError(
                f"task {self.name}: sampler: expected one without a generator of its own, whose state is not saved; "
                "leave it out, and the seed of learning decides"
            )
        if not length(self.sampler):
            raise ConfigError(f"task {self.name}: sampler: expected one with a length above 0, got none")

    def steps_per_epoch(self, batch_size: int) -> int:
        """How many training steps an epoch has."""
        drawn = self.train if self.sampler is None else range(length(self.sampler) or 0)
        return steps_per_epoch(drawn, batch_size)

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
