"""One of Avalanche's strategies on permuted MNIST, in a process of its own.

Run by the Python of Avalanche's own virtual environment, which has none of this project's packages:
``python avalanche_worker.py REQUEST.json``. The request names the strategy, its arguments, a file with the tasks (.npz:
``train``, ``train_labels``, ``test``, ``test_labels``, ``orders``), epochs, batch size, learning rate, dropout, seed
and threads. Prints a JSON object: the accuracy matrix, and of each task the seconds per step of its fastest epoch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN, CLASSES = 2000, 10
# Its declarations last as long as it does.
TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]


class Net(nn.Module):
    """The network of the paper's permuted MNIST, with one classifier at its end."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(784, HIDDEN),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.classifier = nn.Linear(HIDDEN, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def main() -> None:
    """Run the strategy of the request."""
    request = json.loads(Path(sys.argv[1]).read_text())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints much; the answer goes where only it goes
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    print(json.dumps(run(request)), file=answers, flush=True)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Learn all tasks and test all of them after each."""
    strategy, offset = _strategy(request)
    epochs = _epoch_times()
    strategy.plugins.append(epochs)
    train, test = _streams(request, offset)
    matrix: list[list[float]] = []
    seconds_per_step = []
    for experience in train:
        strategy.train(experience)
        seconds_per_step.append(min(epochs.seconds_per_step))
        epochs.seconds_per_step.clear()
        results = strategy.eval(test)
        found = {name: value for name, value in results.items() if name.startswith("Top1_Acc_Exp/")}
        ordered = [found[name] for name in sorted(found, key=lambda name: int(name.rpartition("Exp")[2]))]
        matrix.append(ordered[: len(matrix) + 1])
    return {"accuracy": matrix, "seconds_per_step": seconds_per_step}


def _epoch_times() -> Any:
    """A plugin that lists the seconds per step of every epoch."""
    from avalanche.core import SupervisedPlugin  # type: ignore[import-not-found]  # noqa: PLC0415

    class EpochTimes(SupervisedPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seconds_per_step: list[float] = []

        def before_training_epoch(self, strategy: Any, **_: Any) -> None:
            self.steps, self.begin = 0, perf_counter()

        def after_training_iteration(self, strategy: Any, **_: Any) -> None:
            self.steps += 1

        def after_training_epoch(self, strategy: Any, **_: Any) -> None:
            self.seconds_per_step.append((perf_counter() - self.begin) / self.steps)

    return EpochTimes()


def _strategy(request: dict[str, Any]) -> tuple[Any, int]:
    """The strategy, and by how much the labels of one task differ from those of the next."""
    _let_torchvision_load()
    from avalanche.evaluation.metrics import accuracy_metrics  # type: ignore[import-not-found]  # noqa: PLC0415
    from avalanche.models import as_multitask  # type: ignore[import-not-found]  # noqa: PLC0415
    from avalanche.models.packnet import PackNetModel  # type: ignore[import-not-found]  # noqa: PLC0415
    from avalanche.training import supervised  # type: ignore[import-not-found]  # noqa: PLC0415
    from avalanche.training.plugins import EvaluationPlugin  # type: ignore[import-not-found]  # noqa: PLC0415

    name, arguments = request["strategy"], dict(request["arguments"])
    if name == "SynapticIntelligence":
        _let_si_copy()
    model: nn.Module
    if name == "PackNet":  # it has one head over all classes
        offset = CLASSES
        model = PackNetModel(Net(CLASSES * request["tasks"], request["dropout"]))
    else:
        offset = 0
        model = as_multitask(Net(CLASSES, request["dropout"]), "classifier")
    strategy = getattr(supervised, name)(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), request["lr"]),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=request["batch_size"],
        train_epochs=request["epochs"],
        eval_mb_size=1000,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        **arguments,
    )
    return strategy, offset


def _let_torchvision_load() -> None:
    """Declare the operators that torchvision's compiled part would bring: built for CUDA, it may not load."""
    for name in ("nms", "qnms"):
        TORCHVISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]


def _let_si_copy() -> None:
    """Let Avalanche's SI keep copies of the weights, as it does on a GPU: on a CPU its ``.cpu()`` copies nothing.

    The weights before a step, after it and of the task's start would all be the weights themselves: paths of length 0,
    nothing held, and the accuracies of plain fine-tuning.
    """
    from avalanche.training.plugins import SynapticIntelligencePlugin  # noqa: PLC0415

    def extract_weights(model: nn.Module, target: dict[str, Any], excluded_parameters: set[str]) -> None:
        for name, parameter in SynapticIntelligencePlugin.allowed_parameters(model, excluded_parameters):
            target[name].data = parameter.detach().flatten().clone()

    SynapticIntelligencePlugin.extract_weights = staticmethod(extract_weights)


def _tasks(request: dict[str, Any], part: str) -> list[tuple[Tensor, Tensor]]:
    arrays = np.load(request["data"])
    images = torch.from_numpy(arrays[part]).float() / 255
    labels = torch.from_numpy(arrays[f"{part}_labels"]).long()
    return [(images[:, torch.from_numpy(order)], labels) for order in arrays["orders"]]


def _streams(request: dict[str, Any], offset: int) -> tuple[Any, Any]:
    from avalanche.benchmarks import tensors_benchmark  # type: ignore[import-not-found]  # noqa: PLC0415

    parts = {
        part: [(inputs, labels + offset * number) for number, (inputs, labels) in enumerate(_tasks(request, part))]
        for part in ("train", "test")
    }
    benchmark = tensors_benchmark(
        train_tensors=parts["train"], test_tensors=parts["test"], task_labels=list(range(request["tasks"]))
    )
    return benchmark.train_stream, benchmark.test_stream


if __name__ == "__main__":
    main()
