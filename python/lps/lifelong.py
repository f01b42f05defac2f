"""One network for many tasks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lps.artifact.state import description as describe_state
from lps.artifact.state import fill as fill_from_state
from lps.artifact.write import save
from lps.batch import as_tensors, moved, picked, tensors_of
from lps.deploy.extraction import extract
from lps.deploy.extraction.formats import Target
from lps.deploy.serving import ServedTask, rows_by_task, run_exact, scatter_logits, validate_tasks
from lps.draft import Draft
from lps.errors import ConfigError, complain
from lps.frozen import find_frozen
from lps.inventory import Capacity, TaskSummary, capacity, notice, summary, task_summaries
from lps.life import drop_last, rename
from lps.metadata import Metadata
from lps.methods.lps.config import NORMS, PATTERNS, PRECISIONS, SHARINGS, WHOLE, LPSConfig
from lps.methods.lps.method import LPS
from lps.methods.lps.steppers import OptimizerFactory
from lps.names import label, number_of
from lps.options import shown
from lps.partition import Partition, find_partitions, parameter_of
from lps.private import PrivateTensors, default_norms, find_private
from lps.runs.checkpoint import Checkpoint
from lps.runs.events import Listener, TaskReport
from lps.skeleton import Skeleton
from lps.sources import batches, source_of
from lps.switch import Switch
from lps.task import Learnt, Task, TaskData
from lps_kernels.calls import Inputs, call, vectors
from lps_kernels.cutout import Cutout


class Lifelong(nn.Module):
    """A backbone whose weights are split among tasks, with a head per task.

    ``backbone`` maps a batch to ``features`` numbers per example. Its prunable weights (Linear, Conv1d/2d/3d and
    attention projections, except the names that a shell pattern in ``exclude`` matches) are split among the tasks; all
    its other parameters and its buffers are learnt with task 1 and frozen after it. Parameters with
    ``requires_grad=False`` never change, whatever the method; ``frozen`` gives their names instead. With
    ``norms="per-task"`` biases
    and normalisation layers are not frozen: every task learns its own copy of them; with ``norms="network"`` every task
    has a copy of the whole backbone, and nothing is split. The backbone's code is not changed:
    a task runs by writing its weights into the backbone's own parameters.

    A task is meant by its number, counted from 1, or by its name.

    Several threads may call a network in eval mode at once, with any tasks.

    A line on the standard error says what is split among the tasks and what is not, unless ``quiet``.
    """

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        *,
        pattern: str = "irregular",
        sharing: str = "elementwise",
        exclude: Sequence[str] = (),
        norms: str | None = None,
        frozen: Sequence[str] | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise ConfigError(f"Lifelong: backbone: expected an nn.Module, got {type(backbone).__name__}")
        self.backbone = backbone
        self.features = features
        self.pattern = pattern
        self.sharing = sharing
        self.exclude = tuple(exclude)
        self.norms = norms = default_norms(backbone) if norms is None else norms
        self.check_settings()
        self.frozen = find_frozen(backbone, frozen)
        found = find_partitions(backbone, exclude, self.frozen)
        self.partitions = nn.ModuleList(() if norms == WHOLE else found)
        if not (len(self.partitions) or norms == WHOLE):
            why = " that is not frozen (requires_grad=False)" if self.frozen else ""
            raise ConfigError(f"Lifelong: backbone: expected a Linear, Conv or attention layer to prune{why}, got none")
        self.private_names = find_private(backbone, norms) - self.frozen
        self.heads = nn.ModuleList()
        self.private = nn.ModuleList()  # one PrivateTensors per task
        self.learnt: list[Learnt] = []
        self.metadata = Metadata()  # saved in the file
        self.warned = False  # of frozen statistics that are far from a task's
        self._switch = Switch()
        if not quiet:
            complain("lps", notice(self))

    @property
    def active(self) -> int:
        """The task whose weights the backbone holds; 0 for none."""
        return self._switch.active

    @property
    def like(self) -> nn.Parameter:
        """A weight of the backbone, whose dtype and device inputs and new heads get too."""
        return next((weight for _, weight in self.prunable()), next(self.backbone.parameters()))

    @property
    def learning(self) -> bool:
        """Whether a task is being learnt."""
        return self._switch.learning

    @property
    def tasks(self) -> list[TaskSummary]:
        """The learnt tasks, with their names, classes, accuracies, shares and densities."""
        return task_summaries(self)

    def capacity(self) -> Capacity:
        """How many weights each task owns and how many are free, per layer and in all."""
        return capacity(self)

    def summary(self) -> str:
        """A table of the backbone's parameters: which are split among the tasks, which are not and why."""
        return summary(self)

    def check_settings(self) -> None:
        """Refuse an unknown pattern, sharing or norms; the first two may be set anew before each task."""
        settings = (
            ("pattern", self.pattern, PATTERNS),
            ("sharing", self.sharing, SHARINGS),
            ("norms", self.norms, (*NORMS, WHOLE)),
        )
        for name, value, choices in settings:
            if value not in choices:
                raise ConfigError(f"Lifelong: {name}: expected one of {', '.join(choices)}, got {value}")

    def forward(self, x: Inputs, task: int | str | Sequence[int | str] | Tensor | None = None) -> Tensor:
        """Logits of a task; without ``task``, of the task that ran or was learnt last.

        Inputs are a tensor, a tuple of tensors or a mapping of them by name, as the backbone takes them; arrays of
        numpy become tensors. A task per example (a list of numbers or names, or a tensor of whole numbers) goes to
        :meth:`serve`.
        """
        if not (task is None or isinstance(task, int | str)):
            return self.serve(x, task)
        logits: Tensor
        if torch.compiler.is_compiling():  # a graph cannot hold locks: a compiled network is for one thread
            from lps import compiled  # noqa: PLC0415 - loads torch's compiler

            compiled.activate(self, task)
            logits = compiled.classify(self, vectors(call(self.backbone, x)), None)
        else:
            number = self._number(task)
            logits = self._classify(self._features(as_tensors(x), number), number)
        return logits

    def _features(self, x: Inputs, task: int) -> Tensor:
        """The backbone's output for a task.

        Where other threads run another task for long, this call composes its own weights, and so it does where
        gradients of the inputs are wanted: the backward pass reads the weights again, after the next task may have been
        written. The result has the same bits either way.
        """
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(x))
        for_inputs = wanted and not self.learning
        composes = for_inputs and not any(weight.requires_grad for _, weight in self.prunable())
        if composes or not self._switch.enter(task, self._write):
            served = ServedTask(self.prunable(), task, self._replaced(task), exact=True)
            return self._vectors(run_exact(self.backbone, x, served))
        try:
            output = call(self.backbone, x)
        finally:
            self._switch.leave()
        return self._vectors(output)

    def _vectors(self, output: Any) -> Tensor:
        """The features in what the backbone has returned."""
        try:
            return vectors(output)
        except TypeError as error:
            raise ConfigError(f"Lifelong: backbone: {error}") from None

    def features_of(self, inputs: Inputs) -> Tensor:
        """The features of a batch from the weights that the backbone holds now, in learning."""
        features = self._vectors(call(self.backbone, inputs))
        self.check_features(features)
        return features

    def activate(self, task: int | str | None) -> None:
        """Write the weights of a task into the backbone, unless it holds them already."""
        self._switch.change(self._number(task), self._write)

    def _number(self, task: int | str | None) -> int:
        """The checked number of a task; for None, of the task that ran or was learnt last."""
        if not self.heads:
            raise ConfigError("Lifelong: task: expected at least one learnt task, got none; call learn first")
        number = self.active or len(self.learnt) if task is None else number_of(self.learnt, task)
        if not self.learning:
            self._check_number(number)
        return number

    @torch.no_grad()
    def _write(self, task: int) -> None:
        self.require_backbone()
        for partition, weight in self.prunable():
            partition.compose(task, out=weight)
        for tensor, value in self.private_pairs(task):
            tensor.copy_(value)
        torch.clear_autocast_cache()  # which may hold casts of the weights just replaced

    @contextmanager
    def transaction(self) -> Iterator[Draft]:
        """A block that adds one task: inside it the backbone may be trained, and the draft's task is active.

        Unless the draft is committed by the end of the block, the network is restored to its state before the block.
        """
        self.require_backbone()
        self.refuse_damaged()
        before = self._switch.begin_learning(len(self.learnt) + 1)
        draft = None
        try:
            draft = Draft(self)
            yield draft
        finally:
            committed = draft is not None and draft.committed
            if draft is not None and not committed:
                draft.roll_back()
            self._switch.end_learning()
            self._freeze_norm_statistics()  # private norms of the task were training
            if committed or before:
                self.activate(len(self.learnt) if committed else before)

    @torch.no_grad()
    def serve(self, x: Inputs, tasks: Sequence[int | str] | Tensor) -> Tensor:
        """Logits with one task per example, from the one copy of the weights.

        Examples of one task run as one batch. No weights are written, so changing tasks between calls costs nothing.
        Where tasks differ in their number of classes, logits of missing classes are -inf.
        """
        if self.learning:
            raise ConfigError("Lifelong: task: a task per example is not available during learn()")
        x = as_tensors(x)
        first = next(tensors_of(x))
        each = validate_tasks(tasks, len(first))
        numbers = {task: self.check_task(task) for task in set(each)}
        rows = rows_by_task([numbers[task] for task in each], first.device)
        logits = []
        for task, places in rows.items():
            with ServedTask(self.prunable(), task, self._replaced(task)):
                features = self._vectors(call(self.backbone, picked(x, places)))
            self.check_features(features)
            logits.append(self.heads[task - 1](features))
        return scatter_logits(logits, list(rows.values())) if rows else self.like.new_empty((0, 0))

    def _replaced(self, task: int) -> dict[int, Tensor]:
        """The private tensors of a task, by the id() of the backbone's tensors that they replace."""
        return {id(tensor): value for tensor, value in self.private_pairs(task)}

    def _classify(self, features: Tensor, task: int | None) -> Tensor:
        """Logits from the head of a task, by default the active one."""
        if features.shape[-1:] != (self.features,):  # one example without a batch is fine
            self.check_features(features)
        logits: Tensor = self.heads[(task or self.active) - 1](features)
        return logits

    def check_features(self, features: Tensor) -> None:
        """Refuse what a backbone gives if it is not ``features`` numbers per example."""
        if features.dim() != 2 or features.shape[1] != self.features:
            expected = f"a backbone that gives [examples, {self.features}]"
            raise ConfigError(f"Lifelong: features: expected {expected}, got {list(features.shape)}")

    def check_task(self, task: int | str) -> int:
        """The number of a task; refuses one that has not been learnt, or was lost with a damaged file."""
        number = number_of(self.learnt, task)
        self._check_number(number)
        return number

    def _check_number(self, number: int) -> None:
        if not 1 <= number <= len(self.learnt):
            raise ConfigError(f"Lifelong: task: expected 1 to {len(self.learnt)}, got {shown(number)}")
        self._refuse_damage(number)

    @property
    def can_run(self) -> bool:
        """Whether there is a network, and not only its tensors, as of a file whose network is not known."""
        return not isinstance(self.backbone, Skeleton)

    def require_backbone(self) -> None:
        """Refuse to run a network of which the tensors are known, but not the code."""
        if isinstance(self.backbone, Skeleton):
            self.backbone.refuse()

    def refuse_damaged(self) -> None:
        """Refuse a network that was salvaged from a damaged file and has lost tasks."""
        for task in range(1, len(self.learnt) + 1):
            self._refuse_damage(task)

    def _refuse_damage(self, task: int) -> None:
        learnt = self.learnt[task - 1]
        if learnt.damage:
            raise ConfigError(
                f"Lifelong: {label(task, learnt.name)} could not be salvaged: {learnt.damage}; load a whole copy of it"
            )

    def prunable(self) -> Iterator[tuple[Partition, nn.Parameter]]:
        """Every partition with the backbone's parameter that it splits."""
        for partition in self.partitions:
            assert isinstance(partition, Partition)
            yield partition, parameter_of(self.backbone, partition.name)

    def common_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters that no task owns, and buffers: learnt with task 1 and frozen after it, or private."""
        split = {id(weight) for _, weight in self.prunable()}
        for name, parameter in self.backbone.named_parameters():
            if id(parameter) not in split:
                yield name, parameter
        yield from self.backbone.named_buffers()

    def tensors_of(self, task: int) -> Iterator[tuple[str, Tensor]]:
        """The common tensors as this task runs with them."""
        values = self.private_of(task) if self.private_names else {}
        for name, tensor in self.common_tensors():
            yield name, values.get(name, tensor)

    def private_of(self, task: int) -> dict[str, Tensor]:
        """A learnt task's copies of the private tensors, by their names in the backbone."""
        private = self.private[task - 1]
        assert isinstance(private, PrivateTensors)
        return private.tensors()

    def private_pairs(self, task: int) -> list[tuple[Tensor, Tensor]]:
        """Every private tensor of the backbone with a learnt task's own copy of it."""
        if not self.private_names:
            return []
        values = self.private_of(task)
        return [(tensor, values[name]) for name, tensor in self.common_tensors() if name in values]

    def add_private(self, values: Mapping[str, Tensor]) -> None:
        """Append a task's copies of the private tensors."""
        self.private.append(PrivateTensors(values))

    def common_parameters(self) -> list[nn.Parameter]:
        """The parameters among the common tensors, without frozen ones."""
        common = [(name, tensor) for name, tensor in self.common_tensors() if isinstance(tensor, nn.Parameter)]
        return [tensor for name, tensor in common if name not in self.frozen]

    def train(self, mode: bool = True) -> Lifelong:
        """As for any module, but normalisation layers with frozen statistics stay in eval mode."""
        super().train(mode)
        self._freeze_norm_statistics()
        return self

    def _freeze_norm_statistics(self) -> None:
        """Put norms that learnt tasks depend on into eval mode; private norms of a task being learnt keep training."""
        frozen = [*self.heads[: len(self.learnt)]]
        if self.learnt and not (self.learning and self.private_names):
            frozen.append(self.backbone)
        for module in (inner for outer in frozen for inner in outer.modules()):
            if isinstance(module, _NormBase):
                module.eval()

    @contextmanager
    def keep_modes(self) -> Iterator[None]:
        """Restore the train or eval mode of every submodule afterwards, except of norms frozen inside the block."""
        modes = [(module, module.training) for module in self.modules()]
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            self.heads.train(self.training)
            self._freeze_norm_statistics()

    def blank_copy(self) -> Lifelong:
        """A network without tasks, with a copy of this backbone and the same settings."""
        return Lifelong(
            deepcopy(self.backbone),
            self.features,
            pattern=self.pattern,
            sharing=self.sharing,
            exclude=self.exclude,
            norms=self.norms,
            frozen=sorted(self.frozen),
            quiet=True,
        )

    def get_extra_state(self) -> Tensor:
        """The entry of the state_dict that describes the tasks, so that a network without them can load it."""
        return describe_state(self)

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing is left to do: the description was used before the tensors were loaded."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        """Take over all tasks of the state, or refuse it and stay as it was.

        Called by ``load_state_dict``, of this module or of one that it is a part of, before the submodules load their
        tensors. The state is tried on a copy first. The weights that the backbone then holds belong to no known task.
        """
        if self.learning:
            raise ConfigError(f"Lifelong: load_state_dict: task {self.active} is being learnt; wait until it is done")
        if local_metadata.get("assign_to_params_buffers"):  # tied weights would come apart
            raise ConfigError("Lifelong: load_state_dict: expected assign=False, got True; leave it out")
        twin = self.blank_copy()
        own = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        fill_from_state(twin, own, list(self.heads))
        self._switch.forget()
        self.partitions, self.heads, self.private = twin.partitions, twin.heads, twin.private
        self.learnt, self.metadata, self.pattern, self.sharing = twin.learnt, twin.metadata, twin.pattern, twin.sharing
        if self.learnt:
            self.requires_grad_(False)
        for module in (self.partitions, self.heads, self.private):
            module.train(self.training)
        self._freeze_norm_statistics()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def learn(
        self,
        task: Task,
        config: LPSConfig | None = None,
        *,
        optimizer: OptimizerFactory | None = None,
        listener: Listener | None = None,
        checkpoint: Checkpoint | None = None,
        progress: bool = True,
    ) -> TaskReport:
        """Learn the next task and leave the network in eval mode; if that fails for any reason, it stays as it was.

        ``optimizer`` makes an optimiser, instead of Adam, from the parameters it is given; the weights then go through
        the differentiable composition instead of the fused step. ``listener`` is called at every step and epoch.
        ``checkpoint`` keeps the state of the task in a directory; if that holds a state of this task, learning resumes
        from it. ``progress`` shows how learning goes on the standard error: a bar on a terminal, elsewhere a line now
        and then. At the end the accuracy on the task's test examples is measured, if it has any: the report, ``tasks``
        and the file have it.
        """
        method = LPS(self, config or LPSConfig(), optimizer=optimizer)
        if not progress or sys.stderr is None:  # as in a process without a console
            return method.learn(task, listener=listener, checkpoint=checkpoint, tested=True)
        from lps.runs.progress import learn_with_progress  # noqa: PLC0415 - brings tqdm

        return learn_with_progress(method, task, listener, checkpoint)

    @torch.no_grad()
    def accuracy(
        self,
        task: int | str,
        examples: TaskData | None,
        batch_size: int = 200,
        *,
        precision: str = "fp32",
        loader: Mapping[str, Any] | None = None,
    ) -> float:
        """Share of correctly classified examples, in eval mode; of correct labels where an example has several.

        NaN where there are no examples, as for a task without a test set.

        ``precision="bf16"`` runs under autocast. ``loader`` holds options for the DataLoader, as in a task.
        """
        if precision not in PRECISIONS:
            raise ConfigError(f"Lifelong: precision: expected one of {', '.join(PRECISIONS)}, got {precision}")
        if examples is None:
            return float("nan")
        number = self._number(task)  # refused before the modes change: another thread may be learning
        device = next(self.parameters()).device
        right = total = 0
        context = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        with self.keep_modes(), context:
            self.eval()
            for inputs, labels in batches(source_of(examples, once=True), batch_size, loader=loader):
                logits, wanted = self(moved(inputs, device), task=number), labels.to(device)
                hits = (logits > 0) == (wanted > 0.5) if wanted.dim() == 2 else logits.argmax(1) == wanted
                right += int(hits.sum())
                total += hits.numel()
        return right / total if total else float("nan")

    def extract(self, task: int | str, *, batch_size: int = 128, portable: bool = False) -> Cutout:
        """Cut one task out: a plain module that maps inputs to its logits, smaller and faster than this network.

        It needs ``lps_kernels`` and torch, and gives the same logits up to rounding: normalisations are folded and
        sums run in another order. Layers get the format that is expected to be fastest at ``batch_size``; with
        ``portable`` all are torch's own, for export. This network stays as it was. Where
        ``metadata.input_shape`` is known, more can be fused and the formats are chosen better.

        The formats are for the device that this network is on. What is fastest is modelled for CPUs alone: on a GPU
        only whole rows and columns make a layer smaller, scattered weights are held dense, and ``notes`` say so.
        """
        if self.learning:
            raise ConfigError(f"Lifelong: extract: task {self.active} is being learnt; wait until it is done")
        number = self.check_task(task)
        self.require_backbone()
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigError(
                f"Lifelong: extract: batch_size: expected a whole number of at least 1, got {batch_size!r}"
            )
        return extract(self, number, Target(batch_size, portable, next(self.parameters()).device))

    def export(self, task: int | str, path: str | Path, format: str | None = None) -> str:
        """Write one task for use elsewhere, as ``python -m lps.export`` does: ``torch`` (.pt2), ``onnx`` or ``lps``.

        By default the format is that of the path's ending. Says what was checked before the file was written.
        """
        from lps.deploy.exporters import export_task  # noqa: PLC0415  it needs this module

        return export_task(self, task, Path(path), format)

    def rename(self, task: int | str, name: str) -> None:
        """Give a task another name; its answers and its digest stay as they are."""
        if self.learning:
            raise ConfigError(f"Lifelong: rename: task {self.active} is being learnt; wait until it is done")
        rename(self, task, name)

    def drop_last(self) -> int:
        """Remove the last task; returns how many weights it owned, which are free again.

        All other tasks stay as they are, to the bit. Earlier tasks cannot be removed: later ones reuse their weights.
        """
        if self.learning:
            raise ConfigError(f"Lifelong: drop_last: task {self.active} is being learnt; wait until it is done")
        with self._switch.alone():
            freed = drop_last(self)
        if self.can_run:
            self.activate(max(number for number, task in enumerate(self.learnt, 1) if not task.damage))
        return freed

    def digest(self, task: int | str) -> str:
        """sha256 over the task's composed weights, its head and the common tensors, with their names and shapes."""
        number = number_of(self.learnt, task)
        digest = hashlib.sha256()

        def add(name: str, tensor: Tensor) -> None:
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)

        with torch.no_grad():
            for partition, _ in self.prunable():
                weight = torch.empty_like(partition.w_bar)
                partition.compose(number, out=weight)
                add(partition.name, weight)
        for name, tensor in self.tensors_of(number):
            add(name, tensor)
        for name, tensor in self.heads[number - 1].state_dict().items():
            add(f"head.{name}", tensor)
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write everything into one file, atomically."""
        save(self, Path(path))
