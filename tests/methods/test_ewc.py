"""Elastic weight consolidation: the Fisher information, the springs and their sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError, FileFormatError
from lps.methods.ewc import CENTRE, CHUNK, EWC, FISHER, EWCLearner, fisher_information, joined
from lps.methods.options import EWCOptions
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.toy import QUICK, toy_convnet, toy_mlp, toy_net, toy_task


def one_by_one(backbone: nn.Module, head: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The definition, example by example and class by class."""
    total = {name: torch.zeros_like(parameter) for name, parameter in backbone.named_parameters()}
    for example in inputs:
        log_p = torch.log_softmax(head(backbone(example[None])), 1)[0]
        for value in log_p:
            grads = torch.autograd.grad(value, list(backbone.parameters()), retain_graph=True)
            for name, grad in zip(total, grads, strict=True):
                total[name] += value.detach().exp() * grad**2 / len(inputs)
    return total


def test_fisher_of_a_linear_softmax_model_is_the_analytic_one() -> None:
    """With logits W x + b it is E[x_j^2 p_i (1 - p_i)] for w_ij, and E[p_i (1 - p_i)] for b_i."""
    torch.manual_seed(0)
    layer, inputs = nn.Linear(5, 4), torch.randn(CHUNK + 44, 5)  # more than one chunk, the last one smaller
    found = fisher_information(layer, nn.Identity(), inputs, dict(layer.named_parameters()))
    p = torch.softmax(layer(inputs), 1).detach()
    variance = p * (1 - p)
    torch.testing.assert_close(found["weight"], variance.T @ inputs**2 / len(inputs))
    torch.testing.assert_close(found["bias"], variance.mean(0))


class Twice(nn.Module):
    """Calls a layer twice, and another with a row per word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.twice = nn.Linear(3, 12), nn.Linear(12, 12)
        self.tied = nn.Linear(12, 12)
        self.other = nn.Linear(12, 12)
        self.other.weight = self.tied.weight
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Linear(12, 16)

    def forward(self, x: Tensor) -> Tensor:
        """12 inputs as 4 words."""
        x = self.words(x.view(-1, 4, 3)).mean(1)
        x = self.relu(self.tied(self.twice(torch.tanh(self.twice(x)))))
        features: Tensor = self.relu(self.last(self.other(x)))
        return features


@pytest.mark.parametrize(
    ("make", "shape"), [(toy_mlp, (12,)), (toy_convnet, (3, 8, 8)), (Twice, (12,))], ids=["mlp", "convnet", "twice"]
)
def test_fisher_is_exact_for_every_kind_of_layer(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    backbone, head, inputs = make().double().eval(), nn.Linear(16, 3).double(), torch.randn(7, *shape).double()
    found = fisher_information(backbone, head, inputs, dict(backbone.named_parameters()))
    torch.testing.assert_close(found, one_by_one(backbone, head, inputs))


def test_two_springs_joined_pull_as_both_do() -> None:
    torch.manual_seed(2)
    theta = torch.randn(50, dtype=torch.float64, requires_grad=True)
    fishers, centres = torch.rand(2, 50).double(), torch.randn(2, 50).double()
    fishers[0, :10] = fishers[1, 5:15] = 0  # among them weights that neither task depends on
    penalty = (fishers / 2 * (theta - centres) ** 2).sum()
    total, centre = joined({"w": fishers[0]}, {"w": centres[0]}, {"w": fishers[1]}, {"w": centres[1]})
    (wanted,) = torch.autograd.grad(penalty, theta)
    torch.testing.assert_close(total["w"] * (theta.detach() - centre["w"]), wanted)


def test_the_gradient_is_that_of_equation_3() -> None:
    method = EWC(toy_net(), QUICK, EWCOptions(strength=30.0, fisher_samples=50))
    method.learn(toy_task(1))
    centre, fisher = method.memory[CENTRE].values(), method.memory[FISHER].values()
    with method.net.transaction() as draft:
        learner = method.learner(toy_task(2), method.task_config(2), draft)
        assert isinstance(learner, EWCLearner)
        with torch.no_grad():
            for weight in learner.weights:
                weight.add_(torch.randn_like(weight), alpha=0.1)
        learner.logits(torch.randn(8, 12)).square().sum().backward()  # type: ignore[no-untyped-call]
        plain = [weight.grad.clone() for weight in learner.weights if weight.grad is not None]
        penalty = torch.zeros(())
        for strength, weight, end in zip(fisher, learner.weights, centre, strict=True):
            penalty = penalty + (30.0 / 2 * strength * (weight - end).square()).sum()
        pull = torch.autograd.grad(penalty, learner.weights)
        learner.before_update()
        for weight, grad, more in zip(learner.weights, plain, pull, strict=True):
            assert weight.grad is not None
            assert more.abs().max() > 0
            torch.testing.assert_close(weight.grad, grad + more)


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_a_stronger_spring_moves_shared_weights_less(norms: str) -> None:
    moved = []
    for strength in (0.0, 1e6):
        torch.manual_seed(0)
        method = EWC(Lifelong(toy_mlp(), 16, norms=norms), QUICK, EWCOptions(strength=strength))
        method.learn(toy_task(1))
        held, fisher = method.memory[CENTRE], method.memory[FISHER]
        method.learn(replace(toy_task(2), class_weights=[1.0, 2.0, 3.0]))
        assert not held.keys() & method.net.private_names
        now = dict(method.net.backbone.named_parameters())
        moved.append(sum(float((fisher[name] * (now[name] - held[name]) ** 2).sum()) for name in held))
    assert moved[1] < moved[0] / 100


def test_bf16_and_ready_made_batches_are_learnt() -> None:
    method = EWC(toy_net(), replace(QUICK, precision="bf16"))
    for number in (1, 2):
        task = toy_task(number)
        method.learn(replace(task, train=DataLoader(task.train, batch_size=20)))
    assert len(method.learnt) == 2


def test_what_it_cannot_learn_is_refused() -> None:
    odd = replace(toy_task(1), loss=nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match="ewc expects cross entropy"):
        EWC(toy_net(), QUICK).check([odd])
    with pytest.raises(ConfigError, match="ewc expects cross entropy"):
        EWC(toy_net(), QUICK).learn(odd)
    with pytest.raises(ConfigError, match="norms"):
        EWC(Lifelong(toy_mlp(), 16, norms="network"), QUICK).learn(toy_task(1))


def test_a_damaged_memory_is_refused() -> None:
    method = EWC(toy_net(), QUICK)
    method.learn(toy_task(1))
    good = method.memory
    first = next(iter(good[FISHER]))
    for bad in (
        {},
        {FISHER: good[FISHER]},
        {**good, FISHER: {first: good[FISHER][first]}},
        {**good, CENTRE: {**good[CENTRE], first: torch.zeros(3)}},
        {**good, CENTRE: {**good[CENTRE], first: 1.0}},
    ):
        with pytest.raises(FileFormatError):
            EWC(method.net, QUICK).load_memory(bad)
    EWC(method.net, QUICK).load_memory(good)
