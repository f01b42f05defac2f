"""Operators of Learn-Prune-Share: composition, projection, ADMM update, optimiser step, bit packing, inference.

Every operator has a readable reference that runs on any device; faster backends replace it where they are available.
:func:`backends` says which are and why others are not.
"""

from lps_kernels._version import __version__
from lps_kernels.backends import Backend, backends
from lps_kernels.ops import (
    View,
    admm_update_,
    compose,
    compose_owned,
    group_scores,
    group_view,
    masked_linear,
    pack_bits,
    project,
    proximal_adam_,
    proximal_grad_,
    sparse_conv,
    sparse_linear,
    structured_conv1d,
    structured_conv2d,
    structured_linear,
    task_weight,
    unpack_bits,
)
from lps_kernels.optim import Layer, ProximalAdam

__all__ = [
    "Backend",
    "Layer",
    "ProximalAdam",
    "View",
    "__version__",
    "admm_update_",
    "backends",
    "compose",
    "compose_owned",
    "group_scores",
    "group_view",
    "masked_linear",
    "pack_bits",
    "project",
    "proximal_adam_",
    "proximal_grad_",
    "sparse_conv",
    "sparse_linear",
    "structured_conv1d",
    "structured_conv2d",
    "structured_linear",
    "task_weight",
    "unpack_bits",
]
