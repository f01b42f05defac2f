"""The owner byte inside kernels; :mod:`lps_kernels.owner` says what its bits mean."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from lps_kernels import owner as _owner

TASK_BITS, KEPT_BIT, FREE = (tl.constexpr(number) for number in (_owner.TASK_BITS, _owner.KEPT_BIT, _owner.FREE))


@triton.jit
def task_of(owner):
    """The task that owns each weight, ``FREE`` where there is none."""
    return owner & TASK_BITS


@triton.jit
def is_free(owner):
    """True where no task owns the weight."""
    return task_of(owner) == FREE


@triton.jit
def is_kept(owner):
    """True where the latest projection keeps the weight."""
    return owner >= KEPT_BIT


@triton.jit
def with_kept(owner, kept):
    """The same task, and the new kept bit."""
    task = task_of(owner)
    return tl.where(kept, task | KEPT_BIT, task)
