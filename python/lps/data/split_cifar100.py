"""split-cifar100: CIFAR-100 in 10 tasks of ten classes (``--split 10``) or 20 of five, in the order of the labels.

Read as in split-cifar. The npz sheets hold the first 50 classes: with them alone the first half of the tasks can be
learnt.
"""

from __future__ import annotations

from typing import Any

from lps.data import cifar
from lps.data.base import Stream
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request, one_of
from lps.errors import DataError
from lps.options import one_line
from lps.task import Task


def build(request: Request) -> Stream:
    """Build the stream."""
    train, test = cifar.load(cifar.CIFAR100, request.data_dir, request.download)
    each = 100 // request.own.split
    held = int(train.labels.max()) + 1
    if request.tasks * each > held:
        raise DataError(
            f"split-cifar100: {request.tasks} tasks need the classes 0 to {request.tasks * each - 1}, but "
            f"{one_line(str(request.data_dir))} holds 0 to {held - 1} alone; pass --tasks {held // each}, or with "
            f"--data-dir a folder that holds {cifar.CIFAR100.archive}"
        )

    def build_task(number: int) -> Task:
        return cifar.part_of_hundred(train, test, each * number, request.seed, request.augment, each)

    return Stream("split-cifar100", cifar.NETWORK, request.tasks, build_task)


# Not in the paper. The 200 epochs are those of Kang et al., "Forget-free Continual Learning with Winning Subnetworks",
# 2022, divided among the phases as in the paper; the rest is the paper's for split CIFAR.
_PAPER: dict[str, Any] = {**PAPER_SOLVER, "epochs": (40, 120, 40), "beta": 0.92, "dropout": (0.25, 0.25, 0.5)}

BENCHMARK = Benchmark(
    build,
    cifar.raw,
    tasks=10,
    most=20,
    presets={"quick": {**_PAPER, **QUICK, "epochs": (2, 6, 2)}, "paper": _PAPER},
    augments=True,
    count=one_of("split-cifar100", 10, 20),
)
