"""Which task's weights a backbone holds, safe for several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from lps.errors import ConfigError

# Seconds that a call waits for calls of another task. Taking turns is the faster way on cores that one call can fill:
# four threads with random tasks of the MLP took 0.8 to 1.0 of the time of one, 1.1 with no patience.
PATIENCE = 0.02


class Switch:
    """Several calls may run on the weights of one task; the task changes only while no call runs.

    ``active`` is the task whose weights were asked for last, 0 for none; while ``learning``, it is the task in learning
    and stays so. ``write(task)`` writes the weights of a task into the backbone.
    """

    def __init__(self, active: int = 0) -> None:
        self.active = active
        self.learning = False
        self._written = False  # whether the backbone holds them: a copy may have been made in the middle of a change
        self._running = 0  # calls that use the weights of the active task now
        self._changed = Condition()

    def __deepcopy__(self, memo: dict[int, Any]) -> Switch:
        """The switch of a copied network, on which no call runs."""
        return Switch(0 if self.learning else self.active)

    def __reduce__(self) -> tuple[type[Switch], tuple[int]]:
        """Pickle the active task; the lock cannot be pickled."""
        return Switch, (0 if self.learning else self.active,)

    def enter(self, task: int, write: Callable[[int], None]) -> bool:
        """Write the weights of a task and hold them until :meth:`leave`.

        While calls of another task are running, wait for them, but not longer than ``PATIENCE``: then the answer is
        False, and the caller has to do without.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.active == task or not self._running, PATIENCE)
            if self.active != task and self._running:
                self._check(task)
                return False
            self._change(task, write)
            self._running += 1
            return True

    def leave(self) -> None:
        """End a call that has entered."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def change(self, task: int, write: Callable[[int], None]) -> None:
        """Write the weights of a task once no call runs."""
        with self._changed:
            self._wait()
            self._change(task, write)

    def begin_learning(self, task: int) -> int:
        """Hand the backbone to the learner of a task once no call runs; returns the task that was active."""
        with self._changed:
            self._wait()
            if self.learning:
                raise ConfigError(f"Lifelong: learn: task {self.active} is being learnt; wait until it is done")
            before, self.active, self.learning, self._written = self.active, task, True, True
            return before

    def end_learning(self) -> None:
        """Take the backbone back; its weights belong to no task."""
        with self._changed:
            self._wait()
            self.active, self.learning = 0, False

    def forget(self) -> None:
        """The backbone's weights were replaced from outside and belong to no task."""
        with self._changed:
            self._wait()
            self.active = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no call runs on the backbone's weights, which belong to no task after it."""
        with self._changed:
            self._wait()
            self.active = 0
            yield

    def _wait(self) -> None:
        while self._running:
            self._changed.wait()

    def _check(self, task: int) -> None:
        if self.learning and task != self.active:
            raise ConfigError(f"Lifelong: task: expected {self.active}, which is being learnt, got {task}")

    def _change(self, task: int, write: Callable[[int], None]) -> None:
        self._check(task)
        if self.active != task or not self._written:
            self._written = False  # until all layers are
            write(task)
            self.active, self._written = task, True
