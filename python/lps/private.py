"""Private tensors, of which every task has its own copy: biases, and the tensors of normalisation layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lps.methods.lps.config import WHOLE
from lps.skeleton import Skeleton

NORM_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def default_norms(backbone: nn.Module) -> str:
    """A copy per task where there are running statistics: those of task 1 can be far from those of later tasks."""
    running = (isinstance(module, _NormBase) and module.running_mean is not None for module in backbone.modules())
    return "per-task" if any(running) else "frozen"


def find_private(backbone: nn.Module, norms: str) -> frozenset[str]:
    """The names of the backbone's private tensors: none, all of them, or biases and the parameters and buffers of
    normalisation layers.
    """
    if isinstance(backbone, Skeleton):
        return backbone.private
    if norms == "frozen":
        return frozenset()
    if norms == WHOLE:
        return frozenset(name for name, _ in (*backbone.named_parameters(), *backbone.named_buffers()))
    private = {id(parameter) for name, parameter in backbone.named_parameters() if name.endswith("bias")}
    for module in backbone.modules():
        if isinstance(module, NORM_LAYERS):
            private |= {id(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))}
    tensors = [*backbone.named_parameters(), *backbone.named_buffers()]
    return frozenset(name for name, tensor in tensors if id(tensor) in private)


class PrivateTensors(nn.Module):
    """One task's copies, by their dotted names in the backbone."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(values)
        for index, tensor in enumerate(values.values()):  # a buffer's name must not contain dots
            copied = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(f"tensor{index}", copied)

    def tensors(self) -> dict[str, Tensor]:
        """The copies by name."""
        return {name: self.get_buffer(f"tensor{index}") for index, name in enumerate(self.names)}
