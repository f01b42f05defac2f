"""What the libraries of the adapters need in turn: a torchvision that is built for the torch that is here."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import torch

from lps.errors import ConfigError, in_a_sentence


def check_torchvision() -> None:
    """Refuse a torchvision that was built for another torch; none at all is fine, the adapters do not use it."""
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        return
    # The first import misses an operator (RuntimeError); a second one finds a module that is half there.
    except (RuntimeError, ImportError, AttributeError, OSError) as error:
        raise ConfigError(
            f"lps.adapters: torchvision {_version()} cannot be imported beside torch {torch.__version__} "
            f"({in_a_sentence(error)}); install the torchvision that was built for this torch, from where torch came "
            "from: beside a CPU build of torch, torchvision's CPU build"
        ) from None


def _version() -> str:
    try:
        return version("torchvision")
    except PackageNotFoundError:
        return "of an unknown version"
