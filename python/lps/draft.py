"""A task being learnt: how a network commits it as a whole or rolls back to its state before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lps.errors import ConfigError
from lps.frozen import check_still
from lps.observed import dtype_name
from lps.partition import rounded
from lps.signature import Signature
from lps.task import Learnt, Task

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

# What a learnt task is rounded to, by the name of the setting ``store``.
ROUNDING = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class Draft:
    """One more task of a network, not yet committed; made by :meth:`lps.Lifelong.transaction`.

    ``number`` is the task's number, counted from 1. With ``rounding`` its weights and its head become values of this
    dtype when it is committed.
    """

    rounding: torch.dtype | None = None

    def __init__(self, net: Lifelong) -> None:
        self._net = net
        self.number = len(net.learnt) + 1
        if self.number == 1:
            check_still(net)
        self._metadata = replace(net.metadata)
        self._common = [(name, tensor, tensor.detach().clone()) for name, tensor in net.common_tensors()]
        self._heads = [(tensor, tensor.detach().clone()) for tensor in net.heads.state_dict(keep_vars=True).values()]
        self._trainable = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
        if self.number == 1:
            # Nothing reads w_bar before task 1 is committed: it holds the backbone's own weights for roll_back().
            for partition, weight in net.prunable():
                partition.w_bar.copy_(weight.detach())
        self._partitions = [partition.state() for partition, _ in net.prunable()]

    @property
    def committed(self) -> bool:
        """Whether the network has taken the task in; follows from ``learnt``, so that no interrupt comes in between."""
        return len(self._net.learnt) >= self.number

    def add_head(self, head: nn.Module) -> None:
        """Set the head of the task, which must be a new module."""
        known = {id(parameter) for parameter in self._net.parameters()}
        if any(id(parameter) in known for parameter in head.parameters()):
            raise ConfigError(f"task {self.number}: head: expected a new module, got one that the network uses already")
        self._net.heads.append(head)

    @torch.no_grad()
    def restore_frozen(self) -> None:
        """Restore tensors that are frozen for this task: from task 2 on, all common tensors except private ones.

        torch's normalisation layers do not update frozen statistics, but a user's module may change its buffers.
        """
        frozen, private = self._net.frozen, self._net.private_names
        self._restore(lambda name: name in frozen or (self.number > 1 and name not in private))

    @torch.no_grad()
    def restore_all(self) -> None:
        """Restore all common tensors: a trial of the network must leave no trace in its buffers."""
        self._restore(lambda _: True)

    def commit(self, task: Task, values: Sequence[Tensor], spent: Sequence[float], signature: Signature) -> None:
        """Make the task part of the network; ``values`` are the trained tensors ``v``, one per prunable weight.

        The change of ``learnt`` is the commit point: a failure before it is rolled back.
        """
        self._check_can_commit()
        with torch.no_grad():
            for parameter in self._net.heads[-1].parameters():
                parameter.copy_(rounded(parameter, self.rounding))
            for (partition, _), v, share in zip(self._net.prunable(), values, spent, strict=True):
                partition.commit(v, self.rounding)
                partition.spent = share
        self._complete(signature)
        self._net.learnt.append(self._learnt(task))

    def commit_whole(self, task: Task, signature: Signature) -> None:
        """Make the task part of the network with all weights as the backbone holds them now, for every task.

        Earlier tasks may answer otherwise from here on, so their digests are taken anew.
        """
        self._check_can_commit()
        net = self._net
        with torch.no_grad():
            for partition, weight in net.prunable():
                partition.take_all(weight)
        self._complete(signature)
        earlier = [replace(learnt, digest=net.digest(number)) for number, learnt in enumerate(net.learnt, 1)]
        net.learnt = [*earlier, self._learnt(task)]

    def _check_can_commit(self) -> None:
        net = self._net
        if self.committed or not net.learning or len(net.heads) != self.number:
            raise ConfigError(
                f"Lifelong: commit: expected task {self.number} to be committed once, within its transaction and with "
                "one head"
            )

    def _complete(self, signature: Signature) -> None:
        """All that a task has beside its share of the weights."""
        net = self._net
        for parameter in net.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        net.add_private({name: tensor for name, tensor in net.common_tensors() if name in net.private_names})
        # lps.export and lps.infer need it without the data.
        net.metadata.record(self.number, signature, dtype_name(net.like))

    def _learnt(self, task: Task) -> Learnt:
        return Learnt(task.name, task.classes, self._net.digest(self.number), tuple(task.class_names))

    def roll_back(self) -> None:
        """Restore the network's state before the task, except which task is active."""
        net, learnt = self._net, self.number - 1
        with torch.no_grad():
            self._restore(lambda _: True)
            for tensor, values in self._heads:
                tensor.copy_(values)
            for (partition, weight), state in zip(net.prunable(), self._partitions, strict=True):
                partition.go_back(state)
                if not learnt:
                    weight.data.copy_(partition.w_bar)
                    partition.w_bar.zero_()
        del net.heads[learnt:]
        del net.private[learnt:]
        net.metadata = self._metadata
        for parameter, required in self._trainable:
            parameter.requires_grad_(required)
            parameter.grad = None

    def _restore(self, wanted: Callable[[str], bool]) -> None:
        """Restore values, and buffers that a module replaced by new tensors."""
        for name, tensor, values in self._common:
            if not wanted(name):
                continue
            tensor.copy_(values)
            module, _, attribute = name.rpartition(".")
            if not isinstance(tensor, nn.Parameter):
                self._net.backbone.get_submodule(module)._buffers[attribute] = tensor
