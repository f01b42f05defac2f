"""Frozen running statistics that are far from those of a new task: said once, because the task is learnt worse then.

They were gathered with the weights of task 1. A later task begins with fresh weights where none are owned, so that in a
deep network its activations can be hundreds of standard deviations off, whatever its inputs are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lps.private import find_private

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

# How far at least half of the channels of a layer must be off: means in standard deviations, and variances by a factor.
# The batches that the statistics were gathered from are within 0.3 and 3 (ResNet-18, batches of 32).
MEANS, VARIANCES = 2.0, 8.0


@contextmanager
def compared(net: Lifelong, task: str) -> Iterator[None]:
    """Warn if, in the calls inside the block, frozen statistics of some layer are far from those of its input."""
    found: dict[str, tuple[float, float]] = {}
    handles = [
        module.register_forward_pre_hook(partial(_compare, found, name))
        for name, module in net.backbone.named_modules()
        if isinstance(module, _NormBase) and module.running_mean is not None and not module.training
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    far = {name: (mean, ratio) for name, (mean, ratio) in found.items() if mean > MEANS or ratio > VARIANCES}
    if far:
        net.warned = True
        name, (mean, ratio) = max(far.items(), key=lambda item: max(item[1][0] / MEANS, item[1][1] / VARIANCES))
        warnings.warn(
            f"{task}: the statistics of normalisation layer {name}, frozen since task 1, are far from those of the "
            f"first batch: half of its channels have means {mean:.1f} standard deviations or more away, or variances "
            f"that differ {ratio:.1f} times or more; later tasks may be learnt much worse. With norms='per-task' "
            f"(--norms per-task) every task has its own, here {bytes_per_task(net):,} bytes",
            UserWarning,
            stacklevel=2,
        )


@torch.no_grad()
def _compare(found: dict[str, tuple[float, float]], name: str, layer: Any, args: tuple[Any, ...]) -> None:
    if len(args) != 1 or args[0].dim() < 2 or args[0].shape[1] != len(layer.running_mean):
        return
    values = args[0].detach().float()
    dims = [dim for dim in range(values.dim()) if dim != 1]
    variance = layer.running_var.float() + layer.eps
    away = (values.mean(dims) - layer.running_mean).abs() / variance.sqrt()
    ratio = ((values.var(dims, correction=0) + layer.eps) / variance).log2().abs()
    found[name] = _of_half(away), 2 ** _of_half(ratio)


def _of_half(values: Tensor) -> float:
    """What half of the values reach; of values that are not finite, infinity."""
    return float(values.nan_to_num(torch.inf, torch.inf).median())


def bytes_per_task(net: Lifelong) -> int:
    """What a task's own copy of biases and normalisation layers takes."""
    names = find_private(net.backbone, "per-task") - net.frozen
    tensors: list[Tensor] = [tensor for name, tensor in net.common_tensors() if name in names]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def is_compiled(module: nn.Module) -> bool:
    """Whether calls run compiled code, in which hooks cannot look."""
    return any(inner._compiled_call_impl is not None for inner in module.modules())
