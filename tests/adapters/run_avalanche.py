"""Run by a Python that has Avalanche and this package: a benchmark as tasks, and our method as a strategy."""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
for operator in ("nms", "qnms"):  # of torchvision's compiled part, which may not load beside torch for CPUs
    LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]

from avalanche.benchmarks import tensors_benchmark  # type: ignore[import-not-found]
from avalanche.evaluation.metrics import accuracy_metrics  # type: ignore[import-not-found]
from avalanche.training.plugins import EvaluationPlugin  # type: ignore[import-not-found]
from lps import Lifelong, LPSConfig
from lps.adapters.avalanche import LPSTraining, tasks_of
from torch import Tensor, nn


def clouds(seed: int, count: int, offset: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 12, generator=generator)
    labels = torch.arange(count) % 3
    return centres[labels] + 0.5 * torch.randn(count, 12, generator=generator), labels + offset


def network() -> Lifelong:
    torch.manual_seed(0)
    return Lifelong(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()), 16)


def main() -> None:
    train = [clouds(seed, 180, 3 * seed) for seed in range(2)]
    test = [(inputs[:60], labels[:60]) for inputs, labels in train]
    benchmark = tensors_benchmark(train_tensors=train, test_tensors=test, task_labels=[0, 1])
    config = LPSConfig(alpha=0.3, beta=0.8, epochs=(3, 6, 3), batch_size=32, lr=1e-2)

    tasks = tasks_of(benchmark)
    assert [(task.classes, task.class_names) for task in tasks] == [(3, ("0", "1", "2")), (3, ("3", "4", "5"))]
    net = network()
    for task in tasks:
        net.learn(task, config)
    own = [net.accuracy(number, task.test) for number, task in enumerate(tasks, 1)]
    assert min(own) > 0.9, own

    for method in ("lps", "finetune"):
        evaluator = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
        strategy = LPSTraining(net=network(), config=config, method=method, evaluator=evaluator, eval_mb_size=64)
        first = 0.0
        for experience in benchmark.train_stream:
            strategy.train(experience)
            results = strategy.eval(benchmark.test_stream)
            found = [value for name, value in sorted(results.items()) if name.startswith("Top1_Acc_Exp/")]
            first = first or found[0]
        assert found[1] > 0.9, found
        if method == "lps":
            assert found[0] == first > 0.9, (found, first)  # nothing is forgotten
    print("ok")


if __name__ == "__main__":
    main()
