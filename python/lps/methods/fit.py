"""The one training loop: batches, loss, listener, divergence and checkpoint, for every method.

A method provides a :class:`Learner` with its phases and its step; :class:`Fit` runs them. Both have a ``state_dict``
that can be saved after any step; a loop that loads it continues as if it had not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from lps.artifact.layout import Count
from lps.batch import Batch, mapped, moved, tensors_of
from lps.errors import ConfigError, DataError, DivergedError, FileFormatError, StoppedError, in_a_sentence
from lps.methods.first_batch import check_labels, of_the_task
from lps.methods.schedule import learning_rate
from lps.observed import joined, seen
from lps.options import shown
from lps.runs.checkpoint import Checkpoint, fitting, number_of
from lps.runs.events import Listener, Resumed, Row, TaskReport
from lps.signature import Signature
from lps.sources import Arrays, batches, is_foreign
from lps.task import Task
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

# Reading the loss waits for the device, so it is checked once per this many steps.
LOSS_CHECK_STEPS = 50


class Phase(NamedTuple):
    """A part of learning a task."""

    name: str
    epochs: int
    whole: bool = False  # whether it must not end early


class FitConfig(Protocol):
    """The fields that the loop needs of a method's configuration for one task."""

    @property
    def batch_size(self) -> int:
        """Examples per step."""

    @property
    def clip_norm(self) -> float | None:
        """The longest gradient of a step, if it is bounded."""

    @property
    def patience(self) -> int | None:
        """Epochs without a better validation accuracy after which a phase ends, if it may."""

    @property
    def schedule(self) -> str:
        """How the learning rate falls within a phase."""

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """``bf16`` runs forward and backward passes under autocast."""

    @property
    def channels_last(self) -> bool:
        """Whether image batches are converted to the channels-last memory format."""


class Learner(Protocol):
    """How a method learns one task: what the loop calls, in this order."""

    net: Lifelong
    number: int
    phases: Sequence[Phase]
    device: torch.device
    lr: float  # of the latest step, for the log

    @property
    def rho(self) -> float:
        """The penalty of the latest step, for the log."""

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """Make the phase's changes to the network and prepare its steps; not called again when a phase is resumed."""

    def begin_epoch(self) -> None:
        """Called before the first step of every epoch."""

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """Called before every step of a phase, counted from 0."""

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits of a batch, for the loss."""

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """What is minimised: the loss of the batch, with whatever the method adds to it."""

    def step(self, lr_factor: float) -> None:
        """One optimiser step from the gradients of a backward pass; clears them."""

    def validate(self) -> float:
        """Accuracy on the validation examples; NaN if there are none."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning the task has changed so far."""

    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state, at any place between two steps; ``phase`` is the latest that had begun."""


@dataclass
class Position:
    """How far learning has come."""

    phase: Count = 0  # index of the phase
    begun: bool = False  # whether begin_phase was called for it
    epoch: Count = 0  # complete epochs of the phase
    batch: Count = 0  # batches of the epoch under way
    step: Count = 0  # steps of the phase
    total: Count = 0  # steps of the task


class Fit:
    """Learns one task with a method's learner."""

    def __init__(
        self,
        learner: Learner,
        task: Task,
        config: FitConfig,
        listener: Listener,
        checkpoint: Checkpoint | None,
        belongs_to: dict[str, Any],
        signature: Signature | None = None,
    ) -> None:
        """``belongs_to`` identifies task, network and settings in JSON values; a state of others is refused.

        ``signature`` is the kind of inputs that the task's first batch has, if one was looked at.
        """
        self.learner, self.task, self.config = learner, task, config
        self.listener, self.checkpoint, self.belongs_to = listener, checkpoint, belongs_to
        self.report = TaskReport(learner.number, task.name)
        self.position = Position()
        self.steps = task.steps_per_epoch(config.batch_size)
        self.foreign = is_foreign(task.train)
        self.shuffle = torch.Generator().manual_seed(torch.initial_seed())
        self._epoch_start = self.shuffle.get_state()
        self._losses, self._seen = torch.zeros((), device=learner.device), 0
        self._inputs = torch.zeros_like(self._losses)  # their sum, to tell why a loss became NaN
        self._begin, self._before = perf_counter(), 0.0  # seconds that earlier processes spent on the task
        self._best, self._waited = float("-inf"), 0  # validation accuracy of the phase; epochs since
        self._rows = 0  # rows given to the listener so far
        self.signature = signature or []

    def run(self) -> TaskReport:
        """Run all phases, from the start or from the checkpoint's state."""
        phases = self.learner.phases
        self.listener.start(self.learner.number, self.task.name, sum(phase.epochs for phase in phases) * self.steps)
        state = None if self.checkpoint is None else self.checkpoint.load()
        if state is not None:
            self.load_state_dict(state)
        while self.position.phase < len(phases):
            self._run_phase(phases[self.position.phase])
        return self.report

    def _run_phase(self, phase: Phase) -> None:
        name, epochs = phase.name, phase.epochs
        position, begin, before = self.position, perf_counter(), self.report.seconds.get(name, 0.0)

        def count_seconds() -> None:
            self.report.seconds[name] = before + perf_counter() - begin

        if not position.begun:
            self.learner.begin_phase(name, self)
            position.begun = True
        patience = epochs if phase.whole or self.config.patience is None else self.config.patience
        while position.epoch < epochs and self._waited < patience:
            self._run_epoch(name, epochs * self.steps, count_seconds)
        if position.epoch < epochs:
            self.log(name, "stopped", position.epoch, accuracy=self._best)
            self.listener.skipped((epochs - position.epoch) * self.steps)
        self._best, self._waited = float("-inf"), 0
        count_seconds()
        self.position = Position(phase=position.phase + 1, total=position.total)
        self._save()

    def _run_epoch(self, phase: str, steps: int, count_seconds: Callable[[], None]) -> None:
        position, begin, seen = self.position, perf_counter(), self._seen
        self.learner.begin_epoch()
        if position.batch == 0:
            self._epoch_start = self.shuffle.get_state()
        for inputs, labels in self._batches():
            if position.batch == self.steps:
                break  # a user's iterable with more batches than its length
            self.learner.before_step(phase, position.step, self)
            loss = self.step(inputs, labels, learning_rate(self.config.schedule, position.step / steps))
            self._losses += loss * len(labels)
            self._seen += len(labels)
            position.batch += 1
            position.step += 1
            position.total += 1
            if position.step % LOSS_CHECK_STEPS == 0:
                self._check_loss(phase)
            self.listener.step(phase, len(labels))
            self._save_or_stop(count_seconds)
        if position.batch < self.steps:
            raise DataError(
                f"task {self.task.name}: train: expected {self.steps} batches, as its length says, got {position.batch}"
            )
        self._check_loss(phase)
        rate = (self._seen - seen) / (perf_counter() - begin)
        values = {
            "loss": self._losses.item() / self._seen,
            "accuracy": self.learner.validate(),
            "samples_per_second": rate,
        }
        self.log(phase, "epoch", position.epoch + 1, **values)
        better = values["accuracy"] > self._best
        self._best, self._waited = (values["accuracy"], 0) if better else (self._best, self._waited + 1)
        position.epoch, position.batch = position.epoch + 1, 0
        self._losses, self._seen = torch.zeros_like(self._losses), 0
        self._epoch_start = self.shuffle.get_state()
        if self.foreign:  # it can only resume at the start of an epoch, so that state must be on disk
            count_seconds()
            self._save()

    def _batches(self) -> Iterator[Batch]:
        task = self.task
        found = batches(
            task.train,
            self.config.batch_size,
            shuffle=self.shuffle,
            skip=self.position.batch,
            loader=task.loader,
            sampler=task.sampler,
        )
        with of_the_task(task, "train"):
            for inputs, labels in found:
                self.signature = joined(self.signature or seen(inputs), inputs)
                yield inputs, labels

    def step(self, inputs: Inputs, labels: Tensor, lr_factor: float) -> Tensor:
        """One step on one batch; returns its loss."""
        if not isinstance(self.task.train, Arrays) and self.task.loss is None:
            with of_the_task(self.task, "train"):
                check_labels(self.task, labels)
        inputs = moved(inputs, self.learner.device)
        for tensor in tensors_of(inputs):
            if tensor.is_floating_point():  # a sum is NaN if anything in it is
                self._inputs += tensor.sum()
        if self.task.augment is not None:
            inputs = self.task.augment(inputs)
        if self.config.channels_last:
            inputs = mapped(inputs, _channels_last)
        torch.clear_autocast_cache()  # or an autocast context around learn() would reuse the first step's weights
        with precision_of(self.config, self.learner.device):
            logits = self.learner.logits(inputs)
            if logits.shape != (len(labels), self.task.classes):
                expected = [len(labels), self.task.classes]
                raise ConfigError(f"task {self.task.name}: head: expected logits {expected}, got {list(logits.shape)}")
            loss = self.task.compute_loss(logits, labels)
            if loss.dim():
                raise ConfigError(f"task {self.task.name}: loss: expected one number, got shape {list(loss.shape)}")
            objective = self.learner.objective(loss, inputs)
        objective.backward()  # type: ignore[no-untyped-call]
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.learner.net.parameters(), self.config.clip_norm)
        self.learner.step(lr_factor)
        return loss.detach()

    def _check_loss(self, phase: str) -> None:
        if not isfinite(self._losses.item()):
            if self._inputs.isnan().item():
                raise DataError(
                    f"task {self.task.name}: train: inputs have NaN in them (phase {phase}, epoch "
                    f"{self.position.epoch + 1}); mend or leave out these examples; the task is dropped and earlier "
                    "ones are as they were"
                )
            raise self.diverged(f"the loss became {self._losses.item()}", phase, self.position.epoch + 1)

    def diverged(self, what: str, phase: str, epoch: int) -> DivergedError:
        """The error to raise for a task that diverged."""
        return DivergedError(
            f"task {self.learner.number}: {what} in phase {phase}, epoch {epoch}; the task is "
            f"dropped and earlier ones are as they were; try a smaller learning rate (now {self.learner.lr:g}) or rho"
        )

    def log(self, phase: str, event: str, epoch: int, layer: str = "", /, **values: float) -> None:
        """Give the listener a row for this event."""
        learner, seconds = self.learner, self._before + perf_counter() - self._begin
        place = learner.number, phase, event, epoch, self.position.total, seconds, learner.lr, learner.rho
        row = replace(Row(*place, layer=layer), **values)  # type: ignore[arg-type]
        self._rows += 1
        self.listener.row(row)

    def _save_or_stop(self, count_seconds: Callable[[], None]) -> None:
        if self.checkpoint is None:
            return
        stop = self.checkpoint.stop  # read before due(), which it makes true: a signal may come at any moment
        if self.checkpoint.due() and not self.foreign:
            count_seconds()
            self._save()
        if stop:
            raise StoppedError(f"task {self.learner.number}: stopped after {self.position.total} steps")

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The state after the latest step."""
        devices = range(torch.cuda.device_count())
        return {
            "belongs_to": self.belongs_to,
            "position": asdict(self.position),
            "epoch_start": self._epoch_start,
            "losses": self._losses,
            "seen": self._seen,
            "rows": self._rows,
            "patience": [self._best, self._waited],
            "seconds": self._before + perf_counter() - self._begin,
            "report": asdict(self.report),
            "inputs": msgspec.to_builtins(self.signature),
            "generators": [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)],
            "learner": self.learner.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned for the same task and configuration."""
        number_of(state)
        check_same(state["belongs_to"], self.belongs_to)
        try:
            self._restore(state)
        except (ConfigError, torch.OutOfMemoryError):  # of the user's optimiser, or of the machine
            raise
        # Whatever a file that was not written by us can bring about.
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            reason = in_a_sentence(repr(error) if isinstance(error, LookupError) else error)
            raise FileFormatError(
                f"resume: the state does not fit the task: {reason}; delete it to learn the task from its start"
            ) from None
        phases = self.learner.phases
        place = phases[min(self.position.phase, len(phases) - 1)]
        epoch = min(self.position.epoch + 1, max(1, place.epochs))
        self.listener.resumed(Resumed(place.name, epoch, self.position.total, self._rows, self.foreign))

    def _restore(self, state: dict[str, Any]) -> None:
        if state["position"].keys() != asdict(self.position).keys():
            raise ValueError(f"position: expected {', '.join(asdict(self.position))}, got {list(state['position'])}")
        self.position = self._checked_position(msgspec.convert(state["position"], Position))
        self.shuffle.set_state(state["epoch_start"])
        self._epoch_start = state["epoch_start"]
        self._losses = fitting("losses", state["losses"], self._losses.cpu()).to(self.learner.device)
        self._seen, self._rows = (msgspec.convert(state[name], Count) for name in ("seen", "rows"))
        self._before = msgspec.convert(state["seconds"], Annotated[float, Meta(ge=0, lt=1e12)])
        self.report = msgspec.convert(state["report"], TaskReport)
        if "patience" in state:  # which earlier versions did not have
            best, self._waited = msgspec.convert(state["patience"], tuple[Annotated[float, Meta(le=1)], Count])
            self._best = best
        if "inputs" in state:
            self.signature = msgspec.convert(state["inputs"], Signature)
        begun = self.learner.phases[: self.position.phase + self.position.begun]
        self.learner.load_state_dict(state["learner"], begun[-1].name if begun else None)
        generators = state["generators"]
        torch.set_rng_state(generators[0])
        for device, generator in enumerate(generators[1 : 1 + torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator, device)

    def _checked_position(self, position: Position) -> Position:
        """A place that this task has."""
        epochs = [phase.epochs for phase in self.learner.phases]
        most = epochs[position.phase] if position.phase < len(epochs) else 0
        within = position.epoch <= most and position.batch <= self.steps and position.phase <= len(epochs)
        if not within or position.step != position.epoch * self.steps + position.batch:
            raise ValueError(f"expected a place within {epochs} epochs of {self.steps} steps, got {position}")
        return position


def _channels_last(inputs: Tensor) -> Tensor:
    if inputs.dim() not in (4, 5):
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last if inputs.dim() == 4 else torch.channels_last_3d)


def precision_of(config: FitConfig, device: torch.device) -> AbstractContextManager[Any]:
    """What forward passes of training run under."""
    return nullcontext() if config.precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def check_same(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse the state of another task, network or configuration."""
    for name in {**saved, **wanted}:
        if not _same(saved.get(name), wanted.get(name)):
            raise ConfigError(
                f"resume: the state is of a task with {name} {shown(saved.get(name))}, got {shown(wanted.get(name))}; "
                "go on with the same, or delete the state to learn the task from its start"
            )


def _same(saved: object, wanted: object) -> bool:
    try:
        return bool(saved == wanted)
    except (RuntimeError, ValueError):  # tensors, which no state of ours has here
        return False
