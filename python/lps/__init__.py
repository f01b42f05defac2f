"""Learn-Prune-Share: one network, many tasks, nothing forgotten.

The training engine stands on the operators of :mod:`lps_kernels`; this package holds the method itself.
"""

from lps.artifact.read import load
from lps.errors import LPSError
from lps.lifelong import Lifelong
from lps.methods.lps.config import LPSConfig
from lps.runs.events import Listener, Row, TaskReport
from lps.task import Arrays, Task
from lps_kernels import __version__

__all__ = [
    "Arrays",
    "LPSConfig",
    "LPSError",
    "Lifelong",
    "Listener",
    "Row",
    "Task",
    "TaskReport",
    "__version__",
    "load",
]
