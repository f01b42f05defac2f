"""The operators in Triton, for GPUs of NVIDIA and AMD; importing this imports Triton.

None of it has run on a GPU: the kernels are compiled for every listed architecture and run by Triton's interpreter.
"""

from __future__ import annotations

from lps_kernels.backends.triton import (
    bits,
    compose,
    convolution,
    linear,
    project,
    scores,
    select,
    sparse,
    step,
    straight_through,
)
from lps_kernels.backends.triton._launch import Ahead, Kernels

# Each has KERNELS, its operators by name, and AOT, its kernels as they are compiled ahead of time.
MODULES = (bits, compose, scores, project, step, straight_through, linear, convolution, sparse)
KERNELS: Kernels = {name: call for module in MODULES for name, call in module.KERNELS.items()}
AOT: list[Ahead] = [*select.AOT, *(ahead for module in MODULES for ahead in module.AOT)]
