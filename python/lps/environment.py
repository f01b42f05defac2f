"""The machine: its processor, and how a command's threads share it.

Called before torch is loaded, so this file imports nothing heavy.

Idle threads of GNU OpenMP, which torch uses, spin for about 300,000 rounds before they sleep. That starves every other
process: two trainings at once took up to five times as long as one. 3,000 rounds are enough to bridge the gaps between
two operators of a training step, which is not slower than with torch's default (docs/decisions.md has the figures).
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

SPINS = "3000"


def share_cores() -> None:
    """Let idle threads sleep soon, unless the user's environment says how they wait."""
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS


def peak_memory() -> int:
    """The most bytes that this process has held at once; 0 on Windows, where nobody has looked."""
    try:
        from resource import RUSAGE_SELF, getrusage  # noqa: PLC0415
    except ImportError:
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # Linux counts in kB


def processor() -> str:
    """Its name."""
    description = Path("/proc/cpuinfo")
    for line in description.read_text().splitlines() if description.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
