"""What a listener is told while a task is learnt, and the report at its end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the log; values that do not apply to its event are NaN.

    ``event`` is ``epoch`` (mean loss, validation accuracy, samples per second), ``projection`` (residuals of the
    solver), ``pruned`` (validation accuracy right after the final projection), ``layer`` (what it kept of a layer) or
    ``stopped`` (a phase has ended early, with its best validation accuracy).
    """

    task: int
    phase: str
    event: str
    epoch: int
    step: int
    seconds: float  # since the task began
    lr: float
    rho: float
    loss: float = float("nan")
    accuracy: float = float("nan")
    samples_per_second: float = float("nan")
    primal: float = float("nan")
    dual: float = float("nan")
    density: float = float("nan")  # share of all prunable weights that the projection keeps, own and reused
    share: float = float("nan")  # share of the earlier tasks' weights that it keeps
    layer: str = ""  # of a row that is about one layer


@dataclass(frozen=True)
class Resumed:
    """Where a task resumes."""

    phase: str
    epoch: int  # of the phase, counted from 1
    steps: int  # of the task, taken before
    rows: int  # rows of the log that the listener got before
    whole_epoch: bool  # the epoch starts again, because its batches cannot resume in the middle


class Listener:
    """Callbacks while a task is learnt; override what you need."""

    def start(self, task: int, name: str, steps: int) -> None:
        """A task of ``steps`` steps begins."""

    def resumed(self, place: Resumed) -> None:
        """Learning resumes from a saved state; called after ``start``."""

    def step(self, phase: str, examples: int) -> None:
        """A step is done."""

    def skipped(self, steps: int) -> None:
        """A phase has ended early: so many of the steps that were announced are not taken."""

    def row(self, row: Row) -> None:
        """A line for the log."""


class Several(Listener):
    """Tells several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def start(self, task: int, name: str, steps: int) -> None:
        """Tell each."""
        for listener in self.listeners:
            listener.start(task, name, steps)

    def resumed(self, place: Resumed) -> None:
        """Tell each."""
        for listener in self.listeners:
            listener.resumed(place)

    def step(self, phase: str, examples: int) -> None:
        """Tell each."""
        for listener in self.listeners:
            listener.step(phase, examples)

    def skipped(self, steps: int) -> None:
        """Tell each."""
        for listener in self.listeners:
            listener.skipped(steps)

    def row(self, row: Row) -> None:
        """Tell each."""
        for listener in self.listeners:
            listener.row(row)


@dataclass
class TaskReport:
    """Times, validation accuracies and residuals of a learnt task."""

    task: int
    name: str
    seconds: dict[str, float] = field(default_factory=dict)  # per phase
    accuracy_before_projection: float = float("nan")  # on validation data, like the other two
    accuracy_after_projection: float = float("nan")
    accuracy: float = float("nan")
    test: float = float("nan")  # on the test examples, outside of a run: a run tests all tasks after each one
    residuals: list[tuple[float, float, float]] = field(default_factory=list)  # (rho, primal, dual) per projection
    shares: dict[str, float] = field(default_factory=dict)  # of the earlier tasks' weights that are reused, per layer
