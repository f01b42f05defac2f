"""Joint training: the union of all tasks, and what a run says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lps import Arrays, Lifelong, Task, train
from lps.errors import ConfigError
from lps.methods.joint import AllExamples, Joint, as_one
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.toy import QUICK, toy_mlp, toy_task

CONFIG = replace(QUICK, epochs=(2, 6, 2))
TASKS = [toy_task(1), toy_task(2), toy_task(3, classes=4)]


def make(norm: bool = True) -> Joint:
    torch.manual_seed(0)
    return Joint(Lifelong(toy_mlp(norm=norm), 16, norms="frozen"), CONFIG)


def test_all_tasks_are_learnt_with_the_last_one() -> None:
    method = make()
    method.check(TASKS)
    accuracies = []
    for task in TASKS:
        method.learn(task)
        accuracies.append([method.net.accuracy(i, each.test) for i, each in enumerate(TASKS[: len(method.learnt)], 1)])
    assert max(accuracies[1]) < 0.8
    assert min(accuracies[2]) > 0.85
    assert method.net.metadata.input_shape == [12]


def test_it_is_plain_training_on_the_union() -> None:
    """One step on all examples, beside the same step written out."""
    config = replace(CONFIG, epochs=(1, 0, 0), batch_size=1000)
    torch.manual_seed(0)
    method = Joint(Lifelong(nn.Sequential(nn.Linear(12, 16), nn.ReLU()), 16), config)
    first = [parameter.detach().clone() for parameter in method.net.backbone.parameters()]
    method.check(TASKS)
    for task in TASKS[:2]:
        method.learn(task)
    heads: list[nn.Module] = []

    def head(features: int, classes: int) -> nn.Module:
        heads.append(nn.Linear(features, classes))
        return heads[-1]

    method.tasks = [replace(task, head=head) for task in TASKS]
    method.learn(method.tasks[2])
    # The head of the last task was made first; then those of the earlier ones.
    made = [heads[1], heads[2]]
    weight, bias = (tensor.requires_grad_() for tensor in first)
    total = torch.zeros(())
    for number, task in enumerate(TASKS[:2]):
        assert isinstance(task.train, Arrays)
        features = (task.train.inputs @ weight.T + bias).relu()
        total = total + cross_entropy(made[number](features), task.train.labels, reduction="sum")
    total.backward()  # type: ignore[no-untyped-call]
    # Adam's first step goes by the sign of the gradient: the head of task 1 depends on the examples of task 1 alone.
    parameter = made[0].get_parameter("bias")
    trained = method.net.heads[0].get_parameter("bias")
    assert parameter.grad is not None
    torch.testing.assert_close(trained, parameter.detach() - 0.01 * parameter.grad.sign())


def test_the_union_prepares_every_example_as_its_own_task_does() -> None:
    def task(name: str, count: int, classes: int, factor: float, shift: float) -> Task:
        arrays = Arrays(torch.arange(count).float()[:, None], torch.arange(count) % classes, lambda x: factor * x)
        return Task(name, classes, train=arrays, test=arrays, augment=lambda x: x + shift)

    examples = AllExamples([task("a", 5, 2, 10.0, 0.5), task("b", 3, 3, -1.0, 0.0)])
    inputs, labels = examples.batch(torch.tensor([6, 1, 7, 4]))
    assert (inputs[:, 0].tolist(), labels.tolist()) == ([10.5, 40.5, -1.0, -2.0], [1, 0, 3, 4])
    assert len(examples) == 8


def test_the_softmax_of_an_example_is_over_the_classes_of_its_task() -> None:
    tasks = [TASKS[0], replace(TASKS[2], class_weights=[1.0, 2.0, 1.0, 1.0])]
    logits, labels = torch.randn(4, 7), torch.tensor([0, 2, 4, 6])
    separate = [
        cross_entropy(logits[:2, :3], labels[:2], reduction="sum"),
        cross_entropy(logits[2:, 3:], labels[2:] - 3, torch.tensor([1.0, 2.0, 1.0, 1.0]), reduction="sum"),
    ]
    torch.testing.assert_close(as_one(tasks).compute_loss(logits, labels), sum(separate, torch.zeros(())) / 5)


def test_steps_are_those_of_all_examples() -> None:
    method = make()
    method.check(TASKS)
    assert [method.steps(number, task) for number, task in enumerate(TASKS, 1)] == [0, 0, 10 * 15]


def test_a_longer_stream_is_learnt_from_the_first_weights() -> None:
    whole, grown = make(), make()
    for method, streams in ((whole, [TASKS]), (grown, [TASKS[:2], TASKS])):
        for stream in streams:
            method.check(stream)
            for task in stream[len(method.learnt) :]:
                method.learn(task)
    assert [learnt.digest for learnt in whole.learnt] == [learnt.digest for learnt in grown.learnt]


class _Loss:
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (replace(TASKS[1], loss=_Loss()), r"joint: task clouds-2: expected .* the default loss, got a loss of its own"),
        (replace(TASKS[1], train=[]), "joint: task clouds-2: expected .* in lps.Arrays .* got list"),
        (toy_task(2, shape=(3, 4)), r"joint: task clouds-2: expected inputs float32 \[12\], .* got float32 \[3, 4\]"),
    ],
)
def test_tasks_that_cannot_be_mixed_are_refused(task: Task, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make().check([TASKS[0], task])


def test_without_all_tasks_it_refuses_to_learn() -> None:
    method = make()
    with pytest.raises(ConfigError, match=r"call check\(tasks\)"):
        method.learn(TASKS[0])
    method.check(TASKS)
    with pytest.raises(ConfigError, match=r"call check\(tasks\)"):
        method.learn(TASKS[1])


def test_another_kind_of_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="joint: expected a network made with norms='frozen', got 'per-task'"):
        Joint(Lifelong(toy_mlp(), 16, norms="per-task"), CONFIG)


def test_a_run_has_no_figures_of_forgetting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    arguments = f"--method joint --tasks 2 --epochs 2,0,0 --dropout 0 --output {output}"
    assert train.main(arguments.split()) == 0
    assert "bwt               -\n" in capsys.readouterr().out
    results = json.loads((output / "results.json").read_text())
    assert [results[name] for name in ("forgetting", "bwt", "incremental_accuracy")] == [None] * 3
    assert min(results["accuracy"][-1]) > 0.5
