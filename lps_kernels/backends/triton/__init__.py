"""The operators in Triton, for GPUs of either make; importing this imports Triton.

None of it has run on a GPU: the kernels are compiled for every listed architecture and run by Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lps_kernels.backends.triton import bits, compose, convolution, linear, project, scores, select, sparse, step
from lps_kernels.backends.triton._launch import Ahead

KERNELS: dict[str, Callable[..., Any]] = {
    "pack_bits": bits.pack_bits,
    "unpack_bits": bits.unpack_bits,
    "compose": compose.compose,
    "compose_out": compose.compose_out,
    "compose_owned": compose.compose_owned,
    "compose_owned_out": compose.compose_owned_out,
    "task_weight": compose.task_weight,
    "group_scores": scores.group_scores,
    "project": project.project,
    "admm_update_": project.admm_update_,
    "proximal_adam_": step.proximal_adam_,
    "proximal_grad_": step.proximal_grad_,
    **linear.KERNELS,
    **convolution.KERNELS,
    **sparse.KERNELS,
}
# Every kernel as it is compiled ahead of time.
AOT: list[Ahead] = [
    *bits.AOT,
    *compose.AOT,
    *scores.AOT,
    *select.AOT,
    *project.AOT,
    *step.AOT,
    *linear.AOT,
    *convolution.AOT,
    *sparse.AOT,
]
