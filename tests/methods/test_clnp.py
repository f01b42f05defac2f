"""Continual Learning via Neural Pruning: whole units, how many of them, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from lps import Arrays, Lifelong
from lps.errors import ConfigError
from lps.methods.chain import find_chain
from lps.methods.clnp import CLNP, CLNPLearner
from lps.methods.options import CLNPOptions
from torch import Tensor, nn

from lps_kernels.owner import TASK_BITS
from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_task

CONFIG = replace(QUICK, epochs=(3, 5, 2))
TASKS = [toy_task(1), toy_task(2), toy_task(3, classes=4)]


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())


def convolutions() -> nn.Sequential:
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 32), nn.ReLU()
    return nn.Sequential(*layers)


def make(backbone: Callable[[], nn.Module] = chain, own: CLNPOptions | None = None) -> CLNP:
    torch.manual_seed(0)
    return CLNP(Lifelong(backbone(), 32, norms="per-task"), CONFIG, own)


@pytest.mark.parametrize(("backbone", "shape"), [(chain, (12,)), (convolutions, (3, 8, 8))])
def test_units_are_owned_as_a_whole_and_old_tasks_bit_identical(
    backbone: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    method = make(backbone)
    tasks = [toy_task(number, shape) for number in (1, 2, 3)]
    after, used = [], []
    for number, task in enumerate(tasks, 1):
        report = method.learn(task)
        after.append(answers(method.net, tasks[:number]))
        used.append([layer.used() for layer in find_chain(method.net, "clnp")])
        assert task.validation is not None
        assert report.accuracy == method.net.accuracy(number, task.validation)
        assert report.accuracy > 0.7
    for answered in after:
        assert all(torch.equal(old, new) for old, new in zip(answered, after[-1], strict=False))
    columns: list[Tensor | None] = [None] * 3  # units of the layer before that each task has
    for place, layer in enumerate(find_chain(method.net, "clnp")):
        owner = layer.partition.owner.flatten(1) & TASK_BITS
        assert (owner == owner[:, :1]).all()
        for number in (1, 2, 3):
            rows = owner[:, 0] == number
            other = ~layer.between(torch.ones_like(rows), columns[number - 1])
            assert (layer.partition.w_bar[rows][other[rows]] == 0).all()
        columns = [units[place] for units in used]


def test_the_first_task_leaves_units_free_and_later_ones_get_them() -> None:
    method = make()
    shares = []
    for task in TASKS:
        method.learn(task)
        shares.append(sum(method.figures()["capacity"]))
    assert 0 < shares[0] < shares[1] <= shares[2] <= 1
    assert shares[0] < 0.9


def test_more_tolerance_prunes_more_and_accuracy_falls_by_no_more() -> None:
    owned = []
    for tolerance in (0.0, 0.5):
        method = make(own=CLNPOptions(tolerance=tolerance))
        report = method.learn(TASKS[0])
        owned.append(method.figures()["capacity"][0])
        assert report.accuracy_after_projection >= report.accuracy_before_projection - tolerance
    assert owned[1] < owned[0]


def test_activity_is_the_mean_activation() -> None:
    method = make(convolutions)
    task = toy_task(1, (3, 8, 8))
    with method.net.transaction() as draft:
        learner = method.learner(task, method.task_config(1), draft)
        assert isinstance(learner, CLNPLearner)
        images = inputs_of(task)
        first, last = learner._activations(images)
        backbone = method.net.backbone
        assert isinstance(backbone, nn.Sequential)
        torch.testing.assert_close(first, backbone[:3](images).flatten(2))
        torch.testing.assert_close(last[:, :, 0], backbone(images))
        assert isinstance(task.train, Arrays)
        with torch.no_grad():
            activity = backbone(task.train.inputs).double().abs().sum(0)
            torch.testing.assert_close(learner._activity()[1], activity, rtol=1e-5, atol=1e-5)
            loss = learner.objective(torch.tensor(1.0), images)
        norm = sum(float(layer.module.weight.detach().abs().sum()) for layer in learner.layers)
        assert float(loss) == pytest.approx(1 + 1e-3 * norm)


def test_networks_that_are_no_chain_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"clnp: layer 1: .*, got BatchNorm2d"):
        CLNP(Lifelong(toy_convnet(), 16, norms="per-task"), CONFIG).check(TASKS)
