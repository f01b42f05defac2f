"""Synaptic intelligence: the path integral, the importance and the pull."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lps import Arrays, Lifelong
from lps.errors import FileFormatError
from lps.methods.options import SIOptions
from lps.methods.si import IMPORTANCE, SI, SILearner
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.toy import QUICK, toy_mlp, toy_net, toy_task


def loss_of(learner: SILearner) -> Tensor:
    train = learner.task.train
    assert isinstance(train, Arrays)
    return cross_entropy(learner.logits(train.inputs), train.labels)


def test_the_path_integral_is_the_fall_of_the_loss() -> None:
    """With the head frozen and small steps on all examples, the weights' shares add up to it."""
    torch.manual_seed(0)
    net = Lifelong(toy_mlp(norm=False, dropout=0.0).double(), 16)
    method = SI(net, replace(QUICK, lr=1e-4))
    with net.transaction() as draft:
        learner = method.learner(toy_task(1, dtype=torch.float64), method.task_config(1), draft)
        assert isinstance(learner, SILearner)
        learner.head.requires_grad_(False)
        first = loss_of(learner).item()
        for _ in range(100):
            loss_of(learner).backward()  # type: ignore[no-untyped-call]
            learner.step(1.0)
        fall = first - loss_of(learner).item()
        assert fall > 0.05
        assert sum(float(path.sum()) for path in learner.path) == pytest.approx(fall, rel=0.01)


def test_importance_and_pull_are_those_of_the_equations() -> None:
    torch.manual_seed(0)
    method = SI(toy_net(), QUICK, SIOptions(strength=3.0, damping=0.01))
    method.learn(toy_task(1))
    before = method.memory[IMPORTANCE]
    with method.net.transaction() as draft:
        learner = method.learner(toy_task(2), method.task_config(2), draft)
        assert isinstance(learner, SILearner)
        loss_of(learner).backward()  # type: ignore[no-untyped-call]
        learner.step(1.0)
        loss_of(learner).backward()  # type: ignore[no-untyped-call]
        plain = [weight.grad.clone() for weight in learner.weights if weight.grad is not None]
        penalty = sum(
            (3.0 * before[name] * (weight - start).square()).sum()
            for (name, weight), start in zip(learner.held.items(), learner.start, strict=True)
        )
        pull = torch.autograd.grad(torch.as_tensor(penalty), learner.weights)
        path, old = [path.clone() for path in learner.path], [weight.detach().clone() for weight in learner.weights]
        learner.before_update()
        for weight, grad, more in zip(learner.weights, plain, pull, strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, grad + more)
        learner.optimizer.step()
        learner.after_update()
        for now, then, weight, first, grad in zip(learner.path, path, learner.weights, old, plain, strict=True):
            torch.testing.assert_close(now, then - grad * (weight.detach() - first))  # without the pull
        learner.finish()
        for (name, weight), start, omega in zip(learner.held.items(), learner.start, learner.path, strict=True):
            wanted = before[name] + omega / ((weight.detach() - start) ** 2 + 0.01)
            torch.testing.assert_close(learner.memory[IMPORTANCE][name], wanted.clamp_min(0))


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_a_stronger_pull_moves_shared_weights_less(norms: str) -> None:
    moved = []
    for strength in (0.0, 1e4):
        torch.manual_seed(0)
        net = Lifelong(toy_mlp(), 16, norms=norms)
        method = SI(net, replace(QUICK, precision="bf16"), SIOptions(strength=strength))
        method.learn(replace(toy_task(1), loss=nn.CrossEntropyLoss()))
        held = {name: net.backbone.get_parameter(name).clone() for name in method.memory[IMPORTANCE]}
        importance = method.memory[IMPORTANCE]
        method.learn(toy_task(2, classes=5))
        assert not held.keys() & net.private_names
        now = net.backbone.get_parameter
        moved.append(sum(float((importance[name] * (now(name) - held[name]) ** 2).sum()) for name in held))
    assert moved[1] < moved[0] / 10


def test_a_damaged_memory_or_state_is_refused() -> None:
    method = SI(toy_net(), QUICK)
    method.learn(toy_task(1))
    good = method.memory[IMPORTANCE]
    first = next(iter(good))
    for bad in ({}, {IMPORTANCE: None}, {IMPORTANCE: {**good, first: good[first].double()}}):
        with pytest.raises(FileFormatError):
            SI(method.net, QUICK).load_memory(bad)
    with method.net.transaction() as draft:
        learner = method.learner(toy_task(2), method.task_config(2), draft)
        assert isinstance(learner, SILearner)
        with pytest.raises(FileFormatError, match="path"):
            learner.load_extra_state({"path": {first: torch.zeros(2)}})
