"""Learn-Prune-Share: one network, many tasks, nothing forgotten.

The training engine stands on the operators of :mod:`lps_kernels`; this package holds the method itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lps.artifact.read import load as load
    from lps.errors import LPSError as LPSError
    from lps.lifelong import Lifelong as Lifelong
    from lps.methods.lps.config import LPSConfig as LPSConfig
    from lps.runs.checkpoint import Checkpoint as Checkpoint
    from lps.runs.events import Listener as Listener
    from lps.runs.events import Row as Row
    from lps.runs.events import TaskReport as TaskReport
    from lps.sources import Arrays as Arrays
    from lps.task import Task as Task
    from lps_kernels import __version__ as __version__

# Where each public name comes from. They are imported when they are first asked for: commands have something to set
# before torch is loaded, and they import this package first.
_HOMES = {
    "Arrays": "lps.sources",
    "Checkpoint": "lps.runs.checkpoint",
    "LPSConfig": "lps.methods.lps.config",
    "LPSError": "lps.errors",
    "Lifelong": "lps.lifelong",
    "Listener": "lps.runs.events",
    "Row": "lps.runs.events",
    "Task": "lps.task",
    "TaskReport": "lps.runs.events",
    "__version__": "lps_kernels",
    "load": "lps.artifact.read",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """A public name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted({*globals(), *_HOMES})
