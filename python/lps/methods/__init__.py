"""Methods that learn a stream of tasks, behind one interface; a new one is one file and one line in :data:`METHODS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from lps.methods.lps import LPS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong
    from lps.methods.lps.config import LPSConfig
    from lps.runs.checkpoint import Checkpoint
    from lps.runs.events import Listener, TaskReport
    from lps.task import Learnt, Task


class Method(Protocol):
    """A network that learns tasks one after another and predicts with any of them."""

    @property
    def learnt(self) -> list[Learnt]:
        """The tasks learnt so far."""

    def learn(
        self, task: Task, *, listener: Listener | None = None, checkpoint: Checkpoint | None = None
    ) -> TaskReport:
        """Learn the next task; if that fails, nothing changes."""

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of a learnt task, counted from 1."""

    def state_dict(self) -> dict[str, Any]:
        """All tensors of all tasks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the tasks of another network of the same architecture."""

    def figures(self) -> dict[str, Any]:
        """The method's own entries of results.json, beside accuracies."""


# Each makes a method from the network that it teaches and the configuration of its tasks.
METHODS: dict[str, Callable[[Lifelong, LPSConfig], Method]] = {"lps": LPS}
