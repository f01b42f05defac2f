"""Ways to run a set of independent commands; a new one is one file and one line in :data:`LAUNCHERS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lps.launchers import local, slurm
from lps.launchers.base import Command, Launch

__all__ = ["LAUNCHERS", "Command", "Launch"]

# Each refuses what it cannot be run with, before anything is written, and returns a function that starts commands,
# tells of every one that has ended by calling ``ended`` and returns after the last.
LAUNCHERS: dict[str, Callable[[Launch], Callable[[Sequence[Command]], None]]] = {
    "local": local.launcher,
    "slurm": slurm.launcher,
}
