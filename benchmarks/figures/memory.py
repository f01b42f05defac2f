"""``python -m benchmarks.figures.memory SIDE SOLVER``: bytes of memory per prunable weight in the solver's phase.

One large layer and one example per batch, so that activations, the head and the libraries' own buffers are small beside
the training state. Linux only: the kernel counts the peak.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import torch
from lps import Arrays, Lifelong, Listener, LPSConfig, Task
from torch import nn

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(which: str) -> int:
    """Resident bytes now (``VmRSS``) or at most since the last reset (``VmHWM``)."""
    found = re.search(rf"{which}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise OSError(f"{STATUS} does not tell {which}")
    return int(found[1]) * 1024


class Peak(Listener):
    """Watches the solver's phase."""

    def __init__(self, solver: str) -> None:
        self.solver = solver

    def start(self, task: int, name: str, steps: int) -> None:
        """Each task counts anew; the last one remains."""
        del task, name, steps
        self.phase, self.bytes = "", 0

    def step(self, phase: str, examples: int) -> None:
        """Start counting with the first step of the phase; the rest of it has the same peak."""
        del examples
        if phase == self.solver and self.phase != phase:
            CLEAR.write_text("5")  # makes VmHWM begin anew
        self.phase = phase
        if phase == self.solver:
            self.bytes = resident("VmHWM")


def main(side: int, solver: str) -> None:
    """Print bytes per weight and the number of weights of a layer with this many rows and columns."""
    data = Arrays(torch.rand(6, side), torch.arange(6) % 2)
    tasks = [Task(f"noise {number}", 2, train=data, test=data) for number in (1, 2)]
    config = LPSConfig(alpha=0.1, beta=0.9, epochs=(0, 1, 0), batch_size=1, rho_levels=2)
    if solver == "straight-through":
        config = replace(config, solver="straight-through", beta="auto")
    small = Lifelong(nn.Linear(8, 8), features=8)
    few = Arrays(torch.rand(8, 8), torch.arange(8) % 2)
    small.learn(Task("noise", 2, train=few, test=few), config)  # the libraries allocate what they keep
    start = resident("VmRSS")
    net = Lifelong(nn.Linear(side, side, bias=False), features=side)
    peak = Peak(solver)
    for task in tasks:
        net.learn(task, config, listener=peak)
    print((peak.bytes - start) / side**2, side**2)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2])
    except OSError as error:
        sys.exit(str(error))
