"""Where the examples of a task come from: data sets of examples, and batches that somebody else makes.

A data set of examples is shuffled and batched here, so that learning is the same every time and resumes at any batch.
Ready-made batches (a DataLoader, an iterable) and the examples of an ``IterableDataset`` come in an order of their own:
learning resumes at the start of an epoch, and is repeated exactly only if they are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lps.batch import Batch, as_batch, as_inputs, as_tensor, mapped, named, tensors_of
from lps.errors import ConfigError, DataError
from lps_kernels.calls import Inputs

Transform = Any  # a function of a batch of stored inputs


class Arrays(Dataset[Batch]):
    """Examples held in tensors or arrays, which are not copied: a ``numpy.memmap`` is read from its file by batches.

    ``inputs`` is one of them, a tuple of several, or a mapping by name. Labels are class numbers [examples], or for a
    custom loss floats [examples, classes]. ``transform`` maps a batch of stored inputs to what the network reads, so
    that inputs can stay in their small original form (bytes, one copy for all permutations).
    """

    def __init__(self, inputs: Any, labels: Any, transform: Transform | None = None) -> None:
        self.inputs: Any = _held(inputs)
        labels = _labels(labels)
        many = labels.dim() == 2 and labels.is_floating_point()
        for name, held in named(self.inputs):
            count = len(held) if held.dim() else 0
            if not (labels.dim() == 1 or many) or count != len(labels):
                what = "inputs" if name is None else name
                raise DataError(
                    f"Arrays: labels: expected one for each of the {count} {what}, got shape {list(labels.shape)}"
                )
        if not many and labels.is_floating_point() and not torch.equal(labels, labels.round()):
            raise DataError("Arrays: labels: expected class numbers, got fractions; several labels per example are 2-D")
        self.labels = labels.cpu() if many else labels.long().cpu()
        self.transform = transform

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        """One example, transformed."""
        inputs, labels = self.batch(torch.tensor([index]))
        return mapped(inputs, lambda tensor: tensor[0]), labels[0]

    def batch(self, indices: Tensor) -> Batch:
        """The examples at these indices, transformed together."""
        # Several times faster than indexing.
        inputs = mapped(self.inputs, lambda tensor: tensor.index_select(0, indices.to(tensor.device)))
        return (inputs if self.transform is None else self.transform(inputs)), self.labels[indices]


def _held(inputs: Any) -> Inputs:
    try:
        return as_inputs(inputs)
    except DataError as error:
        raise DataError(f"Arrays: {error}") from None


def _labels(labels: Any) -> Tensor:
    if isinstance(labels, Tensor):
        return labels
    with suppress(TypeError, ValueError, RuntimeError):
        return as_tensor(np.asarray(labels))
    got = f"{labels.dtype} of numpy" if isinstance(labels, np.ndarray) else type(labels).__name__
    raise DataError(f"Arrays: labels: expected a tensor or an array of numbers, got {got}")


class Batches(Iterable[Any]):
    """Ready-made batches of a source that does not know how many they are: it is gone through once to count them."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self._count: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """An epoch of them."""
        return iter(self.source)

    def __len__(self) -> int:
        """How many there are in an epoch."""
        if self._count is None:
            self._count = length(self.source) or sum(1 for _ in self.source)
        return self._count


class Stream(Batches):
    """The examples of an ``IterableDataset``, in its order."""


def source_of(data: Any, *, once: bool = False) -> Any:
    """The data as what batches are made from; refuses what has no examples that can be gone through in every epoch.

    ``once`` says that one time is enough.
    """
    arrays = _arrays_of(data)
    if arrays is not None:
        return arrays
    if isinstance(data, Tensor | np.ndarray | Mapping | str | bytes):
        raise DataError(f"expected examples with their labels, got {type(data).__name__}; pass (inputs, labels)")
    if isinstance(data, IterableDataset):
        return Stream(data)
    if isinstance(data, Sized) and hasattr(data, "__getitem__"):
        return Batches(data) if isinstance(data, list) and data and _is_batch(data[0]) else data
    if not isinstance(data, Iterable):
        raise DataError(
            f"expected a data set with a length, (inputs, labels) or an iterable of batches, got {type(data).__name__}"
        )
    if isinstance(data, Iterator) and not once:
        raise DataError(
            f"expected batches that can be gone through in every epoch, got a {type(data).__name__}, which is empty "
            "after one; pass a list, a DataLoader or an object whose __iter__ begins anew"
        )
    return data if once or length(data) is not None else Batches(data)


def _arrays_of(data: Any) -> Arrays | None:
    """Whole arrays of inputs and labels, in a pair or, by name, in a mapping."""
    if isinstance(data, Mapping) and any(isinstance(value, Tensor | np.ndarray) for value in data.values()):
        return Arrays(*as_batch(data))
    if not (isinstance(data, tuple) and len(data) == 2):
        return None
    whole = isinstance(data[0], Tensor | np.ndarray | Mapping) or _are_labels(data[1])
    return Arrays(*data) if whole else None  # else it may hold two examples


def length(data: Any) -> int | None:
    """How many items there are; None where that is not known."""
    try:
        return len(data)
    except TypeError:
        return None


def _are_labels(value: Any) -> bool:
    numbers = isinstance(value, list) and bool(value) and all(isinstance(each, int) for each in value)
    return numbers or isinstance(value, Tensor | np.ndarray)


def _is_batch(item: Any) -> bool:
    """Whether an item of a list is a whole batch: a label for each of several inputs."""
    with suppress(DataError, TypeError):
        inputs, labels = as_batch(item)
        whole = labels.dim() == 1 and not labels.is_floating_point()
        return whole and all(tensor.dim() > 1 for tensor in tensors_of(inputs))
    return False


def steps_per_epoch(examples: Any, size: int) -> int:
    """How many batches an epoch has.

    A last batch of one example is left out: normalisation layers cannot train on it.
    """
    count = length(examples) or 0
    if is_foreign(examples) and not isinstance(examples, Stream):
        return count
    return max(1, -(-count // size) - (count % size == 1 and size > 1))


def is_foreign(examples: Any) -> bool:
    """Whether the order of these is not ours, so that an epoch cannot resume in its middle."""
    return isinstance(examples, DataLoader) or not hasattr(examples, "__getitem__")


def batches(
    examples: Any,
    size: int,
    *,
    shuffle: torch.Generator | None = None,
    skip: int = 0,
    loader: Mapping[str, Any] | None = None,
    sampler: Sampler[int] | None = None,
) -> Iterator[Batch]:
    """Batches of a data set, in its order or shuffled by a generator, without the first ``skip``.

    The same generator state gives the same batches for any ``skip``. A ``sampler`` draws the examples of an epoch
    instead of a shuffle of all. Ready-made batches come as they are, with no ``skip``.
    """
    if isinstance(examples, Stream):
        return _loaded(examples.source, {**(loader or {}), "batch_size": size})
    if is_foreign(examples):
        return _checked(examples)
    count = length(examples) or 0
    if sampler is not None and shuffle is not None:
        order = _drawn(sampler, shuffle)
        count = len(order)
    else:
        order = torch.arange(count) if shuffle is None else torch.randperm(count, generator=shuffle)
    number = -(-count // size) if shuffle is None else steps_per_epoch(order, size)
    chosen = torch.split(order, size)[skip:number]
    if isinstance(examples, Arrays):
        return (examples.batch(indices) for indices in chosen)
    options = dict(loader or {})
    # The loader draws a seed for its workers; from its own generator, so that ours do not advance.
    options["generator"] = torch.Generator()
    if not options.get("num_workers"):
        return _loaded(examples, {**options, "batch_sampler": [part.tolist() for part in chosen]})
    base = int(torch.randint(2**62, (), generator=shuffle)) if shuffle is not None else 0
    seeded = [[(base ^ index, index) for index in part.tolist()] for part in chosen]
    return _loaded(_Seeded(examples), {**options, "batch_sampler": seeded})


def _drawn(sampler: Sampler[int], shuffle: torch.Generator) -> Tensor:
    """The examples of an epoch, drawn as the generator says: samplers draw from torch's global one."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(torch.randint(2**62, (), generator=shuffle)))
    try:
        order = list(sampler)
    finally:
        generator.set_state(before)
    if not all(isinstance(index, int) for index in order):
        raise DataError("sampler: expected one that gives the numbers of single examples, got something else")
    return torch.tensor(order, dtype=torch.long)


def _loaded(dataset: Any, options: Mapping[str, Any]) -> Iterator[Batch]:
    try:
        loader: DataLoader[Any] = DataLoader(dataset, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loader: expected options of a DataLoader that fit together, got a problem: {error}"
        ) from None
    return _checked(loader)


def _checked(source: Iterable[Any]) -> Iterator[Batch]:
    """The batches of a source, each as inputs and labels; what cannot be batched is refused in one sentence."""
    try:
        for batch in source:
            yield as_batch(batch)
    except (TypeError, RuntimeError) as error:
        found = next((found for pattern in _NO_BATCH if (found := re.search(pattern, str(error)))), None)
        if found is None:
            raise
        what = found.group(1)
        raise DataError(
            f"expected examples that fit into one batch, got {what}; make tensors of one shape of them in the data set "
            "or give the loader a collate_fn that does"
        ) from None


# What torch's default collate says of examples that it cannot put into a batch.
_NO_BATCH = (
    r"default_collate: batch must contain .*; found (<class '[\w.]+'>)",
    r"stack expects each tensor to be equal size, but got (\[[\d, ]*\] at entry 0 and \[[\d, ]*\] at entry \d+)",
    r"(each element in list of batch should be of equal size)",
)


class _Seeded(Dataset[Any]):
    """A data set that seeds all generators per example, so that draws do not depend on which worker makes them."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, place: tuple[int, int]) -> Any:
        seed, index = place
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        return self.dataset[index]
