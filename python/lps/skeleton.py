"""What stands for a network whose code is not here: the tensors that a file holds of it, which cannot be run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor, nn

from lps.errors import ConfigError

if TYPE_CHECKING:
    from lps.artifact.layout import Form


class Skeleton(nn.Module):
    """Tensors by the names that they have in a network, and a sentence that says how to get the network itself.

    ``layers`` are the prunable weights. They are not held: they take no memory and read as 0, because the weights of
    the tasks are in the partitions. ``others`` follow them in the order of the file, and ``private`` are the names of
    those that every task has a copy of its own of.
    """

    def __init__(self, how: str, layers: Iterable[Form], others: Iterable[Form], private: Iterable[str] = ()) -> None:
        super().__init__()
        self.how = how
        self.private = frozenset(private)
        # Straight into torch's tables: register_buffer refuses names with dots, which stand for submodules.
        for form in layers:
            weight = torch.zeros((), dtype=_dtype(form)).expand(list(form.shape))
            self._parameters[form.name] = nn.Parameter(weight, requires_grad=False)
        self.layers = tuple(self._parameters)
        for index, form in enumerate(others):
            tensor = torch.zeros(list(form.shape), dtype=_dtype(form))
            if index == 0 and not self.layers and tensor.is_floating_point():
                # Where nothing is prunable: some parameter must tell the network's dtype and device.
                self._parameters[form.name] = nn.Parameter(tensor, requires_grad=False)
            else:
                self._buffers[form.name] = tensor

    def forward(self, *_inputs: object, **_named: object) -> NoReturn:
        """Refused: there is no code to run."""
        self.refuse()

    def refuse(self) -> NoReturn:
        """Say how to get the network."""
        raise ConfigError(self.how)

    def get_submodule(self, target: str) -> Skeleton:
        """Itself: its tensors stand side by side, under names with dots."""
        return self

    def get_parameter(self, target: str) -> nn.Parameter:
        """The parameter of this name."""
        parameter = self._parameters[target]
        assert parameter is not None
        return parameter

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of this name."""
        buffer = self._buffers[target]
        assert buffer is not None
        return buffer

    def extra_repr(self) -> str:
        """How many tensors there are."""
        return f"{len(self.layers)} layers; it cannot run: {self.how}"


def _dtype(form: Form) -> torch.dtype:
    dtype = getattr(torch, form.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"{form.name}: expected a dtype of torch, got {form.dtype}")
    return dtype
