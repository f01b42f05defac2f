"""Networks that the user names: ``package.module:function``, or an entry point of an installed package.

Something is imported only because the user names it here, never because a file does: a file's own name for its network
is compared with what is registered already, and where an installed package declares that name, refusals say so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torch import nn

from lps.errors import ConfigError, in_a_sentence
from lps.options import shown

GROUP = "lps.backbones"  # of entry points: the name of a network, and the function that makes it

Make = Callable[..., Any]


def find(text: str) -> Make:
    """The function that a text names; imports its module."""
    if ":" not in text:
        declared = _declared().get(text)
        if declared is None:
            known = ", ".join(sorted(map(shown, _declared()))) or "none"
            raise ConfigError(
                f"backbone: expected package.module:function, or a name that an installed package declares in the "
                f"group {GROUP} ({known}), got {shown(text)}"
            )
        text = declared.value
    module, _, attribute = text.partition(":")
    value = _imported(text, module, attribute)
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise ConfigError(f"backbone: {shown(text)}: {shown(module)} has no {shown(attribute)}") from None
    if isinstance(value, nn.Module) or not callable(value):
        raise ConfigError(
            f"backbone: {shown(text)}: expected a function or class that makes the network, got "
            f"{'the network itself' if isinstance(value, nn.Module) else type(value).__name__}"
        )
    return value  # type: ignore[no-any-return]


def use_working_directory() -> None:
    """Let modules in the working directory be found, as ``python -m`` does; the console command does not."""
    if not {"", os.getcwd()} & set(sys.path):  # noqa: PTH109 as sys.path has it
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


def made_by(make: Make) -> nn.Module:
    """The network that a function of the user's makes, without arguments."""
    name = f"{getattr(make, '__module__', '?')}:{getattr(make, '__qualname__', type(make).__name__)}"
    try:
        network = make()
    except Exception as error:
        raise ConfigError(f"backbone: {name}() failed: {_reason(error)}") from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"backbone: {name}() must return an nn.Module, got {type(network).__name__}")
    return network


def advice(name: str | None) -> str:
    """How to get a network that a file names, or names none, in a part of a sentence."""
    pass_it = "pass it as lps.load(..., backbone=make) or, to a command, as --backbone package.module:make"
    if name is None:
        return f"its network is not one that lps.models can make; make it yourself and {pass_it}"
    point = _declared().get(name)
    if point is None:
        return f"its network {shown(name)} is not registered here: import what registers it, or {pass_it}"
    package = "an installed package" if point.dist is None else f"the installed package {point.dist.name}"
    return (
        f"its network {shown(name)} is declared by {package}: pass its name as lps.load(..., backbone=...) or, to a "
        "command, as --backbone"
    )


def _declared() -> dict[str, EntryPoint]:
    """The networks that installed packages declare; reading this imports none of them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _imported(text: str, module: str, attribute: str) -> Any:
    if not all(name.isidentifier() for name in (*module.split("."), *attribute.split("."))):
        raise ConfigError(f"backbone: expected package.module:function, got {shown(text)}")
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"backbone: {shown(text)}: there is no module {error.name}; check its name and the directory"
            ) from None
        raise ConfigError(f"backbone: {shown(text)}: importing {module} failed: {_reason(error)}") from error
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        raise ConfigError(f"backbone: {shown(text)}: importing {module} failed: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return in_a_sentence(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
