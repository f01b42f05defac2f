"""Recorded accuracies of a file against the accuracies that its tasks have now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lps.data import stream
from lps.data.files import unlike, unreadable
from lps.data.inputs import CHECK_PATH
from lps.data.npy import read_header
from lps.deploy.classify import classify, open_files
from lps.deploy.trial import use_signature
from lps.errors import DataError, FileFormatError, LPSError, in_a_sentence
from lps.lifelong import Lifelong
from lps.options import shown
from lps.reading import open_regular, size_of
from lps.task import Task

EXAMPLES = 200  # in a batch, as in Lifelong.accuracy


@dataclass(frozen=True)
class AccuracyCheck:
    """Test accuracy of one task, as it was recorded and as it is now."""

    recorded: float | None  # None if it was not, or the task is not of the stream that the file names
    now: float | None  # None if it is damaged, too
    examples: int

    @property
    def differs(self) -> bool:
        """Whether more examples than rounding explains are classified otherwise: one in a thousand, at least one."""
        if self.recorded is None or self.now is None:
            return False
        return round(abs(self.now - self.recorded) * self.examples) > max(1, self.examples // 1000)


def check_accuracies(
    net: Lifelong, file: str, data_dir: str | None, download: bool, *, precision: str, numbers: Sequence[int]
) -> list[AccuracyCheck]:
    """Measure these tasks on the test data that the file names, one after another.

    Tasks that were learnt after those of the stream have data that the file does not name.
    """
    source, recorded = net.metadata.stream, net.metadata.accuracy or []
    assert source is not None
    count = min(len(net.learnt), source.tasks)
    if len(recorded) < count:
        raise FileFormatError(f"{file}: has {count} tasks but {len(recorded)} accuracies; train it again")
    tasks = stream(
        source.benchmark,
        data_dir=None if data_dir is None else Path(data_dir),
        tasks=count,
        seed=source.seed,
        download=download,
        options=source.options,
    )
    return [
        _checked(net, number, tasks[number - 1], recorded[number - 1], file, precision)
        if number <= count
        else AccuracyCheck(None, None, 0)
        for number in numbers
    ]


def accuracy_of_files(net: Lifelong, number: int, file: str, inputs: Sequence[str], labels: str) -> float:
    """Accuracy of a task on the user's own examples: files of inputs, and their class numbers in an .npy file."""
    net.require_backbone()
    known = read_labels(Path(labels), net.learnt[number - 1].classes)
    files, _ = open_files(net, number, use_signature(net, number, file, None), inputs)
    count = sum(map(len, files))
    if len(known) != count:
        raise unlike(Path(labels), "labels", f"{count}, one per example", len(known), "give one for each")
    answers = classify(net, number, files, top=1, batch_size=EXAMPLES, dense=True)
    return sum(answer["class"] == label for answer, label in zip(answers, known, strict=True)) / count


def read_labels(path: Path, classes: int) -> list[int]:
    """The class numbers in an .npy file; everything that its header says is checked first."""
    try:
        with open_regular(path) as file:
            header = read_header(file)
            if header.dtype.kind not in "iu" or len(header.shape) != 1:
                got = shown(f"{header.dtype} {list(header.shape)}")
                raise unlike(path, "labels", "whole numbers in one row", got, "write them with numpy.save")
            if size_of(file) - header.size < header.array_bytes:
                raise ValueError("it is shorter than its header says")
            labels = np.frombuffer(file.read(header.array_bytes), header.dtype)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, error, CHECK_PATH) from None
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise unlike(path, "labels", f"0 to {classes - 1}", int(wrong[0]), "count classes from 0")
    return [int(label) for label in labels]


def _checked(
    net: Lifelong, number: int, task: Task, recorded: float | None, file: str, precision: str
) -> AccuracyCheck:
    now = None if net.learnt[number - 1].damage else _accuracy(net, number, task, file, precision)
    return AccuracyCheck(recorded, now, len(task.test))  # type: ignore[arg-type]


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
