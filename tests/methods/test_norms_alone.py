"""A ResNet-18 with batch normalisation learns later tasks as well as the same network alone (``-s`` shows how well)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lps import Arrays, Lifelong, LPSConfig, Task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

WIDTH, EXAMPLES, CLASSES, EPOCHS = 8, 300, 6, (4, 12, 4)
# Inputs of task 2 are three times as large as those of task 1, those of task 3 are one above them.
RANGES = {1: (1.0, 0.0), 2: (3.0, 0.0), 3: (1.0, 1.0)}


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else shortcut

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [(WIDTH, WIDTH, 1), (WIDTH, 2 * WIDTH, 2), (2 * WIDTH, 4 * WIDTH, 2), (4 * WIDTH, 8 * WIDTH, 2)]
    blocks = [block for a, b, stride in sizes for block in (Block(a, b, stride), Block(b, b, 1))]
    stem = [nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def examples(task: int, seed: int) -> Arrays:
    generator = torch.Generator().manual_seed(1000 * task + seed)
    means = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(7000 + task))
    labels = torch.randint(0, CLASSES, (EXAMPLES,), generator=generator)
    factor, offset = RANGES[task]
    return Arrays(
        (means[labels] + 0.8 * torch.randn(EXAMPLES, 3, 32, 32, generator=generator)) * factor + offset, labels
    )


def alone(task: int) -> float:
    """Accuracy of the network trained on this task only, as many epochs."""
    train, test = examples(task, 0), examples(task, 1)
    net = nn.Sequential(resnet18(), nn.Linear(8 * WIDTH, CLASSES))
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(sum(EPOCHS)):
        for some in torch.split(torch.randperm(EXAMPLES), 32):
            adam.zero_grad()
            cross_entropy(net(train.inputs[some]), train.labels[some]).backward()  # type: ignore[no-untyped-call]
            adam.step()
    with torch.no_grad():
        return float((net.eval()(test.inputs).argmax(1) == test.labels).double().mean())


SOLVERS: dict[str, dict[str, Any]] = {
    "straight-through": {"solver": "straight-through"},
    "admm, proximal pull": {"solver": "admm", "pull": "proximal"},
}


def learn(net: Lifelong, task: int, solver: dict[str, Any]) -> float:
    """Learn a task; returns its accuracy."""
    held = examples(task, 1)
    config = LPSConfig(0.25, 0.5, epochs=EPOCHS, batch_size=32, schedule="cosine", rho=1e-3, **solver)
    net.learn(Task(f"task-{task}", CLASSES, examples(task, 0), held, held), config, progress=False)
    return net.accuracy(task, held)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_later_tasks_are_within_two_points_of_the_network_alone(name: str) -> None:
    torch.set_num_threads(1)
    net = Lifelong(resnet18(), 8 * WIDTH)
    assert net.norms == "per-task"
    for task in RANGES:
        ours = learn(net, task, SOLVERS[name])
        if task > 1:
            theirs = alone(task)
            print(f"{name}: task {task} {100 * ours:.1f} %, alone {100 * theirs:.1f} %")
            assert ours > theirs - 0.02


@pytest.mark.slow
def test_frozen_norms_are_worse_and_warned_of() -> None:
    torch.set_num_threads(1)
    net = Lifelong(resnet18(), 8 * WIDTH, norms="frozen")
    learn(net, 1, SOLVERS["straight-through"])
    with pytest.warns(UserWarning, match="frozen since task 1") as seen:
        ours = learn(net, 2, SOLVERS["straight-through"])
    print(f"{seen[0].message}: task 2 {100 * ours:.1f} %")
    assert ours < 0.95
