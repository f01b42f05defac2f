"""What the tests of methods with scores share: a small network, its masks, and a learner between two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from lps import Arrays, Lifelong, Listener
from lps.methods import METHODS
from lps.methods.fit import Fit
from lps.methods.options import ShareOption
from lps.methods.scored import Scored, ScoredLearner
from torch import Tensor, nn

from lps_kernels import unpack_bits
from tests.toy import QUICK, toy_task

CONFIG = replace(QUICK, epochs=(1, 2, 1))
TASKS = [toy_task(seed) for seed in (1, 2, 3)]
SHARE = 0.3


def backbone() -> nn.Sequential:
    """The same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def make(name: str, **settings: Any) -> Scored:
    """The method on a network without tasks."""
    method = METHODS[name](Lifelong(backbone(), 16, **settings), CONFIG, ShareOption(SHARE))
    assert isinstance(method, Scored)
    return method


def masks(net: Lifelong, task: int) -> list[Tensor]:
    """The weights of each layer that a learnt task runs with, own and reused."""
    return [
        unpack_bits(partition.mask(task), partition.shape) | (partition.owner == task)
        for partition, _ in net.prunable()
    ]


def begun(method: Scored) -> tuple[ScoredLearner, Fit]:
    """The learner of the next task before its first step."""
    number = len(method.learnt) + 1
    task, config = TASKS[number - 1], CONFIG.of_task(number)
    transaction = method.net.transaction()
    learner = method.learner(task, config, transaction.__enter__())
    learner.transaction = transaction  # type: ignore[attr-defined] # open as long as the learner lives
    learner.begin_epoch()
    return learner, Fit(learner, task, config, Listener(), None, {"number": number})


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a task."""
    data = TASKS[number - 1].train
    assert isinstance(data, Arrays)
    return data.inputs[:32], data.labels[:32]


class Selected(torch.autograd.Function):
    """A mask of the best scores whose gradient passes straight through, as the papers write it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: int) -> Tensor:
        del ctx
        mask = torch.zeros(scores.numel())
        mask[scores.view(-1).topk(keep).indices] = 1
        return mask.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grads[0], None


def gradients(learner: ScoredLearner, inputs: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of weights and scores of each layer, by autograd."""
    leaves = [
        (layer.weights.clone().requires_grad_(), layer.scores.clone().requires_grad_()) for layer in learner.layers
    ]
    x = inputs
    for layer, (weights, scores) in zip(learner.layers, leaves, strict=True):
        module = learner.net.backbone.get_submodule(layer.partition.places[0][0])
        assert isinstance(module, nn.Linear)
        mask = Selected.apply(scores, layer.keep)  # type: ignore[no-untyped-call]
        x = torch.relu(nn.functional.linear(x, weights * mask, module.bias))
    loss = nn.functional.cross_entropy(learner.net.heads[-1](x), labels)
    flat = torch.autograd.grad(loss, [leaf for pair in leaves for leaf in pair])
    return list(zip(flat[::2], flat[1::2], strict=True))
