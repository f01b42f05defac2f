"""What launchers share: a command, where its output goes, and how many run at once."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


@dataclass(frozen=True)
class Command:
    """A process of a set: its name in the set and its command line. What it prints goes to ``<name>.out`` and
    ``<name>.err`` in the folder ``logs``.
    """

    name: str
    arguments: tuple[str, ...]
    logs: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own: Ctrl-C reaches it once, through whoever started it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{self.name}.out").open("wb") as out, (self.logs / f"{self.name}.err").open("wb") as err:
            return subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
                preexec_fn=_die_too,  # noqa: PLW1509  (it takes no lock that a thread could hold)
            )


@dataclass(frozen=True)
class Launch:
    """How commands are run: so many at once (None: as the launcher likes), and for Slurm where and with what."""

    jobs: int | None
    folder: Path  # for files of the launcher's own
    ended: Callable[[str], None]  # called with the name of a command that has ended
    executor: str = "slurm"
    parameters: Mapping[str, object] = field(default_factory=dict)


class Stop:
    """Whether a signal has asked to stop."""

    stop = False


def _die_too() -> None:
    """Called in the new process: the kernel kills it if whoever started it is killed, so that the set can be started
    again at once. Other systems than Linux cannot do this.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
