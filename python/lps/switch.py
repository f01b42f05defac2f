"""Which task's weights a backbone holds, safe for several threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Any


class Switch:
    """Lets several calls run on the weights of one task, and changes the task only while none does.

    ``active`` is the task whose weights were asked for last, 0 for none. ``write`` puts those of a task there.
    """

    def __init__(self, active: int = 0) -> None:
        self.active = active
        self._written = False  # whether they are there: a copy may have been made in the middle of a change
        self._reserved = False
        self._running = 0  # calls that use the weights of the active task now
        self._changed = Condition()

    def __deepcopy__(self, memo: dict[int, Any]) -> Switch:
        """A copy for a copied network, in which nothing runs."""
        return Switch(self.active)

    def __reduce__(self) -> tuple[type[Switch], tuple[int]]:
        """A lock cannot be pickled; the task can."""
        return Switch, (self.active,)

    def enter(self, task: int, write: Callable[[int], None]) -> bool:
        """Put the weights of a task in place until :meth:`leave`; False if calls of another task run on theirs."""
        with self._changed:
            if self.active != task and (self._running or self._reserved):
                return False
            self._change(task, write)
            self._running += 1
            return True

    def leave(self) -> None:
        """A call that has entered is done."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def take(self, task: int, write: Callable[[int], None] | None = None) -> None:
        """Go over to a task once no call runs; without ``write`` the weights are the caller's business, and no call
        changes them until the caller takes task 0.
        """
        with self._changed:
            while self._running:
                self._changed.wait()
            if write is None:
                self.active, self._written, self._reserved = task, True, task != 0
            else:
                self._change(task, write)

    def _change(self, task: int, write: Callable[[int], None]) -> None:
        if self.active != task or not self._written:
            self._written = False  # until all layers are
            write(task)
            self.active, self._written = task, True
