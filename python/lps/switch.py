"""Which task's weights a backbone holds, safe for several threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Any


class Switch:
    """Several calls may run on the weights of one task; the task changes only while no call runs.

    ``active`` is the task whose weights the backbone holds, 0 for none. ``write(task)`` writes them into it.
    """

    def __init__(self, active: int = 0) -> None:
        self.active = active
        self._running = 0  # calls running on the weights of the active task
        self._changed = Condition()

    def __deepcopy__(self, memo: dict[int, Any]) -> Switch:
        """The switch of a copied network, on which no call runs."""
        return Switch(self.active)

    def __reduce__(self) -> tuple[type[Switch], tuple[int]]:
        """Pickle the active task; the lock cannot be pickled."""
        return Switch, (self.active,)

    def enter(self, task: int, write: Callable[[int], None]) -> bool:
        """Write the weights of a task and hold them until :meth:`leave`; False if calls of another task are running."""
        with self._changed:
            if self.active != task and self._running:
                return False
            self._change(task, write)
            self._running += 1
            return True

    def leave(self) -> None:
        """End a call that has entered."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def take(self, task: int, write: Callable[[int], None] | None = None) -> None:
        """Make a task active once no call runs; without ``write`` the caller writes the weights."""
        with self._changed:
            while self._running:
                self._changed.wait()
            if write is None:
                self.active = task
            else:
                self._change(task, write)

    def _change(self, task: int, write: Callable[[int], None]) -> None:
        if self.active != task:
            self.active = 0  # until all layers are written
            write(task)
            self.active = task
