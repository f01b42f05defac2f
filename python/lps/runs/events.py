"""What is told of how a task is learnt: while it goes on and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the log; what does not apply is NaN.

    ``event`` is ``epoch`` (its mean loss, the accuracy on validation data, the rate), ``projection`` (the residuals of
    ADMM before it) or ``pruned`` (the final projection: accuracy right after it).
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


@dataclass(frozen=True)
class Resumed:
    """Where a task goes on."""

    phase: str
    epoch: int  # of the phase, counted from 1
    steps: int  # of the task, that were taken before
    rows: int  # lines of the log that were told before
    whole_epoch: bool  # the epoch starts anew, because its batches cannot be entered in the middle


class Listener:
    """Is told how the learning goes; override what you need."""

    def start(self, task: int, name: str, steps: int) -> None:
        """A task of so many steps begins."""

    def resumed(self, place: Resumed) -> None:
        """Learning goes on from a saved state; comes after ``start``."""

    def step(self, phase: str, examples: int) -> None:
        """A step is done."""

    def row(self, row: Row) -> None:
        """A line for the log."""


@dataclass
class TaskReport:
    """How a task went."""

    task: int
    name: str
    seconds: dict[str, float] = field(default_factory=dict)  # per phase
    accuracy_before_projection: float = float("nan")  # on validation data, like the other two
    accuracy_after_projection: float = float("nan")
    accuracy: float = float("nan")
    residuals: list[tuple[float, float, float]] = field(default_factory=list)  # (rho, primal, dual) per projection
