"""Frozen parameters: those with ``requires_grad=False`` when a network is made stay as they are, for every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from lps.errors import ConfigError
from lps.skeleton import Skeleton

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


def find_frozen(backbone: nn.Module, names: Sequence[str] | None) -> frozenset[str]:
    """The names of frozen parameters; if ``names`` says which, they become frozen."""
    if isinstance(backbone, Skeleton):
        return frozenset(names or ())
    known = dict(backbone.named_parameters())
    if names is None:
        return frozenset(name for name, parameter in known.items() if not parameter.requires_grad)
    for name in names:
        if name not in known:
            raise ConfigError(f"Lifelong: frozen: expected names of the backbone's parameters, got {name}")
        known[name].requires_grad_(False)
    return frozenset(names)


def check_still(net: Lifelong) -> None:
    """Refuse parameters that were frozen, or made trainable, between the making of a network and its first task."""
    parameters = dict(net.backbone.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        return  # as tasks leave them: they say nothing
    for name, parameter in parameters.items():
        if parameter.requires_grad == (name in net.frozen):
            got = parameter.requires_grad
            raise ConfigError(
                f"Lifelong: {name}: expected requires_grad={not got}, as when the network was made, got {got}; what is "
                "frozen is decided then: set it on the backbone before lps.Lifelong(backbone, ...)"
            )
