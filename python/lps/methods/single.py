"""One full network per task: nothing is shared, nothing can be forgotten, and the file grows by a network a task.

Every task starts from the same first weights. The line that reuse is measured against: what a task learns here, it
learns alone.
"""

from __future__ import annotations

from lps.methods.afresh import Afresh, AfreshLearner
from lps.methods.options import READS


class SingleLearner(AfreshLearner):
    """Trains a network of the task's own."""

    def begin_task(self) -> None:
        """Start from the first weights."""
        super().begin_task()
        self.start_afresh()


class Single(Afresh):
    """A network per task; ``net`` must be made with ``norms="network"``."""

    name = "single"
    reads = READS[name]
    forgets = False
    task_learner = SingleLearner
