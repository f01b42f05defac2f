"""Run by a Python that has Continuum and this package: a scenario as tasks."""

from __future__ import annotations

import numpy as np
import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
for operator in ("nms", "qnms"):  # of torchvision's compiled part, which may not load beside torch for CPUs
    LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]

from continuum import ClassIncremental  # type: ignore[import-not-found]
from continuum.datasets import InMemoryDataset  # type: ignore[import-not-found]
from lps import Lifelong, LPSConfig
from lps.adapters.continuum import tasks_of
from torch import nn


def main() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(400) % 4
    images = (random.random((400, 8, 8, 3)) * 60 + labels[:, None, None, None] * 60).astype(np.uint8)
    train, test = (
        ClassIncremental(InMemoryDataset(images[part], labels[part], train=learn), increment=2)
        for part, learn in ((slice(0, 320), True), (slice(320, 400), False))
    )
    tasks = tasks_of(train, test)
    assert [(task.classes, task.class_names) for task in tasks] == [(2, ("0", "1")), (2, ("2", "3"))]
    torch.manual_seed(0)
    net = Lifelong(nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU()), 32)
    for number, task in enumerate(tasks, 1):
        net.learn(task, LPSConfig(alpha=0.4, beta=0.9, epochs=(5, 10, 5), batch_size=32, lr=1e-2))
        assert net.accuracy(number, task.test) > 0.9
    print("ok")


if __name__ == "__main__":
    main()
