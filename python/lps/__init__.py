"""Learn-Prune-Share: one network, many tasks, nothing forgotten.

The training engine stands on the operators of :mod:`lps_kernels`; this package holds the method itself.
"""

from lps.config import LPSConfig
from lps.errors import LPSError
from lps.lifelong import Lifelong
from lps.report import Listener, Row, TaskReport
from lps.restore import load
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
