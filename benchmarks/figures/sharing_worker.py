"""``python -m benchmarks.figures.sharing_worker``: one short training on two threads."""

from __future__ import annotations

import torch
from lps import Arrays, Lifelong, LPSConfig, Task, models

from benchmarks.timing import use_two_threads

BATCH, STEPS = 128, 250


def main() -> None:
    """Train the MLP on noise for a few seconds."""
    use_two_threads()
    data = Arrays(torch.rand(STEPS * BATCH, 784), torch.arange(STEPS * BATCH) % 10)
    net = Lifelong(models.create("mlp", inputs=784, hidden=[2000, 2000], dropout=0.5), features=2000)
    net.learn(Task("noise", 10, train=data, test=data), LPSConfig(epochs=(1, 0, 0), batch_size=BATCH))


if __name__ == "__main__":
    main()
