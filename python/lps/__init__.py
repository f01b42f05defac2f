"""Learn-Prune-Share: one network, many tasks, nothing forgotten.

The training engine stands on the operators of :mod:`lps_kernels`; this package holds the method itself.
"""

from lps_kernels import __version__

__all__ = ["__version__"]
