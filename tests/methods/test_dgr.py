"""Deep Generative Replay: the loss with replayed inputs, the generator, and what it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError
from lps.methods.dgr import DGR, GENERATOR, SHAPE, DGRLearner, Generator
from lps.methods.finetune import Finetune
from lps.methods.options import DGROptions
from torch import nn
from torch.nn.functional import cross_entropy

from tests.toy import QUICK, inputs_of, toy_mlp, toy_task

CONFIG = replace(QUICK, epochs=(5, 5, 0))
TASKS = [toy_task(1), toy_task(2), toy_task(3, classes=4)]
OWN = DGROptions(hidden=32, latent=8)


def make(own: DGROptions = OWN) -> DGR:
    torch.manual_seed(0)
    return DGR(Lifelong(toy_mlp(norm=False, dropout=0), 16), CONFIG, own)


@contextmanager
def third_task(method: DGR) -> Iterator[DGRLearner]:
    for task in TASKS[:2]:
        method.learn(task)
    with method.net.transaction() as draft:
        learner = method.learner(TASKS[2], method.task_config(3), draft)
        assert isinstance(learner, DGRLearner)
        yield learner


@pytest.mark.parametrize("importance", [None, 0.75])
def test_the_loss_of_replay_counts_as_the_formula_says(importance: float | None) -> None:
    share = importance or 1 / 3
    with third_task(make(replace(OWN, importance=importance))) as learner, torch.no_grad():
        inputs, loss = inputs_of(TASKS[2]), torch.tensor(2.0)
        torch.manual_seed(7)
        objective = learner.objective(loss, inputs)
        torch.manual_seed(7)
        current = loss + learner.generator.loss(inputs)
        dreamt, answers = learner.replay(len(inputs))
        features = learner.net.backbone(dreamt)
        solver = [cross_entropy(learner.net.heads[k](features), answers[k]) for k in (0, 1)]
        replayed = (solver[0] + solver[1]) / 2 + learner.generator.loss(dreamt)
        torch.testing.assert_close(objective, share * current + (1 - share) * replayed)


def test_replay_has_the_answers_of_the_network_that_the_task_before_left() -> None:
    with third_task(make()) as learner, torch.no_grad():
        dreamt, answers = learner.replay(20)
        before = [learner.net.heads[k](learner.net.backbone(dreamt)).argmax(1) for k in (0, 1)]
        assert all(torch.equal(*pair) for pair in zip(answers, before, strict=True))
        for parameter in [*learner.net.backbone.parameters(), *learner.generator.parameters()]:
            parameter.zero_()
        torch.manual_seed(1)
        first, _ = learner.replay(20)
        assert dreamt.shape == (20, 12)
        assert float(first.std()) > 0.1
        assert any(bool((labels != labels[0]).any()) for labels in answers)


def test_it_forgets_less_than_fine_tuning() -> None:
    accuracies = []
    for kind in (Finetune, DGR):
        method = kind(make().net, CONFIG, OWN if kind is DGR else None)
        for task in TASKS:
            method.learn(task)
        accuracies.append(sum(method.net.accuracy(k, task.test) for k, task in enumerate(TASKS, 1)) / 3)
    assert accuracies[1] > accuracies[0] + 0.03


def test_a_generator_learns_its_inputs() -> None:
    torch.manual_seed(0)
    generator = Generator((2, 3), 32, 4)
    centre = torch.arange(6.0).view(2, 3)
    adam = torch.optim.Adam(generator.parameters(), 1e-2)
    for _ in range(150):
        adam.zero_grad()
        generator.loss(centre + 0.1 * torch.randn(64, 2, 3)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    with torch.no_grad():
        made = generator.sample(200)
    assert made.shape == (200, 2, 3)
    torch.testing.assert_close(made.mean(0), centre, rtol=0, atol=0.3)


def test_images_are_replayed_in_their_shape() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
    method = DGR(Lifelong(backbone, 16), replace(CONFIG, epochs=(1, 0, 0)), OWN)
    for number in (1, 2):
        method.learn(toy_task(number, (3, 8, 8)))
    assert method.memory[SHAPE] == [3, 8, 8]


def test_another_shape_is_refused() -> None:
    """Although the network reads it."""
    method = DGR(Lifelong(nn.Sequential(nn.Flatten(), *toy_mlp(norm=False, dropout=0)), 16), CONFIG, OWN)
    method.learn(TASKS[0])
    with pytest.raises(ConfigError, match=r"dgr: task clouds-2: expected inputs of the shape \[12\], .* got \[3, 4\]"):
        method.learn(toy_task(2, (3, 4)))


def test_another_memory_is_refused() -> None:
    method = make()
    method.learn(TASKS[0])
    good = method.memory
    broken: list[dict[str, Any]] = [
        {},
        {**good, SHAPE: [13]},
        {**good, SHAPE: [-12]},
        {**good, GENERATOR: {"encoder.0.weight": good[GENERATOR]["encoder.0.weight"]}},
    ]
    for memory in broken:
        with pytest.raises(ValueError, match=r"generator|Expected|expected"):
            make().load_memory(memory)
    make().load_memory(good)
