"""How a network gets back to where it was before a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


class CommonTensors:
    """The tensors that no task owns, as they are now."""

    def __init__(self, net: Lifelong) -> None:
        self.backbone = net.backbone
        self.tensors = [(name, tensor, tensor.detach().clone()) for name, tensor in net.common_tensors()]

    @torch.no_grad()
    def restore(self) -> None:
        """Put values back, and buffers that a module replaced by others."""
        for name, tensor, values in self.tensors:
            tensor.copy_(values)
            module, _, attribute = name.rpartition(".")
            if not isinstance(tensor, nn.Parameter):
                self.backbone.get_submodule(module)._buffers[attribute] = tensor


@contextmanager
def undo_on_failure(net: Lifelong) -> Iterator[CommonTensors]:
    """Whatever happens while a task is learnt, the tasks before it stay as they were.

    Gives the common tensors as they were before.
    """
    learnt, active, metadata = len(net.learnt), net._active, replace(net.metadata)
    common = CommonTensors(net)
    trainable = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
    if not learnt:
        # Before task 1 is committed nothing needs w_bar: it keeps the backbone's own weights for the way back.
        for partition, weight in net.prunable():
            partition.w_bar.copy_(weight.detach())
    states = [partition.state() for partition, _ in net.prunable()]
    net._learning = True
    try:
        yield common
    except BaseException:
        if len(net.learnt) == learnt:  # else it was interrupted after all was done
            common.restore()
            for (partition, weight), state in zip(net.prunable(), states, strict=True):
                partition.go_back(state)
                if not learnt:
                    weight.data.copy_(partition.w_bar)
                    partition.w_bar.zero_()
            del net.heads[learnt:]
            net.metadata = metadata
            for parameter, required in trainable:
                parameter.requires_grad_(required)
                parameter.grad = None
            net._active = 0
            net._learning = False
            if active:
                net.activate(active)
        raise
    finally:
        net._learning = False
