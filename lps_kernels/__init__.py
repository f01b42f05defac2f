"""Operators of Learn-Prune-Share: composition, projection, ADMM update, optimiser step, bit packing, inference.

Every operator has a readable reference that runs on any device; faster backends replace it where they are available.
:func:`backends` says which are and why others are not.
"""

from typing import TYPE_CHECKING

from lps_kernels import ops
from lps_kernels._version import __version__ as __version__
from lps_kernels.backends import Backend as Backend
from lps_kernels.backends import backends as backends
from lps_kernels.ops import *  # noqa: F403 - every public operator, and only those: its __all__ is the registry's
from lps_kernels.optim import ProximalAdam as ProximalAdam
from lps_kernels.optim import Selection as Selection
from lps_kernels.optim import StraightThroughAdam as StraightThroughAdam
from lps_kernels.optim import WeightState as WeightState

if not TYPE_CHECKING:  # as in lps_kernels.ops
    __all__ = ["Backend", "ProximalAdam", "Selection", "StraightThroughAdam", "WeightState", "__version__", "backends"]
    __all__ += ops.__all__
