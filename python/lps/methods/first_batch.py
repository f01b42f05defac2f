"""What is checked before a task is learnt: its labels, and whether the network reads a batch of each of its parts.

Nothing has changed yet when something is refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lps.batch import Batch, moved, named
from lps.errors import DataError, LPSError, in_a_sentence
from lps.observed import dtype_name, joined, seen
from lps.partition import check_dtype
from lps.signature import Signature, text_of
from lps.sources import Arrays, batches, length
from lps.task import Task, TaskData
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

EXAMPLES = 16  # that are tried of a data set; of ready-made batches, the first one
ROWS_OF = 2**22  # numbers that are searched for NaN at a time
MOST_SEARCHED = 2**27  # numbers of an array that is searched as a whole: half a second, and a memmap may be any size


def check_examples(task: Task) -> None:
    """Refuse empty data sets; of arrays, also labels outside the head's classes and inputs that are NaN."""
    for name, examples in _parts(task):
        with of_the_task(task, name):
            if not length(examples):
                got = f"{type(examples).__name__} of length {length(examples)}"
                raise DataError(f"expected at least one example, got {got}")
            if isinstance(examples, Arrays):
                if task.loss is None:
                    check_labels(task, examples.labels)
                if examples.transform is None:
                    _refuse_nan(examples.inputs)


def try_first_batches(net: Lifelong, task: Task) -> Signature:
    """Run one batch of each part of the task through the backbone; returns the kind of inputs of the first.

    No generator advances: what is drawn in learning does not depend on the trial.
    """
    found: Signature = []
    for partition, _ in net.prunable():
        check_dtype(partition.name, partition.w_bar)
    with _generators_kept(), net.keep_modes(), torch.no_grad():
        net.eval()
        for name, examples in _parts(task):
            with of_the_task(task, name):
                inputs, labels = _first(task, examples)
                if task.loss is None:
                    check_labels(task, labels)
                if not isinstance(examples, Arrays):
                    _refuse_nan(inputs)
                found = found or seen(inputs)
                _run(net, inputs, found)
                found = _widened(found, [inputs, *_single(task, examples)])
    return found


def _widened(found: Signature, batches: Iterable[Inputs]) -> Signature:
    """With the sizes of other batches, as far as they have the same structure."""
    for inputs in batches:
        with suppress(DataError):
            found = joined(found, inputs)
    return found


def _single(task: Task, examples: TaskData) -> list[Inputs]:
    """A batch of one example, where the user's own code makes batches: it may pad to the longest of them."""
    with suppress(Exception):  # of code that was never meant for one
        if "collate_fn" in task.loader and not isinstance(examples, Arrays):
            return [inputs for inputs, _ in islice(batches(examples, 1, loader=_in_process(task)), 1)]
    return []


def _in_process(task: Task) -> dict[str, Any]:
    """The loader's options without workers, which a batch is not worth."""
    return {key: value for key, value in task.loader.items() if key == "collate_fn"}


def _parts(task: Task) -> Iterator[tuple[str, TaskData]]:
    for name, examples in (("train", task.train), ("validation", task.validation), ("test", task.test)):
        if examples is not None:
            yield name, examples


def _first(task: Task, examples: TaskData) -> Batch:
    for batch in batches(examples, EXAMPLES, loader=_in_process(task)):
        return batch
    raise DataError("expected at least one batch, got none")


def _run(net: Lifelong, inputs: Inputs, of_train: Signature) -> None:
    kinds = seen(inputs)
    try:
        net.features_of(moved(inputs, net.like.device))
    except (LPSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's own network raises
        weights = dtype_name(net.like)
        hints = []
        if any(each.is_float and each.dtype != weights for each in kinds):
            hints.append(f"the network's weights are {weights}: convert the inputs")
        if [(each.name, each.dtype, each.shape) for each in kinds] != [
            (each.name, each.dtype, each.shape) for each in of_train
        ]:
            hints.append(f"it does read those of train, {text_of(of_train)}")
        reason = in_a_sentence((str(error) or type(error).__name__).partition("\n")[0])
        raise DataError(
            f"the network cannot read a batch of {text_of(kinds)}: {'; '.join([reason, *hints])}"
        ) from error


@contextmanager
def _generators_kept() -> Iterator[None]:
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@contextmanager
def of_the_task(task: Task, name: str) -> Iterator[None]:
    """Say of which part of which task a refusal of data is."""
    try:
        yield
    except DataError as error:
        if str(error).startswith("task "):
            raise
        raise DataError(f"task {task.name}: {name}: {error}") from error.__cause__


def _refuse_nan(inputs: Inputs) -> None:
    for name, whole in named(inputs):
        tensor = whole if whole.numel() <= MOST_SEARCHED else whole[:EXAMPLES]
        if not tensor.is_floating_point():
            continue
        rows = max(1, ROWS_OF // max(1, tensor[0].numel()))
        for start in range(0, len(tensor), rows):
            wrong = tensor[start : start + rows].flatten(1).isnan().any(1) if tensor.dim() > 1 else tensor.isnan()
            if bool(wrong.any()):
                example = start + int(wrong.nonzero()[0])
                what = "inputs" if name is None else name
                raise DataError(f"{what}: example {example} has NaN in it; mend it or leave it out")


def check_labels(task: Task, labels: Tensor) -> None:
    """Refuse labels that the default loss cannot use."""
    if labels.dim() != 1 or labels.is_floating_point():
        got = f"{dtype_name(labels)} {list(labels.shape)}"
        raise DataError(
            f"labels: expected a class number per example, got {got}; make them whole numbers [examples], or set a loss"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= task.classes:
        raise DataError(
            f"labels: expected 0 to {task.classes - 1} (a head of {task.classes} classes), got "
            f"{low if low < 0 else high}"
        )
