"""Learning without forgetting (Li and Hoiem, TPAMI 2018): the earlier heads go on answering as before, on new inputs.

Eq. (3): while a task is learnt, the answers of every earlier head to the task's own inputs are pulled towards those of
the network before the task, both softened by the temperature T. The terms of all earlier heads are added to the loss,
and shared weights and all heads are trained together, with no warm-up of the new head. The cross entropy of Eq. (2) is
taken as the divergence, which differs by a constant: it is 0 where nothing has changed, and has the same gradients.

The earlier answers come from a copy of the network, as augmented inputs are new in every epoch. The weight of the
terms (1) and T (2) are the paper's.

Adam goes on from task to task. If it began anew, its first steps would move every weight by the whole learning rate,
however small the gradient: that alone costs most of what the earlier heads know.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from lps.methods.dense import Dense, DenseLearner
from lps.methods.options import READS, LwFOptions
from lps_kernels.calls import Inputs, call, vectors


class LwFLearner(DenseLearner):
    """Adds what the earlier heads lose to the loss."""

    own: LwFOptions

    def begin_task(self) -> None:
        """Copy the network as it is before the task."""
        if self.number > 1:
            self.old_backbone = deepcopy(self.net.backbone).eval()
            self.old_heads = deepcopy(self.net.heads[: self.number - 1]).eval()

    def trained_beside(self) -> list[nn.Parameter]:
        """All heads."""
        return list(self.net.heads.requires_grad_(True).parameters())

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """Eq. (3) without its weight decay."""
        if self.number == 1:
            return loss
        with torch.no_grad():
            old_features = vectors(call(self.old_backbone, inputs))
            wanted = [head(old_features) for head in self.old_heads]
        for head, answers in zip(self.net.heads, wanted, strict=False):
            loss = loss + self.own.strength * distillation(head(self.features), answers, self.own.temperature)
        return loss


class LwF(Dense):
    """Distils the network before the task into the earlier heads."""

    name = "lwf"
    reads = READS[name]
    own_losses = False  # what is compared are class probabilities
    task_learner = LwFLearner
    keeps_moments = True


def distillation(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """The divergence of softened answers from the wanted ones, a mean over examples."""
    kind = torch.promote_types(logits.dtype, torch.float32)  # autocast gives logits in bf16
    got, targets = (torch.log_softmax(values / temperature, 1, dtype=kind) for values in (logits, wanted))
    return kl_div(got, targets, reduction="batchmean", log_target=True)
