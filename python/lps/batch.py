"""A batch as a data set gives it: its inputs (a tensor, several, or several by name) and its labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lps.errors import DataError
from lps_kernels.calls import TENSORS, Inputs

Batch = tuple[Any, Tensor]  # Inputs and labels

LABELS = ("labels", "label")  # what a mapping calls them
_PAIR = "expected (inputs, labels), or a mapping with labels"


def named(inputs: Inputs) -> list[tuple[str | None, Tensor]]:
    """The tensors of a batch with their names, in order; those given by position have none."""
    if isinstance(inputs, Tensor):
        return [(None, inputs)]
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    return [(None, tensor) for tensor in inputs]


def assembled(names: Sequence[str | None], tensors: Sequence[Tensor]) -> Inputs:
    """A batch from its tensors, with names for all of them or for none."""
    if names[0] is not None:
        return dict(zip(cast("Sequence[str]", names), tensors, strict=True))
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def tensors_of(inputs: Inputs) -> Iterator[Tensor]:
    """The tensors of a batch."""
    return (tensor for _, tensor in named(inputs))


def mapped(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The batch with every tensor changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return tuple(change(tensor) for tensor in inputs)


def moved(inputs: Inputs, device: torch.device) -> Inputs:
    """The batch on a device."""
    return mapped(inputs, lambda tensor: tensor.to(device, non_blocking=True))


def examples_in(inputs: Inputs) -> int:
    """How many examples a batch has."""
    return len(next(tensors_of(inputs)))


def picked(inputs: Inputs, places: Tensor | slice) -> Inputs:
    """These examples of the batch."""
    return mapped(inputs, lambda tensor: tensor[places])


def together(parts: Sequence[Inputs]) -> Inputs:
    """Several batches of one structure as one."""
    names = [name for name, _ in named(parts[0])]
    columns = zip(*(tensors_of(part) for part in parts), strict=True)
    return assembled(names, [torch.cat(column) for column in columns])


def pieces(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """The batch in pieces of so many examples."""
    for start in range(0, examples_in(inputs), size):
        yield picked(inputs, slice(start, start + size))


def as_batch(batch: Any) -> Batch:
    """Inputs and labels of what a loader gives, with arrays as tensors; refuses anything else.

    A mapping holds its labels by the name ``labels`` or ``label``, as Hugging Face's collators make it; the rest are
    inputs.
    """
    inputs: Any
    if isinstance(batch, Mapping):
        inputs, labels = _split(batch)
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, labels = batch
    else:
        several = isinstance(batch, tuple | list) and len(batch) > 2
        hint = "; if the last are the labels, give ((a, b), labels)" if several else ""
        raise DataError(f"{_PAIR}, got {_described(batch)}{hint}")
    if not (type(inputs) is Tensor and type(labels) is Tensor):
        inputs, labels = as_inputs(inputs), _tensor("labels", labels)
    for name, tensor in named(inputs):
        what = "inputs" if name is None else name
        if not tensor.dim() or not labels.dim() or len(tensor) != len(labels):
            shapes = f"{list(tensor.shape)} and labels {list(labels.shape)}"
            raise DataError(f"{what}: expected as many examples as labels, along the first axis, got {shapes}")
    return inputs, labels


def as_inputs(inputs: Any) -> Inputs:
    """A tensor, a tuple of tensors or tensors by name, from such things or arrays."""
    if isinstance(inputs, Mapping):
        if not inputs:
            raise DataError("inputs: expected at least one, got none")
        return {_name(name): _tensor(name, value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and inputs and all(isinstance(each, Tensor | np.ndarray) for each in inputs):
        values = [_tensor("inputs", each) for each in inputs]
        return values[0] if len(values) == 1 else tuple(values)
    return _tensor("inputs", inputs)


def as_tensors(inputs: Any) -> Inputs:
    """What a network is called with, where arrays may stand for tensors; refuses what holds neither."""
    if isinstance(inputs, TENSORS):
        return cast("Tensor", inputs)
    try:
        return as_inputs(inputs)
    except DataError as error:
        reason = str(error).partition(";")[0]
        raise DataError(f"Lifelong: {reason}; convert it, as with torch.as_tensor") from None


def _split(batch: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any]:
    found = [name for name in LABELS if name in batch]
    if len(found) != 1:
        raise DataError(f"{_PAIR}, got a mapping of {', '.join(map(str, batch)) or 'nothing'}; name them labels")
    return {name: value for name, value in batch.items() if name != found[0]}, batch[found[0]]


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise DataError(f"inputs: expected names of the network's arguments, got {name!r:.60}")
    return name


def _tensor(what: object, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, np.ndarray | np.generic):
            return as_tensor(np.asarray(value))
        if what == "labels" and isinstance(value, list | tuple):
            return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    hint = f"; give the loader's collate_fn or the data set's transform the work of making tensors of {what}"
    raise DataError(f"{what}: expected a tensor or an array of numbers, got {_described(value)}{hint}")


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """The array as a tensor that shares its memory, also if that is a file's (a memmap)."""
    if not array.dtype.isnative:
        raise TypeError("it has the byte order of another machine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that may not be written: nothing here writes into a data set
        return torch.from_numpy(array)


def _described(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list | tuple):
        kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in value[:8]))
        return f"a {type(value).__name__} of {len(value)}" + (f" ({kinds})" if kinds else "")
    return type(value).__name__
