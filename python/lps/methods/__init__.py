"""Ways to learn a stream of tasks, behind one interface; a new one is one file and one line in :data:`METHODS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from lps.methods.lps import LPS

if TYPE_CHECKING:
    from lps.runs.checkpoint import Checkpoint
    from lps.runs.events import Listener, TaskReport
    from lps.task import Learnt, Task


class Method(Protocol):
    """A network that learns tasks one after another and answers each of them."""

    @property
    def learnt(self) -> list[Learnt]:
        """The tasks learnt so far."""

    def learn(
        self, task: Task, *, listener: Listener | None = None, checkpoint: Checkpoint | None = None
    ) -> TaskReport:
        """Learn the next task, or leave everything as it was."""

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of a learnt task, counted from 1."""

    def state_dict(self) -> dict[str, Any]:
        """All tensors of all tasks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the tasks of another one."""

    def figures(self) -> dict[str, Any]:
        """What the method has to say of itself in results.json, beside accuracies."""


METHODS: dict[str, type[Method]] = {"lps": LPS}
