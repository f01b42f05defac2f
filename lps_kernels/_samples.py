"""Building blocks for sample inputs: deterministic tensors and the sizes at which kernels tend to break."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lps_kernels.owner import FREE, KEPT_BIT, MAX_TASKS

# Around the 8 lanes of a block and the 32 bytes of a register; 70001 spans several work units of the kernels.
EDGE_SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33)
LARGE_SIZE = 70_001


class Draw:
    """Random tensors from one seed, so that a sample is the same in every process."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal values."""
        return torch.randn(tuple(shape), generator=self._generator, dtype=torch.float64).to(dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Values in [0, 1)."""
        return torch.rand(tuple(shape), generator=self._generator, dtype=torch.float64).to(dtype)

    def boolean(self, shape: Sequence[int]) -> Tensor:
        """Fair coin flips."""
        return torch.rand(tuple(shape), generator=self._generator) < 0.5

    def owner(self, shape: Sequence[int], free: float = 0.5) -> Tensor:
        """An owner map: a share of free weights, the rest owned by tasks 1 to 127, random kept bits."""
        tasks = torch.randint(1, MAX_TASKS + 1, tuple(shape), generator=self._generator, dtype=torch.uint8)
        tasks[torch.rand(tuple(shape), generator=self._generator) < free] = FREE
        return tasks | (self.boolean(shape).to(torch.uint8) * KEPT_BIT)


def strided(tensor: Tensor) -> Tensor:
    """The same values in a tensor whose memory is not contiguous (for two or more elements)."""
    holder = tensor.new_zeros((*tensor.shape, 2))
    holder[..., 0] = tensor
    return holder[..., 0]
