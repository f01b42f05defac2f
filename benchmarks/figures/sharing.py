"""The figure of two trainings at once, on the cores of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter

from lps.environment import SPINS

from benchmarks.figures.figure import Figure, UnmeasurableError

ROUNDS = 2


def sharing_figures() -> Iterator[Figure]:
    """Wall time until both of two trainings end, against one alone; the best of two rounds each."""
    one, two = (min(_seconds(processes) for _ in range(ROUNDS)) for processes in (1, 2))
    detail = f"{two:.1f} s against {one:.1f} s, with the start of the processes"
    yield Figure("two trainings at once vs one alone", two / one, "x", "<=", 2.3, detail)


def _seconds(processes: int) -> float:
    command = [sys.executable, "-m", "benchmarks.figures.sharing_worker"]
    start = perf_counter()
    # As the commands set it for themselves: importing this package loads torch before a worker could.
    environment = {"GOMP_SPINCOUNT": SPINS, **os.environ}
    running = [subprocess.Popen(command, env=environment) for _ in range(processes)]
    for process in running:
        if process.wait():
            raise UnmeasurableError(f"{' '.join(command[1:])} ended with {process.returncode}")
    return perf_counter() - start
