"""What learners share whose tasks own a part of the prunable weights each: everything but these weights.

A task has a head of its own. Biases and normalisation are learnt with task 1 and frozen after it, or private.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from lps.draft import Draft
from lps.methods.base import validation_accuracy
from lps.methods.fit import Fit
from lps.methods.statistics import compared, is_compiled
from lps.partition import is_sound
from lps.runs.checkpoint import fitting
from lps.task import Task
from lps_kernels.calls import Inputs

if TYPE_CHECKING:
    from lps.lifelong import Lifelong
    from lps.methods.lps.config import TaskConfig


class SplitLearner:
    """The head and the common tensors of one task; a method adds how the prunable weights are learnt.

    ``others`` are the parameters that are trained beside the prunable weights.
    """

    def __init__(self, net: Lifelong, task: Task, config: TaskConfig, draft: Draft) -> None:
        self.net, self.task, self.config, self.draft = net, task, config, draft
        self.number = draft.number
        self.device = next(net.parameters()).device
        self.lr = 0.0
        self.others = self._make_trainable(draft)
        self._compares = self.number > 1 and net.norms == "frozen" and not (net.warned or is_compiled(net.backbone))
        # The common tensors that change meanwhile; buffers of a user's own module are put back after the task.
        self._changing = [
            name
            for name, tensor in net.common_tensors()
            if self.number == 1 or name in net.private_names or not isinstance(tensor, nn.Parameter)
        ]

    def _make_trainable(self, draft: Draft) -> list[nn.Parameter]:
        """Add the head; returns the parameters that are trained beside the prunable weights."""
        net = self.net
        head = self.task.make_head(net.features).to(self.device, net.like.dtype)
        draft.add_head(head)
        for parameter in net.parameters():
            parameter.grad = None  # left by a backward pass of the caller
        for partition, weight in net.prunable():
            weight.requires_grad_(True)
            for tensor in (weight, partition.owner, partition.w_bar):
                tensor.data = tensor.data.contiguous()  # channels-last backbones; the operators write in place
        if self.number == 1:
            common = net.common_parameters()
            for parameter in common:
                parameter.requires_grad_(True)
        else:
            common = self._start_private()
        return [*head.parameters(), *common]

    @torch.no_grad()
    def _start_private(self) -> list[nn.Parameter]:
        """Private tensors of a later task start with task 1's values; returns the trainable ones."""
        trained = []
        for tensor, value in self.net.private_pairs(1):
            tensor.copy_(value)
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(True)
                trained.append(tensor)
        return trained

    def begin_epoch(self) -> None:
        """Back to training mode: validation or a listener may have changed it."""
        self.net.train()

    def logits(self, inputs: Inputs) -> Tensor:
        """Logits of the task being learnt."""
        if self._compares:
            self._compares = False
            with compared(self.net, f"task {self.number} ({self.task.name})"):
                features = self.net.features_of(inputs)
        else:
            features = self.net.features_of(inputs)
        logits: Tensor = self.net.heads[-1](features)
        return logits

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """The loss of the task alone."""
        return loss

    def validate(self) -> float:
        """Accuracy on the validation examples, in fp32; NaN if there are none."""
        return validation_accuracy(self.net, self.number, self.task)

    def end(self) -> None:
        """Undo what a user's own module has done to tensors that are frozen."""
        self.draft.restore_frozen()

    def check_weights(self, own: Iterable[Tensor], fit: Fit, phase: str, epoch: int) -> None:
        """Refuse infinite or NaN weights: the loss cannot show what the last step did. Buffers may hold infinities."""
        checked = [(tensor, False) for tensor in own]
        others = [*self.net.heads[-1].state_dict(keep_vars=True).values()]
        others += [tensor for _, tensor in self.net.common_tensors()]
        checked += [(tensor, not isinstance(tensor, nn.Parameter)) for tensor in others]
        for tensor, infinite in checked:
            if not is_sound(tensor.detach().contiguous(), infinite=infinite):
                raise fit.diverged("a weight became infinite or NaN", phase, epoch)

    def _common(self, name: str) -> Tensor:
        """The backbone's tensor of this name as it is now: a module may put another in a buffer's place."""
        module, _, attribute = name.rpartition(".")
        return cast("Tensor", getattr(self.net.backbone.get_submodule(module), attribute))

    def common_state(self) -> dict[str, Any]:
        """Head and common tensors, for a saved state."""
        head = dict(self.net.heads[-1].state_dict())
        return {"lr": self.lr, "head": head, "common": [self._common(name) for name in self._changing]}

    @torch.no_grad()
    def load_common_state(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.net.heads[-1].load_state_dict(state["head"])
        for name, values in zip(self._changing, state["common"], strict=True):
            self._common(name).copy_(fitting(name, values, self._common(name)))
        self.lr = float(state["lr"])
