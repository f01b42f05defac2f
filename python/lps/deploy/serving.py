"""Answers of several tasks from one copy of the weights.

While a task is served, the backbone's own code runs, but wherever it hands a shared weight to torch, torch gets the
weight of that task instead. Nothing is written into the backbone, so switching tasks costs nothing and several threads
may serve different tasks at the same time: torch's modes are per thread, and whatever is composed belongs to one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lps.batch import tensors_of
from lps.errors import ConfigError
from lps.partition import Partition
from lps_kernels import masked_linear
from lps_kernels.calls import Inputs, call


class ServedTask(AbstractContextManager[None]):
    """Within this context, in this thread, the backbone runs with the weights of one task.

    ``replaced`` maps ``id`` of a tensor of the backbone, parameter or buffer, to the task's own tensor.

    By default a linear layer reads the weights of all tasks under the task's mask (``masked_linear``: no temporary) and
    any other operation gets its weight composed for that call. With ``exact`` every weight is composed, so that torch
    runs the kernels that it runs after ``Lifelong.activate``, and the answers are the same to the bit.
    """

    def __init__(
        self,
        prunable: Iterable[tuple[Partition, nn.Parameter]],
        task: int,
        replaced: Mapping[int, Tensor] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self._weights = _TaskWeights(prunable, task, replaced or {})
        self._exact = exact
        self._mode: TorchFunctionMode | TorchDispatchMode | None = None

    def __enter__(self) -> None:
        """Start serving in this thread."""
        self._mode = self._choose_mode()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop serving."""
        assert self._mode is not None
        self._mode.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def _choose_mode(self) -> TorchFunctionMode | TorchDispatchMode:
        if not self._exact:
            return _Masked(self._weights)
        # torch.nn's attention and transformer layers leave their fused inference kernel when they see a function mode,
        # which changes the last bits. A dispatch mode stays unseen, but it acts below autograd: gradients would be
        # computed with the weights of the backbone. Where gradients are recorded torch does not use that kernel.
        return _Composed(self._weights) if torch.is_grad_enabled() else _ComposedBelowAutograd(self._weights)


def run_exact(backbone: nn.Module, x: Inputs, served: ServedTask) -> Any:
    """What the backbone gives under an exact ``served``; gradients are recorded only if something requires them."""
    recorded = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (*tensors_of(x), *backbone.parameters())
    )
    with torch.set_grad_enabled(recorded), served:
        return call(backbone, x)


class _TaskWeights:
    """Looks up what a task has in place of a tensor of the backbone; read-only, so any thread may use it."""

    def __init__(
        self, prunable: Iterable[tuple[Partition, nn.Parameter]], task: int, replaced: Mapping[int, Tensor]
    ) -> None:
        self.task = task
        self.partitions = {id(weight): partition for partition, weight in prunable}
        self._replaced = replaced

    def of(self, value: Any) -> Any:
        """The task's tensor in place of the backbone's, also in lists, as torch.cat takes them; else the value."""
        if isinstance(value, Tensor):
            partition = self.partitions.get(id(value))
            return self._replaced.get(id(value), value) if partition is None else self._composed(partition, value)
        if type(value) in (list, tuple):  # by hand: torch's tree_map would be most of the time of a small network
            return type(value)(map(self.of, value))
        return value

    def of_all(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call with the task's tensors."""
        return [self.of(value) for value in args], {name: self.of(value) for name, value in (kwargs or {}).items()}

    def _composed(self, partition: Partition, weight: Tensor) -> Tensor:
        composed = torch.empty_like(weight, requires_grad=False)  # with its strides: they decide on torch's kernel
        partition.compose(self.task, out=composed)
        return composed


class _Composed(TorchFunctionMode):
    """Replaces tensors in calls of torch's Python functions."""

    def __init__(self, weights: _TaskWeights) -> None:
        super().__init__()
        self._weights = weights

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = self._weights.of_all(args, kwargs)
        return func(*args, **kwargs)


class _Masked(_Composed):
    """The same, but linear layers read the weights of all tasks under the task's mask."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is linear:
            return self._linear(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # torch's names
        partition = self._weights.partitions.get(id(weight))
        # Under autocast the input may have another dtype than the weights, which the operator would refuse.
        if partition is None or input.dtype != partition.w_bar.dtype:
            return linear(input, self._weights.of(weight), self._weights.of(bias))
        task, bits = self._weights.task, partition.mask(self._weights.task)
        y: Tensor = masked_linear(input, partition.w_bar, partition.owner, bits, task, self._weights.of(bias), False)
        return y


class _ComposedBelowAutograd(TorchDispatchMode):
    """Replaces tensors in calls of torch's operators, after torch.nn has chosen among them."""

    def __init__(self, weights: _TaskWeights) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = self._weights.of_all(args, kwargs)
        return func(*args, **kwargs)


def validate_tasks(task: Sequence[int | str] | Tensor, examples: int) -> list[int | str]:
    """The task of every example, by number or name; refuses anything else."""
    tasks: object = task.tolist() if hasattr(task, "tolist") else task  # of a tensor or an array
    known = isinstance(tasks, Sequence) and all(type(number) in (int, str) for number in tasks)
    if not isinstance(tasks, Sequence) or not known or len(tasks) != examples:
        got = str(len(tasks)) if isinstance(tasks, Sequence) and known else "something else"
        raise ConfigError(
            f"Lifelong: task: expected a whole number or a name for each of the {examples} examples, got {got}"
        )
    return list(tasks)


def rows_by_task(tasks: Sequence[int], device: torch.device) -> dict[int, Tensor]:
    """For each task, the indices of its examples in the batch."""
    each = torch.tensor(tasks, device=device)
    return {task: (each == task).nonzero().flatten() for task in sorted(set(tasks))}


def scatter_logits(logits: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The logits of each task at its rows of the batch; -inf for classes that the task of an example lacks."""
    classes, examples = max(answers.shape[1] for answers in logits), sum(map(len, rows))
    result = logits[0].new_full((examples, classes), -torch.inf)
    for places, answers in zip(rows, logits, strict=True):
        result[places, : answers.shape[1]] = answers
    return result
