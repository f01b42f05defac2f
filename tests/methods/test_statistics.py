"""Frozen running statistics that are far from a new task's are warned of once; norms per task are as good as alone."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from lps import Arrays, Lifelong, Task
from lps.methods import METHODS
from lps.methods.statistics import bytes_per_task, compared
from torch import Tensor, nn

from tests.toy import QUICK, toy_convnet, toy_task

SHAPE = (3, 8, 8)
FROZEN = "frozen since task 1"


def scaled(task: Task, factor: float, offset: float) -> Task:
    """The task with its inputs in another range."""
    train, test = (Arrays(inputs * factor + offset, labels) for inputs, labels in map(whole, (task.train, task.test)))
    return replace(task, train=train, test=test)


def whole(part: object) -> tuple[Tensor, Tensor]:
    assert isinstance(part, Arrays)
    return part.inputs, part.labels


def learnt(norms: str, *tasks: Task, method: str = "lps", backbone: nn.Module | None = None) -> Lifelong:
    torch.manual_seed(0)
    net = Lifelong(backbone or toy_convnet(), 16, norms=norms, quiet=True)
    for task in tasks:
        METHODS[method](net, QUICK).learn(task)
    return net


FAR = [toy_task(1, SHAPE), scaled(toy_task(2, SHAPE), 6.0, 5.0), scaled(toy_task(3, SHAPE), 6.0, -5.0)]


@pytest.mark.parametrize("method", ["lps", "packnet", "wsn", "supsup"])
def test_a_task_that_is_far_is_warned_of_once(method: str) -> None:
    with pytest.warns(UserWarning, match=FROZEN) as seen:
        net = learnt("frozen", *FAR, method=method)
    (warning,) = seen
    said = str(warning.message)
    assert said.startswith(
        "task 2 (clouds-2): the statistics of normalisation layer 1, frozen since task 1, are far from "
    )
    # One convolution's bias and another's, the norm's weight, bias and statistics, and its count of batches.
    expected = 4 * (12 + 16 + 4 * 8) + 8
    assert said.endswith(f"per-task) every task has its own, here {expected} bytes")
    assert (
        sum(value.numel() * value.element_size() for value in learnt("per-task", FAR[0]).private_of(1).values())
        == expected
    )
    assert bytes_per_task(net) == expected
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learnt("per-task", *FAR)
        learnt("frozen", FAR[1])
        plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16))
        learnt("frozen", *FAR, backbone=plain)
        net = learnt("frozen", FAR[0])
        with compared(net, "task 1 again"):
            net.backbone(whole(FAR[0].train)[0][:32])


def test_comparing_does_not_change_what_is_learnt() -> None:
    with pytest.warns(UserWarning, match=FROZEN):
        net = learnt("frozen", *FAR)
    torch.manual_seed(0)
    twin = Lifelong(toy_convnet(), 16, norms="frozen", quiet=True)
    twin.warned = True
    for task in FAR:
        METHODS["lps"](twin, QUICK).learn(task)
    assert [task.digest for task in twin.learnt] == [task.digest for task in net.learnt]


def test_statistics_that_are_not_finite_are_far() -> None:
    net = learnt("frozen", FAR[0])
    with pytest.warns(UserWarning, match="inf standard deviations or more away"), compared(net, "task 2"):
        net.backbone(torch.full((4, *SHAPE), torch.inf))
