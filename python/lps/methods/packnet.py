"""PackNet (Mallya and Lazebnik, CVPR 2018): train the free weights, prune the smallest by magnitude, retrain the rest.

A policy on the parts of Learn-Prune-Share: every task reuses all earlier weights (section 3 of the paper), and there is
no solver between training and pruning. ``alpha`` is the share of each layer that survives a task's pruning; of the
epochs W, A, F a task trains W + A before it is pruned and F after it.
"""

from __future__ import annotations

from dataclasses import replace

from lps.methods.lps.config import TaskConfig
from lps.methods.lps.method import LPS
from lps.methods.options import READS


class PackNet(LPS):
    """Prunes by magnitude and shares everything."""

    name = "packnet"
    reads = READS[name]

    def task_config(self, number: int) -> TaskConfig:
        """That of Learn-Prune-Share with all weights reused and no epochs of the solver."""
        config = self.config.of_task(number)
        before, solver, after = config.epochs
        return replace(config, beta=1.0, epochs=(before + solver, 0, after), solver="admm", share_cost=0.0)
