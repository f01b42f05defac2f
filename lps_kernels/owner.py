"""The owner byte of a weight: which task owns it, and whether the latest projection kept it.

The low seven bits are 0 where the weight is free and t where task t owns it, so one network holds tasks 1 to 127. The
top bit is set where the latest projection kept the weight. ``csrc/lps.h`` has the same numbers for the native kernels;
a test compares the two.
"""

from __future__ import annotations

from torch import Tensor

TASK_BITS = 0x7F
KEPT_BIT = 0x80
FREE = 0  # the task bits of a weight that no task owns
MAX_TASKS = TASK_BITS


def task_of(owner: Tensor) -> Tensor:
    """The task that owns each weight, ``FREE`` where there is none."""
    return owner & TASK_BITS


def free_coordinates(owner: Tensor) -> Tensor:
    """True where no task owns the weight."""
    return task_of(owner) == FREE


def is_kept(owner: Tensor) -> Tensor:
    """True where the latest projection keeps the weight."""
    return owner >= KEPT_BIT
