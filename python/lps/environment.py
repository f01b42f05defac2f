"""How a command's threads share the machine; to be called before torch is loaded, so this file imports nothing heavy.

Threads of OpenMP wait for each other by spinning, which costs nothing while a process is alone and starves every other
one: two trainings at once on two cores took about five times as long as one. Waiting asleep instead costs a single
training nothing that can be measured (docs/decisions.md has the figures).
"""

from __future__ import annotations

import os


def share_cores() -> None:
    """Let idle threads sleep, unless the user's environment says how they wait."""
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
