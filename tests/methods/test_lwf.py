"""Learning without forgetting: the distillation of earlier answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError, FileFormatError
from lps.methods.finetune import Finetune
from lps.methods.lwf import LwF, LwFLearner, distillation
from lps.methods.options import LwFOptions
from torch import nn

from tests.toy import QUICK, answers, toy_mlp, toy_net, toy_task


def test_the_term_is_equation_2_less_a_constant() -> None:
    """Probabilities to the power of 1/T, normalised; the constant is the entropy of the wanted ones."""
    torch.manual_seed(0)
    logits, wanted = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    new, old = (torch.softmax(values, 1) ** 0.5 for values in (logits, wanted))
    new, old = new / new.sum(1, keepdim=True), old / old.sum(1, keepdim=True)
    entropy = -(old * old.log()).sum(1).mean()
    by_hand = -(old * new.log()).sum(1).mean()
    found = distillation(logits, wanted, 2.0)
    torch.testing.assert_close(found, by_hand - entropy)
    grads = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, by_hand)]
    torch.testing.assert_close(grads[0], grads[1])


def test_it_is_zero_without_gradient_where_nothing_has_changed() -> None:
    logits = torch.randn(6, 4, requires_grad=True)
    found = distillation(logits, logits.detach().clone(), 2.0)
    (gradient,) = torch.autograd.grad(found, logits)
    assert found.item() == pytest.approx(0, abs=1e-6)
    assert gradient.abs().max() < 1e-6


def test_every_earlier_head_adds_its_term() -> None:
    torch.manual_seed(0)
    net = Lifelong(toy_mlp(norm=False, dropout=0.0), 16)
    method = LwF(net, QUICK, LwFOptions(strength=3.0, temperature=1.5))
    tasks = [toy_task(1), toy_task(2, classes=5), toy_task(3)]
    for task in tasks[:2]:
        method.learn(task)
    inputs = torch.randn(9, 12)
    before = [net(inputs, task=number).detach() for number in (1, 2)]
    with net.transaction() as draft:
        learner = method.learner(tasks[2], method.task_config(3), draft)
        assert isinstance(learner, LwFLearner)
        learner.logits(inputs)
        start = learner.objective(torch.tensor(2.0), inputs)
        assert start.item() == pytest.approx(2.0, abs=1e-5)  # the network is still the old one
        with torch.no_grad():
            for weight in (*learner.shared.values(), *net.heads.parameters()):
                weight.add_(torch.randn_like(weight), alpha=0.1)
        learner.logits(inputs)
        now = [net.heads[index](learner.features) for index in (0, 1)]
        terms = sum(distillation(new, old, 1.5) for new, old in zip(now, before, strict=True))
        found = learner.objective(torch.tensor(2.0), inputs)
        torch.testing.assert_close(found, 2.0 + 3.0 * terms)
        found.backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is not None for parameter in net.heads[:2].parameters())


class LastingFinetune(Finetune):
    """Fine-tuning in which Adam goes on from task to task."""

    keeps_moments = True


def test_with_no_weight_it_is_fine_tuning_in_which_adam_goes_on() -> None:
    tasks = [toy_task(1), toy_task(2, classes=4)]
    found = []
    for method in (LastingFinetune(toy_net(), QUICK), LwF(toy_net(), QUICK, LwFOptions(strength=0.0))):
        for task in tasks:
            method.learn(task)
        found.append(answers(method.net, tasks)[-1])  # the head of task 1 drifts on without a gradient
    assert torch.equal(*found)


def test_adam_goes_on_from_task_to_task() -> None:
    method = LwF(toy_net(), QUICK)
    method.learn(toy_task(1))
    net, memory = method.net, method.memory
    steps = method.steps(1, toy_task(1))
    with net.transaction() as draft:
        learner = method.learner(toy_task(2), method.task_config(2), draft)
        state = learner.optimizer.state
        for name, parameter in (*learner.shared.items(), *net.heads[:1].named_parameters(prefix="heads")):
            assert state[parameter]["step"].item() == steps
            for kind in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(state[parameter][kind], memory[kind][name])
                assert state[parameter][kind].data_ptr() != memory[kind][name].data_ptr()
        assert not any(state.get(parameter) for parameter in net.heads[1].parameters())
    for kind, value in (("step", torch.tensor(-1.0)), ("exp_avg", torch.zeros(3))):
        name = next(iter(memory[kind]))
        with pytest.raises(FileFormatError, match=f"{kind} of"):
            method.load_memory({**memory, kind: {**memory[kind], name: value}})


def test_bf16_and_class_weights_are_learnt() -> None:
    method = LwF(toy_net(), replace(QUICK, precision="bf16"))
    for number in (1, 2):
        method.learn(replace(toy_task(number), class_weights=[1.0, 0.5, 2.0]))
    assert len(method.learnt) == 2


def test_what_it_cannot_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="lwf expects cross entropy"):
        LwF(toy_net(), QUICK).check([replace(toy_task(1), loss=nn.CrossEntropyLoss())])
    with pytest.raises(ConfigError, match="lwf: expected a network made with norms='frozen', got 'per-task'"):
        LwF(Lifelong(toy_mlp(), 16, norms="per-task"), QUICK).learn(toy_task(1))
    with pytest.raises(FileFormatError, match="expected exp_avg, exp_avg_sq, step, got teacher"):
        LwF(toy_net(), QUICK).load_memory({"teacher": 1})
