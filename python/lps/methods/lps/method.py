"""Learn-Prune-Share (Wang et al., ICDM 2020): a task prunes the free weights down to its own share and reuses the
earlier tasks' weights that a learnt mask selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from lps.draft import Draft
from lps.errors import CapacityError
from lps.methods.base import Method
from lps.methods.fit import Phase
from lps.methods.lps.config import LPSConfig, TaskConfig
from lps.methods.lps.phases import PhasedLearner, phases_of
from lps.methods.lps.plan import plan_task
from lps.methods.lps.steppers import OptimizerFactory
from lps.methods.options import READS
from lps.partition import groups_with
from lps.task import Learnt, Task

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


class LPS(Method):
    """Learns tasks into a :class:`lps.Lifelong` network; ``optimizer`` makes an optimiser to use instead of Adam."""

    name = "lps"
    reads = READS[name]

    def __init__(
        self, net: Lifelong, config: LPSConfig, own: Any = None, *, optimizer: OptimizerFactory | None = None
    ) -> None:
        super().__init__(net, config, own)
        self.optimizer = optimizer

    def phases(self, number: int) -> list[Phase]:
        """Warm-up, the solver and final."""
        return phases_of(self.task_config(number))

    def check(self, tasks: Sequence[Task]) -> None:
        """Plan every task: a run that cannot fit is refused at its start."""
        trial, count = deepcopy(self.net), len(tasks)
        for number in range(len(trial.learnt) + 1, count + 1):
            config = self.task_config(number)
            try:
                plans = plan_task(trial, config)
            except CapacityError as error:
                share = int(1e4 * (1 - config.reserve) / count) / 1e4
                raise CapacityError(f"{error}; {count} tasks of one size fit with an alpha of {share:g} each") from None
            for (partition, _), plan in zip(trial.prunable(), plans, strict=True):
                # How many groups are left does not depend on which ones a task takes.
                groups = groups_with(partition.free(), plan.view).nonzero().squeeze(1)[: plan.keep_free]
                partition.owner.view(plan.view).index_fill_(1, groups, number)
                partition.spent = plan.spent
            trial.learnt.append(Learnt(f"task {number}", 0, ""))

    def learner(self, task: Task, config: TaskConfig, draft: Draft) -> PhasedLearner:
        """A learner with a plan for every layer."""
        return PhasedLearner(self.net, task, config, plan_task(self.net, config), draft, self.optimizer)

    def belongs_to(self, task: Task, config: TaskConfig) -> dict[str, Any]:
        """With the kind of optimiser."""
        return {**super().belongs_to(task, config), "optimizer": "adam" if self.optimizer is None else "another"}
