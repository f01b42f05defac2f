"""Which task's weights a backbone holds, safe for several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any


class Switch:
    """Lets calls for one task run together, and calls for another one wait until they are done.

    ``active`` is the task whose weights the backbone holds, 0 for none; ``write`` puts those of a task there.
    """

    def __init__(self, active: int = 0) -> None:
        self.active = active
        self._running = 0  # calls that use the weights of the active task now
        self._changed = Condition()

    def __deepcopy__(self, memo: dict[int, Any]) -> Switch:
        """A copy for a copied network, in which nothing runs."""
        return Switch(self.active)

    def __reduce__(self) -> tuple[type[Switch], tuple[int]]:
        """A lock cannot be pickled; the task can."""
        return Switch, (self.active,)

    @contextmanager
    def holding(self, task: int, write: Callable[[int], None]) -> Iterator[None]:
        """The weights of this task are in place and stay there until the end of the block."""
        with self._changed:
            while self.active != task and self._running:
                self._changed.wait()
            if self.active != task:
                self.active = 0  # until all layers are written
                write(task)
                self.active = task
            self._running += 1
            self._changed.notify_all()  # others may have been waiting for the same task
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def take(self, task: int) -> None:
        """Wait until no call runs; from then on the backbone holds what the caller puts there, as this task."""
        with self._changed:
            while self._running:
                self._changed.wait()
            self.active = task
