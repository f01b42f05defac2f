"""Supermasks in Superposition (Wortsman et al., NeurIPS 2020): random weights that never move, and a mask per task.

The weights are the paper's signed Kaiming constants: sqrt(2 / fan_in) with the signs of the backbone's first weights.
Every task learns a score per weight from the start (edge-popup of Ramanujan et al., CVPR 2020) and runs with the best
``share`` of each layer. In the file a task owns the weights that no earlier one uses, so it holds only what is used.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from lps.methods.options import READS
from lps.methods.scored import WEIGHTS, Scored, ScoredLearner, fan_in


class SupSupLearner(ScoredLearner):
    """Weights stay where they are."""

    def first_weights(self, drawn: Tensor) -> Tensor:
        """The signed constant."""
        constant = torch.full_like(drawn, sqrt(2 / fan_in(drawn)))
        return constant.copysign(drawn)


class SupSup(Scored):
    """A mask per task over fixed random weights; the scores are drawn anew for every task."""

    name = "supsup"
    reads = READS[name]
    task_learner = SupSupLearner
    remembers = (WEIGHTS,)
