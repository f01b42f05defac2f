"""One network for many tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import Dataset

from lps.artifact.write import save
from lps.deploy.extraction import extract
from lps.deploy.serving import ServedTask, rows_by_task, scatter_logits, validate_tasks
from lps.errors import ConfigError
from lps.metadata import Metadata
from lps.methods.lps.config import PATTERNS, SHARINGS, LPSConfig
from lps.methods.lps.phases import learn_task
from lps.methods.lps.steppers import OptimizerFactory
from lps.partition import Partition, find_partitions
from lps.runs.events import Listener, TaskReport
from lps.task import Batch, Learnt, Task, batches
from lps_kernels.cutout import Cutout


class Lifelong(nn.Module):
    """A backbone whose weights are shared out among tasks, with a head per task.

    ``backbone`` maps a batch to ``features`` numbers an example. Its prunable weights (those of Linear, Conv1d/2d/3d
    and attention projections that no shell pattern in ``exclude`` matches) are split among the tasks; all its other
    parameters and its buffers are learnt with task 1 and frozen after it. Its code is left alone: a task runs by
    writing its weights into the backbone's own parameters.
    """

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        *,
        pattern: str = "irregular",
        sharing: str = "elementwise",
        exclude: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise ConfigError(f"Lifelong: backbone: expected an nn.Module, got {type(backbone).__name__}")
        self.backbone = backbone
        self.features = features
        self.pattern = pattern
        self.sharing = sharing
        self.exclude = tuple(exclude)
        self.check_modes()
        self.partitions = nn.ModuleList(find_partitions(backbone, exclude))
        if not len(self.partitions):
            raise ConfigError("Lifelong: backbone: expected a Linear, Conv or attention layer to prune, got none")
        self.heads = nn.ModuleList()
        self.learnt: list[Learnt] = []
        self.metadata = Metadata()  # goes into the file
        self._active = 0  # the task whose weights the backbone holds
        self._learning = False

    def check_modes(self) -> None:
        """Pattern and sharing may be set anew before each task: refuse what does not exist."""
        for name, value, choices in (("pattern", self.pattern, PATTERNS), ("sharing", self.sharing, SHARINGS)):
            if value not in choices:
                raise ConfigError(f"Lifelong: {name}: expected one of {', '.join(choices)}, got {value}")

    def forward(self, x: Tensor, task: int | Sequence[int] | Tensor | None = None) -> Tensor:
        """Logits of a task, counted from 1; without one, of the task that ran or was learnt last.

        A task for each example (a list, or a tensor of whole numbers) is for serving: see :meth:`serve`.
        """
        if not (task is None or isinstance(task, int)):
            return self.serve(x, task)
        self.activate(task)
        features = self.backbone(x)
        logits: Tensor = self._classify(features)
        return logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def activate(self, task: int | None) -> None:
        """Write the weights of a task into the backbone, unless it holds them already."""
        if not self.heads:
            raise ConfigError("Lifelong: task: expected at least one learnt task, got none; call learn first")
        if task is None:
            task = self._active or len(self.learnt)
        if task == self._active:
            return
        if self._learning:
            raise ConfigError(f"Lifelong: task: expected {self._active}, which is being learnt, got {task}")
        self.check_task(task)
        self._active = 0  # until all layers are written
        with torch.no_grad():
            for partition, weight in self.prunable():
                partition.compose(task, out=weight)
        torch.clear_autocast_cache()  # which may hold casts of the weights just replaced
        self._active = task

    @torch.no_grad()
    def serve(self, x: Tensor, tasks: Sequence[int] | Tensor) -> Tensor:
        """Logits of every example under a task of its own, from the one copy of the weights.

        Examples of one task run together; no weights are written, so the next call may ask for any other tasks at no
        cost. Where tasks have unlike numbers of classes, the missing ones are -inf.
        """
        if self._learning:
            raise ConfigError("Lifelong: task: a task per example is not available during learn()")
        rows = rows_by_task(validate_tasks(tasks, len(x)), x.device)
        for task in rows:
            self.check_task(task)
        logits = []
        for task, places in rows.items():
            with ServedTask(self.prunable(), task):
                features = self.backbone(x[places])
            logits.append(self.heads[task - 1](features))
        return scatter_logits(logits, list(rows.values())) if rows else x.new_empty((0, 0))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _classify(self, features: Tensor) -> Tensor:
        """The head of the active task; not compiled, so that a new task compiles nothing anew."""
        logits: Tensor = self.heads[self._active - 1](features)
        return logits

    def check_task(self, task: int) -> None:
        """Refuse a task that has not been learnt."""
        if not 1 <= task <= len(self.learnt):
            raise ConfigError(f"Lifelong: task: expected 1 to {len(self.learnt)}, got {task}")

    def prunable(self) -> Iterator[tuple[Partition, nn.Parameter]]:
        """Every partition with the backbone's parameter that it governs."""
        for partition in self.partitions:
            assert isinstance(partition, Partition)
            yield partition, self.backbone.get_parameter(partition.name)

    def common_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters that no task owns, and buffers: learnt with task 1, frozen after it, used by every task."""
        shared_out = {id(weight) for _, weight in self.prunable()}
        for name, parameter in self.backbone.named_parameters():
            if id(parameter) not in shared_out:
                yield name, parameter
        yield from self.backbone.named_buffers()

    def tensors_of(self, task: int) -> Iterator[tuple[str, Tensor]]:
        """The common tensors as this task runs with them."""
        return self.common_tensors()

    def common_parameters(self) -> list[nn.Parameter]:
        """The parameters among the common tensors."""
        return [tensor for _, tensor in self.common_tensors() if isinstance(tensor, nn.Parameter)]

    def train(self, mode: bool = True) -> Lifelong:
        """As for any module, but statistics of normalisation layers stay as task 1 left them."""
        super().train(mode)
        self._rest_norms()
        return self

    def _rest_norms(self) -> None:
        if self.learnt:
            for module in self.backbone.modules():
                if isinstance(module, _NormBase):
                    module.eval()

    @contextmanager
    def keep_modes(self) -> Iterator[None]:
        """Give every submodule the mode back that it has now, except norms that were frozen meanwhile."""
        modes = [(module, module.training) for module in self.modules()]
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            self.heads.train(self.training)
            self._rest_norms()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As for any module; the weights that the backbone then holds belong to no known task."""
        self._active = 0
        return super().load_state_dict(*args, **kwargs)

    def learn(
        self,
        task: Task,
        config: LPSConfig | None = None,
        *,
        optimizer: OptimizerFactory | None = None,
        listener: Listener | None = None,
    ) -> TaskReport:
        """Learn the next task; if that fails for any reason the network stays as it was.

        ``optimizer`` makes another optimiser than Adam from the parameters it is given; their weights then go through
        the differentiable composition instead of the fused step. ``listener`` is told of every step and epoch.
        """
        return learn_task(self, task, config or LPSConfig(), optimizer, listener or Listener())

    @torch.no_grad()
    def accuracy(self, task: int, examples: Dataset[Batch], batch_size: int = 1000) -> float:
        """Share of examples that the task classifies rightly, in eval mode."""
        device = next(self.parameters()).device
        right = total = 0
        with self.keep_modes():
            self.eval()
            for inputs, labels in batches(examples, batch_size):
                logits = self(inputs.to(device), task=task)
                right += int((logits.argmax(1) == labels.to(device)).sum())
                total += len(labels)
        return right / total if total else float("nan")

    def extract(self, task: int, *, batch_size: int = 128, portable: bool = False) -> Cutout:
        """Cut one task out: a plain module that maps inputs to its logits, smaller than this network and faster.

        It needs ``lps_kernels`` and torch, and answers as this network does up to rounding: normalisations are folded
        and sums run in another order. Layers get the format that is expected to be fastest at ``batch_size``; with
        ``portable`` all are torch's own, for export. This network stays as it was. Where
        ``metadata.input_shape`` is known, more can be fused and the formats are chosen better.
        """
        if self._learning:
            raise ConfigError(f"Lifelong: extract: task {self._active} is being learnt; wait until it is done")
        self.check_task(task)
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigError(
                f"Lifelong: extract: batch_size: expected a whole number of at least 1, got {batch_size!r}"
            )
        return extract(self, task, batch_size, portable)

    def digest(self, task: int) -> str:
        """sha256 over the task's composed weights, its head and the common tensors, with their names and shapes."""
        digest = hashlib.sha256()

        def add(name: str, tensor: Tensor) -> None:
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)

        with torch.no_grad():
            for partition, _ in self.prunable():
                weight = torch.empty_like(partition.w_bar)
                partition.compose(task, out=weight)
                add(partition.name, weight)
        for name, tensor in self.common_tensors():
            add(name, tensor)
        for name, tensor in self.heads[task - 1].named_parameters():
            add(f"head.{name}", tensor)
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write everything into one file, atomically."""
        save(self, Path(path))
