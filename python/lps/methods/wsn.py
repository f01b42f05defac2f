"""Winning SubNetworks (Kang et al., ICML 2022): weights and scores are learnt together, and a task runs with the
weights of the best scores.

Algorithm 1, Eqs. (2) to (5): the forward pass uses the weights whose scores are the best ``share`` of each layer, over
all of its weights. A score gets the gradient of the effective weight times the weight. Free weights inside the mask
learn as usual; those in an earlier task's mask do not move. Scores and free weights go on from one task to the next, as
in the authors' code. Nothing is pruned at the end: the final mask is that of the last step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lps.methods.options import READS
from lps.methods.scored import SCORES, WEIGHTS, Scored, ScoredLearner, ScoredWeight
from lps_kernels.owner import KEPT_BIT


class WSNLearner(ScoredLearner):
    """Weights move where they are free and in the mask."""

    weights_learn = True

    def first_weights(self, drawn: Tensor) -> Tensor:
        """As drawn, but nothing is 0: the step takes what is not 0 in the effective weight for the mask."""
        return torch.where(drawn == 0, torch.finfo(drawn.dtype).tiny, drawn)

    def owners(self, layer: ScoredWeight) -> Tensor:
        """The kept bit says which weights learn: those that are free."""
        owners = super().owners(layer)
        return torch.where(layer.partition.free(), owners | KEPT_BIT, owners)


class WSN(Scored):
    """Weights and scores learnt together; later tasks reuse whatever their scores select."""

    name = "wsn"
    reads = READS[name]
    task_learner = WSNLearner
    remembers = (WEIGHTS, SCORES)
