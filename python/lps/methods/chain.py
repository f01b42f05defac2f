"""What methods share that give whole units to tasks: which units feed a layer, and how a task's units join the network.

A unit is an output of a Linear layer or a channel of a convolution. A network in which it is clear who feeds whom is a
chain: one ``nn.Sequential`` of Linear and Conv layers, with nothing between them that mixes units or makes something
of a unit that is 0. A closed unit is 0 then for all that follows. Of a layer whose weight is frozen no task has units:
what it gives are inputs, and the layer after it begins like a first one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lps.errors import ConfigError
from lps.methods.base import Method
from lps.methods.dense import Dense, DenseLearner
from lps.partition import Partition
from lps.signature import Signature
from lps.task import Task

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_UNIT_BY_UNIT = (
    *(nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.Identity),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)


@dataclass(frozen=True)
class Layer:
    """A prunable layer; each unit of the layer before stands for ``repeats`` of its inputs in a row, unless none
    ``feeds`` it: the first layer, and what comes after a frozen one.
    """

    partition: Partition
    module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    repeats: int
    feeds: bool

    @property
    def units(self) -> int:
        """How many it has."""
        return len(self.module.weight)

    def used(self) -> Tensor:
        """True for each unit that an earlier task has: some weight into it is owned."""
        return ~self.partition.free().flatten(1).all(1)

    def between(self, these: Tensor, those: Tensor | None) -> Tensor:
        """True for each weight that leads from a unit of ``those``, in the layer before, to one of ``these``.

        Of a layer that no units feed, all inputs count.
        """
        shape = self.module.weight.shape
        if not self.feeds:
            those = None
        columns = these.new_ones(shape[1]) if those is None else those.repeat_interleave(self.repeats)
        both = these[:, None] & columns
        return both.view(*both.shape, *[1] * (len(shape) - 2)).expand(shape)


def find_chain(net: Lifelong, method: str) -> list[Layer]:
    """The layers from the first to the last; refuses a network that is no chain."""
    partitions = {module: partition for partition, _ in net.prunable() for module, _ in partition.places}
    layers: list[Layer] = []
    before: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | None = None
    weights: list[Tensor] = []  # of all layers, frozen ones too
    feeds, flat = False, False  # whether units feed the next layer; whether positions of a convolution stand in a row

    def refuse(name: str, why: str) -> ConfigError:
        return ConfigError(
            f"{method}: layer {name or 'backbone'}: expected one nn.Sequential of Linear and Conv layers with ReLU, "
            f"dropout, pooling and Flatten between them, got {why}"
        )

    for name, module in modules_in_order(net.backbone):
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            partition = partitions.get(name)
            if any(weight is module.weight for weight in weights):
                raise refuse(name, "a weight that is used twice")
            if problem := _problem(net, name, partition):
                raise refuse(name, problem)
            if isinstance(module, _CONVS) and module.groups > 1:
                raise refuse(name, f"a convolution in {module.groups} groups")
            inputs, units = module.weight.shape[1], len(before.weight) if before is not None else 0
            repeats = inputs // units if flat and isinstance(before, _CONVS) else 1
            if before is not None and repeats * units != inputs:
                raise refuse(name, f"{inputs} inputs after {units} units")
            if partition is not None:
                layers.append(Layer(partition, module, repeats, feeds))
            weights.append(module.weight)
            before, feeds, flat = module, partition is not None, False
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif type(module) in _POOLS:
            if flat or isinstance(before, nn.Linear):
                raise refuse(name, f"{type(module).__name__} over units")
        elif type(module) not in _UNIT_BY_UNIT:
            raise refuse(name, type(module).__name__)
    last = len(weights[-1])
    if net.features != last and (net.features % last or isinstance(before, nn.Linear)):
        raise refuse("of the features", f"{net.features} features after {last} units")
    return layers


def _problem(net: Lifelong, layer: str, partition: Partition | None) -> str | None:
    """What keeps tasks from having units of a layer: its weight is excluded, or its bias cannot be closed."""
    weight, bias = (f"{layer}.{name}" if layer else name for name in ("weight", "bias"))
    if partition is None and weight not in net.frozen:
        return "one that is excluded"
    if partition is not None and bias in net.frozen:
        return "a frozen bias beside a weight that is not: a task closes units by both"
    return None


def modules_in_order(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that a Sequential, with those inside it, runs one after another."""
    if type(module) is nn.Sequential:
        for inner, child in module._modules.items():
            if child is not None:
                yield from modules_in_order(child, f"{name}.{inner}" if name else inner)
    else:
        yield name, module


class ChainMethod(Dense):
    """Gives whole units to tasks; ``net`` must be made with ``norms="per-task"``, so that biases are a task's own."""

    forgets = False

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse a network that is no chain."""
        Method.check(self, tasks)
        find_chain(self.net, self.name)


class ChainLearner(DenseLearner, ABC):
    """Trains weights that no earlier task depends on, and gives the task the units that are open at its end.

    ``frozen`` is true, per layer, for weights that must not move. Their gradients are set to 0, and as the optimiser
    is new in every task, its moments and its steps are exactly 0 then.
    """

    frozen: list[Tensor]

    @torch.no_grad()
    def begin_task(self) -> None:
        """Find the layers and which of their units earlier tasks have; task 1 starts from the backbone's weights."""
        self.layers = find_chain(self.net, self.method.name)
        self.used = [layer.used() for layer in self.layers]
        if self.number > 1:
            for layer in self.layers:
                partition = layer.partition
                values = torch.where(partition.free(), self.first_values(partition), partition.w_bar)
                layer.module.weight.copy_(values)

    @abstractmethod
    def first_values(self, partition: Partition) -> Tensor:
        """What a later task starts from, where weights are free."""

    @abstractmethod
    def open_units(self) -> list[Tensor]:
        """True, per layer, for each unit that the task has now."""

    @abstractmethod
    def kept(self) -> list[Tensor]:
        """True, per layer, for each weight that the task will run with, own or reused."""

    def connections(self, units: Sequence[Tensor]) -> list[Tensor]:
        """True, per layer, for each weight between two of these units."""
        pairs = zip(self.layers, units, [None, *units[:-1]], strict=True)
        return [layer.between(these, those) for layer, these, those in pairs]

    def before_update(self) -> None:
        """Hold the frozen weights."""
        for layer, frozen in zip(self.layers, self.frozen, strict=True):
            if layer.module.weight.grad is not None:
                layer.module.weight.grad.masked_fill_(frozen, 0)

    @torch.no_grad()
    def take_in(self, task: Task, signature: Signature) -> None:
        """The task owns the kept weights that were free, and reuses the other kept ones."""
        values, spent = [], []
        for layer, units, kept in zip(self.layers, self.open_units(), self.kept(), strict=True):
            layer.partition.set_kept(kept)
            if layer.module.bias is not None:
                layer.module.bias.masked_fill_(~units, 0)
            values.append(layer.module.weight.detach())
            spent.append(int((kept | ~layer.partition.free()).sum()) / kept.numel())
        self.draft.commit(task, values, spent, signature)
