"""One of our methods on permuted MNIST, in a process of its own: ``python methods_worker.py REQUEST.json``.

The request and the answer are those of avalanche_worker.py, with ``method`` in place of ``strategy`` and ``arguments``.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # as the commands do, before torch is loaded

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from lps import Arrays, Lifelong, Listener, LPSConfig, Row, Task  # noqa: E402
from lps.data.permuted import Permute  # noqa: E402
from lps.methods import METHODS  # noqa: E402
from lps.models import Architecture, create  # noqa: E402

CLASSES = 10


class EpochTimes(Listener):
    """Lists the seconds per step of every epoch."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.seconds_per_step: list[float] = []

    def row(self, row: Row) -> None:
        """Note an epoch."""
        if row.event == "epoch":
            self.seconds_per_step.append(self.batch_size / row.samples_per_second)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Learn all tasks and test all of them after each."""
    torch.manual_seed(request["seed"])
    backbone = create("mlp", dropout=request["dropout"])
    assert isinstance(backbone.architecture, Architecture)
    net = Lifelong(backbone, backbone.architecture.features)
    names = ("epochs", "batch_size", "lr", "seed", "alpha")
    config = LPSConfig(**{name: request[name] for name in names}, schedule="constant")
    method = METHODS[request["method"]](net, config)
    tasks = _tasks(request["data"])
    method.check(tasks)
    matrix: list[list[float]] = []
    seconds_per_step = []
    for task in tasks:
        times = EpochTimes(request["batch_size"])
        method.learn(task, listener=times)
        seconds_per_step.append(min(times.seconds_per_step))
        matrix.append([net.accuracy(number, other.test) for number, other in enumerate(tasks[: len(matrix) + 1], 1)])
    return {"accuracy": matrix, "seconds_per_step": seconds_per_step}


def _tasks(data: str) -> list[Task]:
    arrays = np.load(data)
    train, train_labels, test, test_labels, orders = (
        torch.from_numpy(arrays[name]) for name in ("train", "train_labels", "test", "test_labels", "orders")
    )
    tasks = []
    for number, order in enumerate(orders, 1):
        permute = Permute(order, 255)
        parts = Arrays(train, train_labels, permute), Arrays(test, test_labels, permute)
        tasks.append(Task(f"permutation-{number}", CLASSES, *parts))
    return tasks


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(request["threads"])
    print(json.dumps(run(request)))
