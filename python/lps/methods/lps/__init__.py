"""Learn-Prune-Share (Wang et al., ICDM 2020): a task prunes the free weights down to its own share and reuses the
earlier tasks' weights that a learnt mask selects.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lps.methods.fit import Fit, check_examples
from lps.methods.lps.config import LPSConfig
from lps.methods.lps.phases import PhasedLearner
from lps.methods.lps.plan import plan_task
from lps.methods.lps.steppers import OptimizerFactory
from lps.runs.checkpoint import Checkpoint
from lps.runs.events import Listener, TaskReport
from lps.runs.metrics import capacity, capacity_per_layer, density, separate_bytes
from lps.task import Learnt, Task, length

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


class LPS:
    """Learns tasks into a :class:`lps.Lifelong` network; ``optimizer`` makes an optimiser to use instead of Adam."""

    def __init__(self, net: Lifelong, config: LPSConfig, optimizer: OptimizerFactory | None = None) -> None:
        self.net, self.config, self.optimizer = net, config, optimizer

    @property
    def learnt(self) -> list[Learnt]:
        """The tasks learnt so far."""
        return self.net.learnt

    def learn(
        self, task: Task, *, listener: Listener | None = None, checkpoint: Checkpoint | None = None
    ) -> TaskReport:
        """Learn one more task; if that fails, the network does not change."""
        net, number = self.net, len(self.net.learnt) + 1
        config = self.config.of_task(number)
        plans = plan_task(net, config)
        check_examples(task)
        with net.transaction() as draft, _all_generators_kept(), net.keep_modes():
            # A seed per task: a later task does not depend on how many random numbers the earlier ones drew.
            torch.manual_seed(int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0]))
            belongs_to = self._belongs_to(task, config)
            learner = PhasedLearner(net, task, config, plans, draft, self.optimizer)
            belongs_to["head"] = [[name, list(tensor.shape)] for name, tensor in net.heads[-1].state_dict().items()]
            try:
                fit = Fit(learner, task, config, listener or Listener(), checkpoint, belongs_to)
                report = fit.run()
                draft.restore_frozen()
                report.accuracy = learner.validate()
            finally:
                learner.close()
            learner.check_weights(fit)
            spent = [plan.spent for plan in plans]
            draft.commit(task, [weight.v for weight in learner.weights], spent, fit.input_shape)
        return report

    def _belongs_to(self, task: Task, config: LPSConfig) -> dict[str, Any]:
        """What must be the same for a saved state to go on."""
        net = self.net
        return {
            "method": "lps",
            "number": len(net.learnt) + 1,
            "name": task.name,
            "classes": task.classes,
            "examples": length(task.train),
            "digests": [learnt.digest for learnt in net.learnt],
            "layers": [[partition.name, list(partition.shape)] for partition, _ in net.prunable()],
            "first weights of spread": [partition.init_std for partition, _ in net.prunable()],
            "pattern": net.pattern,
            "sharing": net.sharing,
            "norms": net.norms,
            "optimizer": "adam" if self.optimizer is None else "another",
            "class_weights": None if task.class_weights is None else [float(weight) for weight in task.class_weights],
            "loss": "cross entropy" if task.loss is None else "another",
            "augmentation": task.augment is not None,
            **{name: _listed(value) for name, value in asdict(config).items()},
        }

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of a learnt task, counted from 1."""
        logits: Tensor = self.net(x, task=task)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """All tensors of all tasks."""
        return self.net.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the tasks of another network of the same architecture."""
        self.net.load_state_dict(state)

    def figures(self) -> dict[str, Any]:
        """Shares of the weights, and the size of separate networks."""
        return {
            "capacity": capacity(self.net),
            "capacity_per_layer": capacity_per_layer(self.net),
            "density": density(self.net),
            "separate_bytes": separate_bytes(self.net),
        }


def _all_generators_kept() -> AbstractContextManager[None]:
    """Restore the generators of all devices afterwards: seeding changes every one."""
    devices = range(torch.cuda.device_count())
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices)
    return kept


def _listed(value: Any) -> Any:
    """The value as JSON returns it: with lists for tuples."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
