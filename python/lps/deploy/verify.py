"""Recorded accuracies of a file against the accuracies that its tasks have now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lps.data import stream
from lps.errors import FileFormatError, LPSError, in_a_sentence
from lps.lifelong import Lifelong
from lps.task import Task


@dataclass(frozen=True)
class AccuracyCheck:
    """Test accuracy of one task, as it was recorded and as it is now."""

    name: str
    recorded: float
    now: float | None  # None if the task is damaged
    examples: int

    @property
    def differs(self) -> bool:
        """Whether more examples than rounding explains are classified otherwise: one in a thousand, at least one."""
        if self.now is None:
            return False
        return round(abs(self.now - self.recorded) * self.examples) > max(1, self.examples // 1000)


def check_accuracies(
    net: Lifelong, file: str, data_dir: str | None, download: bool, precision: str = "fp32"
) -> Iterator[AccuracyCheck]:
    """Measure every task on the test data that the file names, one after another."""
    recorded = net.metadata.accuracy or []
    if len(recorded) != len(net.learnt):
        raise FileFormatError(f"{file}: has {len(net.learnt)} tasks but {len(recorded)} accuracies; train it again")
    tasks = _tasks(net, None if data_dir is None else Path(data_dir), download)
    for number, (task, before) in enumerate(zip(tasks, recorded, strict=True), start=1):
        examples = len(task.test)  # type: ignore[arg-type]
        damaged = net.learnt[number - 1].damage
        now = None if damaged else _accuracy(net, number, task, file, precision)
        yield AccuracyCheck(task.name, before, now, examples)


def _accuracy(net: Lifelong, number: int, task: Task, file: str, precision: str) -> float:
    try:
        return net.accuracy(number, task.test, precision=precision)
    except (LPSError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, IndexError) as error:  # of a file that names other data than its network reads
        reason = in_a_sentence(str(error).partition("\n")[0])
        raise FileFormatError(
            f"{file}: task {number} cannot read the data of its stream: {reason}; train it again"
        ) from None


def _tasks(net: Lifelong, data_dir: Path | None, download: bool) -> list[Task]:
    """The tasks of the stream that the file names."""
    source = net.metadata.stream
    assert source is not None
    tasks = stream(
        source.benchmark,
        data_dir=data_dir,
        tasks=len(net.learnt),
        seed=source.seed,
        download=download,
        options=source.options,
    )
    return list(tasks)
