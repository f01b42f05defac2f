"""Lifelong networks that were not trained, with exactly the weights in each task that training would have left.

Speed and size depend on which weights there are, not on what they say. Counts are exact, so that a figure's density is
the one that it names; values keep activations within a few orders of magnitude, so that no peer meets denormals.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lps import Lifelong, models
from lps.models import Architecture
from lps.task import Learnt
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lps_kernels import View, group_view, pack_bits
from lps_kernels.cutout import Cutout, LayerSummary

CLASSES = 10


@dataclass(frozen=True)
class Subject:
    """One task of a network in both forms: whole, with zeros where it has no weights, and as a lifelong network that
    it can be cut out of.
    """

    net: Lifelong
    task: int
    dense: nn.Module

    def inputs(self, batch: int) -> Tensor:
        """Random inputs of the network's shape."""
        generator = torch.Generator().manual_seed(batch)
        return torch.randn(batch, *(self.net.metadata.input_shape or []), generator=generator)

    def cut_out(self, batch: int) -> Cutout:
        """The task as it is cut out for batches of this size."""
        return self.net.extract(self.task, batch_size=batch)

    def density(self, layers: Sequence[LayerSummary]) -> float:
        """Share of the weights of these layers that the task has."""
        whole = {name.removeprefix("backbone."): weight for name, weight in self.dense.named_parameters()}
        weights = [whole[f"{layer.name}.weight"] for layer in layers]
        return sum(int(weight.count_nonzero()) for weight in weights) / sum(weight.numel() for weight in weights)


def fabricate(
    backbone: nn.Module,
    input_shape: Sequence[int],
    *,
    pattern: str,
    share: float,
    tasks: int = 1,
    beta: float = 0.5,
    seed: int = 0,
) -> Subject:
    """The last of ``tasks`` tasks that own ``share`` of every layer each.

    From the second on a task reuses ``beta`` of the groups owned before it (structured sharing).
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for the heads
    liven(backbone, generator)
    architecture = backbone.architecture
    assert isinstance(architecture, Architecture)
    net = Lifelong(backbone, architecture.features, pattern=pattern, sharing="structured", norms="frozen")
    for partition, weight in net.prunable():
        view = group_view(weight.shape, pattern)
        order = torch.randperm(view[1], generator=generator)
        for task in range(1, tasks + 1):
            before, after = _count(view[1], share * (task - 1)), max(1, _count(view[1], share * task))
            reused = order[:before][torch.randperm(before, generator=generator)[: _count(before, beta)]]
            own = _flags(order[before:after], view, weight)
            # As He et al. for as many inputs as there are: what a layer gives is about as large as what it gets.
            inputs = max(1.0, weight[0].numel() * (1 if pattern == "filter" else share * task))
            values = torch.randn(weight.shape, generator=generator) * (2 / inputs) ** 0.5
            partition.w_bar = torch.where(own, values, partition.w_bar)
            partition.owner = torch.where(own, task, partition.owner).to(torch.uint8)
            partition.add_task(pack_bits(_flags(reused, view, weight)))
    for task in range(1, tasks + 1):
        net.heads.append(nn.Linear(architecture.features, CLASSES))
        net.learnt.append(Learnt(f"task-{task}", CLASSES, ""))
    net.metadata.input_shape = list(input_shape)
    return Subject(net.eval(), tasks, _dense(net, tasks))


def mlp(density: float) -> Subject:
    """MLP 784-2000-2000-10 with irregular weights."""
    return fabricate(models.create("mlp"), [784], pattern="irregular", share=density)


def cifar_net() -> Subject:
    """The CIFAR net with half of the columns: task 1 of the paper."""
    return fabricate(models.create("cifar-net"), [3, 32, 32], pattern="column", share=0.5)


def resnet50_1d(pattern: str, tasks: int = 1) -> Subject:
    """ResNet50-1D whose tasks own a fifth of the columns or filters each; task 1 is that of the paper."""
    return fabricate(models.create("resnet50-1d"), [2, 288], pattern=pattern, share=0.2, tasks=tasks)


def _count(groups: int, share: float) -> int:
    return round(groups * share)


def _flags(chosen: Tensor, view: View, weight: Tensor) -> Tensor:
    """True at the weights of these groups."""
    flags = torch.zeros(view[1], dtype=torch.bool)
    flags[chosen] = True
    return flags.view(1, -1, 1).expand(view).reshape(weight.shape)


def liven(backbone: nn.Module, generator: torch.Generator) -> None:
    """Statistics and affine maps as training would leave them: a norm that is the identity may fold for free."""
    for module in backbone.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.copy_(0.3 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))
            with torch.no_grad():
                module.weight.copy_(0.5 + torch.rand(module.num_features, generator=generator))
                module.bias.copy_(0.3 * torch.randn(module.num_features, generator=generator))


def _dense(net: Lifelong, task: int) -> nn.Module:
    """The whole network as plain modules; a name of the backbone's begins as in the lifelong network."""
    net.activate(task)
    parts = OrderedDict(backbone=copy.deepcopy(net.backbone), head=copy.deepcopy(net.heads[task - 1]))
    return nn.Sequential(parts).requires_grad_(False).eval()
