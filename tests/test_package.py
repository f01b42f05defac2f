"""Public names and the version: few, frozen, one."""

from __future__ import annotations

import re
from importlib import metadata

import lps

import lps_kernels


def test_public_names_of_lps_kernels_are_frozen() -> None:
    assert lps_kernels.__all__ == [
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
    assert all(hasattr(lps_kernels, name) for name in lps_kernels.__all__)


def test_public_names_of_lps_are_frozen() -> None:
    assert lps.__all__ == [
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
    assert all(hasattr(lps, name) for name in lps.__all__)


def test_there_is_one_version() -> None:
    assert lps.__version__ == lps_kernels.__version__ == metadata.version("learn-prune-share")
    assert re.fullmatch(r"\d+\.\d+\.\d+", lps_kernels.__version__)
