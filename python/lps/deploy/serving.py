"""Answers of several tasks from one copy of the weights.

While a task is served, the backbone's code runs as it is, but wherever it hands a shared-out weight to torch it gets
the weight of that task: a linear layer reads the weights of all tasks under the task's mask, any other operation gets
them composed for that one call. Nothing is written into the backbone, so going from task to task costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lps.errors import ConfigError
from lps.partition import Partition
from lps_kernels import masked_linear


class ServedTask(TorchFunctionMode):
    """Within this context the weights of ``prunable`` are those of one task."""

    def __init__(
        self, prunable: Iterable[tuple[Partition, nn.Parameter]], task: int, replaced: Mapping[int, Tensor]
    ) -> None:
        super().__init__()
        self._replaced = replaced
        self._partitions = {id(weight): partition for partition, weight in prunable}
        self._task = task

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch for each of its functions."""
        kwargs = kwargs or {}
        if func is linear:
            return self._linear(*args, **kwargs)
        # Weights may stand in lists too, as those of torch.cat do.
        args, kwargs = tree_map(self._served, (args, kwargs))
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # torch's names
        partition = self._partitions.get(id(weight))
        # Under autocast the input may have another dtype than the weights, which the operator would refuse.
        if partition is None or input.dtype != partition.w_bar.dtype:
            return linear(input, self._served(weight), self._served(bias))
        bits, shift = partition.mask(self._task), self._served(bias)
        y: Tensor = masked_linear(input, partition.w_bar, partition.owner, bits, self._task, shift, False)
        return y

    def _served(self, value: Any) -> Any:
        """The weight of the task in place of the backbone's own."""
        if not isinstance(value, Tensor):
            return value
        partition = self._partitions.get(id(value))
        if partition is None:
            return self._replaced.get(id(value), value)
        composed = torch.empty_like(partition.w_bar)
        partition.compose(self._task, out=composed)
        return composed


def task_of_each(task: Sequence[int] | Tensor, examples: int) -> list[int]:
    """The task of every example; refuses anything else."""
    tasks: object = task.tolist() if hasattr(task, "tolist") else task  # of a tensor or an array
    whole = isinstance(tasks, Sequence) and all(type(number) is int for number in tasks)
    if not isinstance(tasks, Sequence) or not whole or len(tasks) != examples:
        got = str(len(tasks)) if isinstance(tasks, Sequence) and whole else "something else"
        raise ConfigError(f"Lifelong: task: expected one whole number for each of the {examples} examples, got {got}")
    return list(tasks)


def rows_of(tasks: Sequence[int], device: torch.device) -> dict[int, Tensor]:
    """The rows of each task's examples, by task."""
    each = torch.tensor(tasks, device=device)
    return {task: (each == task).nonzero().flatten() for task in sorted(set(tasks))}


def together(logits: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Logits at the rows of the batch that they belong to; -inf for classes that an example's task lacks."""
    classes, examples = max(answers.shape[1] for answers in logits), sum(map(len, rows))
    result = logits[0].new_full((examples, classes), -torch.inf)
    for places, answers in zip(rows, logits, strict=True):
        result[places, : answers.shape[1]] = answers
    return result
