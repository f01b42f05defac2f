"""No forgetting: the logits of every earlier task are bit-identical to those right after it was learnt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lps import Lifelong, LPSConfig, Task, load
from torch import Tensor, nn

from tests.toy import QUICK, answers, toy_convnet, toy_mlp, toy_task

MODES = [
    ("irregular", "elementwise"),
    *((pattern, sharing) for pattern in ("column", "filter", "channel") for sharing in ("elementwise", "structured")),
]


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Compared as integers, so that a NaN equals itself and -0.0 differs from 0.0."""
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


SOLVERS = [
    QUICK,
    replace(QUICK, pull="proximal", beta="max:0.8"),
    replace(QUICK, solver="straight-through", beta="auto"),
    replace(QUICK, solver="straight-through", beta=0.6),
]


@pytest.mark.parametrize("config", SOLVERS, ids=["gradient", "proximal", "straight-through", "straight-through-share"])
@pytest.mark.parametrize(("pattern", "sharing"), MODES)
@pytest.mark.parametrize(("backbone", "shape"), [(toy_mlp, (12,)), (toy_convnet, (3, 8, 8))], ids=["mlp", "convnet"])
def test_logits_of_all_earlier_tasks_stay_bit_identical(
    backbone: Callable[[], nn.Module],
    shape: tuple[int, ...],
    pattern: str,
    sharing: str,
    config: LPSConfig,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    net = Lifelong(backbone(), features=16, pattern=pattern, sharing=sharing)
    tasks: list[Task] = []
    learnt: list[Tensor] = []
    for number in range(1, 5):
        tasks.append(toy_task(number, shape))
        net.train()  # dropout and BatchNorm as a user would leave them between two tasks
        net.learn(tasks[-1], config)
        now = answers(net, tasks)
        assert same_bits(now[:-1], learnt), f"after task {number}"
        learnt.append(now[-1])
        net.save(tmp_path / "model.lps")
        loaded = load(tmp_path / "model.lps", backbone())
        assert same_bits(answers(loaded, tasks), learnt), f"from the file after task {number}"
        assert [net.digest(t) for t in range(1, number + 1)] == [task.digest for task in net.learnt]


def test_the_comparison_sees_one_flipped_bit() -> None:
    net = Lifelong(toy_mlp(), features=16)
    tasks = [toy_task(1), toy_task(2)]
    for task in tasks:
        net.learn(task, QUICK)
    before = answers(net, tasks)
    damaged = copy.deepcopy(net)
    partition, _ = list(damaged.prunable())[1]
    owned = (partition.owner == 1).nonzero()[:, 0:2]
    for row, column in owned.tolist():  # one whose input and output are alive: most are
        bits = partition.w_bar.view(torch.int32)
        bits[row, column] ^= 1 << 20
        damaged._switch.forget()
        assert damaged.digest(1) != net.learnt[0].digest
        if not same_bits(answers(damaged, tasks)[:1], before[:1]):
            break
        bits[row, column] ^= 1 << 20
    else:
        pytest.fail("no flipped bit changed the logits of task 1")
    assert same_bits(answers(net, tasks), before)


def test_a_flipped_bit_of_a_frozen_statistic_changes_every_digest() -> None:
    net = Lifelong(toy_mlp(), features=16, norms="frozen")
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    buffer = net.backbone.get_buffer("1.running_var")
    buffer.view(torch.int32)[3] ^= 1
    assert all(net.digest(number) != net.learnt[number - 1].digest for number in (1, 2))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_module_that_changes_its_own_buffer_is_put_back(in_place: bool) -> None:
    class Counter(nn.Module):
        total: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training and in_place:
                self.total += 1
            elif self.training:
                self.total = self.total + 1
            return x + 0.001 * self.total

    net = Lifelong(nn.Sequential(nn.Linear(12, 16), Counter(), nn.ReLU()), features=16)
    tasks = [toy_task(1), toy_task(2)]
    net.learn(tasks[0], QUICK)
    before = answers(net, tasks[:1])
    net.learn(tasks[1], QUICK)
    assert same_bits(answers(net, tasks)[:1], before)
    assert net.digest(1) == net.learnt[0].digest
