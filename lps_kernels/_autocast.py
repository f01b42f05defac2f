"""What operators do under ``torch.autocast``: a rule for each, registered where the operator is declared.

Tensors that an operator takes one by one are brought to the widest of their float types, as torch does for its own
operators that need one type: activations may come in bf16 from a layer of torch, weights stay what they are. A product
of matrices is computed in that type and gives its result in the type of the region, as ``torch.nn.functional.linear``
does; fp64 stays fp64 there too. Lists of tensors, and tensors that are written, are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

DEVICES = ("cpu", "cuda")
LIBRARY = torch.library.Library("lps", "FRAGMENT")  # type: ignore[no-untyped-call]


def autocast_key(device: str) -> str:
    """The dispatch key of the rules for a type of devices."""
    return f"Autocast{device.upper()}"


def register(name: str, *, product: bool, writes: bool) -> None:
    """Give the operator ``lps::name`` its rule on every type of devices."""
    for device in DEVICES:
        rule = partial(_run, name, device, product, writes)
        LIBRARY.impl(name, rule, autocast_key(device))  # type: ignore[no-untyped-call]


def _run(name: str, device: str, product: bool, writes: bool, *args: Any, **named: Any) -> Any:
    key = getattr(torch._C.DispatchKey, autocast_key(device))
    operator: Callable[..., Any] = getattr(torch.ops.lps, name).default
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        if writes:
            return operator(*args, **named)
        result = operator(*_widened(args), **named)
        if product and result.dtype != torch.float64:
            return result.to(torch.get_autocast_dtype(device))
        return result


def _widened(args: Sequence[Any]) -> list[Any]:
    """The arguments with floats of the widest of their types."""
    floats = {arg.dtype for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()}
    if len(floats) < 2:
        return list(args)
    widest = reduce(torch.promote_types, floats)
    return [arg.to(widest) if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
