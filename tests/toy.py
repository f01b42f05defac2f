"""Small tasks and networks that train in a fraction of a second."""

from __future__ import annotations

import torch
from lps import Arrays, Lifelong, LPSConfig, Task
from torch import Tensor, nn

# The paper's ADMM to the letter; tests of the other pull and solver say so.
QUICK = LPSConfig(alpha=0.2, beta=0.8, epochs=(1, 3, 1), batch_size=32, lr=1e-2, pull="gradient")


def toy_task(seed: int, shape: tuple[int, ...] = (12,), classes: int = 3, dtype: torch.dtype = torch.float32) -> Task:
    """Gaussian clouds, one per class, in a space of this shape."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, *shape, generator=generator)

    def draw(count: int) -> Arrays:
        labels = torch.arange(count) % classes
        noise = torch.randn(count, *shape, generator=generator)
        return Arrays((centres[labels] + 0.7 * noise).to(dtype), labels)

    return Task(f"clouds-{seed}", classes, train=draw(160), test=draw(60), validation=draw(40))


def toy_mlp(*, norm: bool = True, dropout: float = 0.1) -> nn.Sequential:
    """12 inputs, 16 features."""
    middle: list[nn.Module] = [nn.BatchNorm1d(24)] if norm else []
    return nn.Sequential(nn.Linear(12, 24), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(24, 16), nn.ReLU())


def toy_convnet() -> nn.Sequential:
    """Inputs of 3 x 8 x 8, 16 features."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 16),
    )


def toy_net(*, pattern: str = "irregular", sharing: str = "elementwise", seed: int = 0) -> Lifelong:
    """The MLP as a lifelong network, its norms frozen after task 1."""
    torch.manual_seed(seed)
    return Lifelong(toy_mlp(), features=16, pattern=pattern, sharing=sharing, norms="frozen", quiet=True)


def inputs_of(task: Task) -> Tensor:
    """The test inputs of the task."""
    assert isinstance(task.test, Arrays)
    inputs: Tensor = task.test.inputs
    return inputs


def answers(net: Lifelong, tasks: list[Task]) -> list[Tensor]:
    """Logits of each task on its test inputs, in eval mode."""
    net.eval()
    with torch.no_grad():
        return [net(inputs_of(task), task=number) for number, task in enumerate(tasks, start=1)]
