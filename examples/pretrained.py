"""A backbone that was pretrained first gains three tasks.

The backbone learns to read handwritten digits, as any network does. Then the same weights are wrapped: task 1 starts
from them, and all three tasks answer from one network. Instead of this pretraining you would load weights that you have
(`backbone.load_state_dict(...)`, `torchvision.models.resnet18(weights=...)`).

    python examples/pretrained.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lps
import torch
from lps.data import digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

# What the three tasks ask of a digit.
TASKS = {
    "is it even": lambda digit: (digit % 2 == 0).long(),
    "is it above 4": lambda digit: (digit > 4).long(),
    "how many holes has it": lambda digit: torch.tensor([1, 0, 0, 0, 0, 0, 1, 0, 2, 1])[digit],
}


def backbone() -> nn.Module:
    """A small convolutional network; its features are 64 numbers."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU()),
    )


def pretrain(network: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Learn to read digits, in plain torch."""
    whole = nn.Sequential(network, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(whole.parameters(), lr=2e-3)
    for _ in range(10):
        for part in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            cross_entropy(whole(inputs[part]), labels[part]).backward()
            optimizer.step()


def main(folder: Path) -> None:
    """Pretrain, wrap, learn three tasks, and compare the first with one from random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = digits.load()
    x_train, x_test = train.inputs.float() / 16, test.inputs.float() / 16
    y_train, y_test = train.labels.long(), test.labels.long()

    torch.manual_seed(0)
    network = backbone()
    pretrain(network, x_train, y_train)

    # few epochs and few examples: what was learnt before is what helps
    config = lps.LPSConfig(
        alpha=0.25, beta="auto", solver="straight-through", epochs=(4, 8, 4), schedule="cosine", batch_size=32
    )
    few = torch.arange(0, len(x_train), 4)

    def task(name: str) -> lps.Task:
        answer = TASKS[name]
        examples = lps.Arrays(x_train[few], answer(y_train[few]))
        return lps.Task(name, 3 if "many" in name else 2, examples, lps.Arrays(x_test, answer(y_test)))

    nets = {"pretrained": lps.Lifelong(network, features=64), "random weights": lps.Lifelong(backbone(), features=64)}
    for title, net in nets.items():
        for number, name in enumerate(TASKS, 1):
            net.learn(task(name), config)
            print(f"{title}: {name}? {100 * net.accuracy(number, task(name).test):.1f} %")

    net = nets["pretrained"]
    net.save(folder / "model.lps")
    again = lps.load(folder / "model.lps", backbone()).eval()
    same = all(torch.equal(again(x_test, task=t), net.eval()(x_test, task=t)) for t in (1, 2, 3))
    print(f"the file answers with the same bits: {same}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
