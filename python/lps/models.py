"""The paper's three networks as feature extractors without heads, and a registry that rebuilds a network by name.

A file names its network and the arguments it was made with; :func:`create` makes it again, so that no code has to be
stored in the file.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

from torch import Tensor, nn

from lps.data.options import SMALLEST_SIDE
from lps.errors import ConfigError

P = ParamSpec("P")


@dataclass(frozen=True)
class Architecture:
    """How to rebuild a network, ``create(name, **arguments)``, and how many features it has."""

    name: str
    arguments: dict[str, Any]  # including defaults, as JSON returns them (lists, not tuples)
    features: int


_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Callable[P, tuple[nn.Module, int]]], Callable[P, nn.Module]]:
    """Register a builder under a name that saved files refer to.

    The builder returns the network and the number of its features; its arguments must be values that JSON can hold. The
    decorated function returns the network alone, with an attribute ``architecture``. :func:`lps.load` calls the builder
    under ``torch.device("meta")`` first, so that a file cannot make it take memory for a network that the file lacks.
    """

    def decorate(builder: Callable[P, tuple[nn.Module, int]]) -> Callable[P, nn.Module]:
        if name in _BUILDERS:
            raise ConfigError(f"register: the network name {name!r} is taken; choose another")
        signature = inspect.signature(builder)

        def build(*args: P.args, **kwargs: P.kwargs) -> nn.Module:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                known = ", ".join(signature.parameters) or "no arguments"
                raise ConfigError(f"network {name!r} takes {known}: {error}") from None
            bound.apply_defaults()
            try:
                arguments = json.loads(json.dumps(bound.arguments, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"network {name!r}: its arguments must be ones that JSON can hold: {error}") from None
            network, features = builder(*args, **kwargs)
            # Stubs of nn.Module know only tensors and modules as attributes.
            network.architecture = Architecture(name, arguments, features)  # type: ignore[assignment]
            return network

        build.__name__, build.__doc__ = builder.__name__, builder.__doc__
        _BUILDERS[name] = build
        return build

    return decorate


def is_registered(name: str, build: Callable[..., object] | None = None) -> bool:
    """Whether there is a network of this name; with ``build``, whether this is the function that makes it."""
    return name in _BUILDERS and build in (None, _BUILDERS[name])


def create(name: str, /, **arguments: Any) -> nn.Module:
    """Make the network of this name; unknown names and wrong arguments give a :class:`ConfigError`."""
    if name not in _BUILDERS:
        raise ConfigError(f"unknown network {name!r}; known are {', '.join(sorted(_BUILDERS))}")
    return _BUILDERS[name](**arguments)


def _positive(network: str, argument: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"network {network!r}: {argument}: expected a whole number of at least 1, got {value!r}")


def _share(network: str, argument: str, value: object) -> None:
    if not (type(value) in (int, float) and 0 <= value < 1):  # type: ignore[operator]
        raise ConfigError(f"network {network!r}: {argument}: expected a number from 0 to below 1, got {value!r}")


@register("mlp")
def mlp(inputs: int = 784, hidden: Sequence[int] = (2000, 2000), dropout: float = 0.5) -> tuple[nn.Module, int]:
    """Fully connected layers, each with ReLU and dropout; 5,568,000 prunable weights by default."""
    _positive("mlp", "inputs", inputs)
    if not isinstance(hidden, list | tuple) or not hidden:
        raise ConfigError(f"network 'mlp': hidden: expected a list of at least one width, got {hidden!r}")
    for width in hidden:
        _positive("mlp", "hidden", width)
    _share("mlp", "dropout", dropout)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers), hidden[-1]


@register("cifar-net")
def cifar_net(dropout: Sequence[float] = (0.25, 0.25, 0.5), side: int = 32, channels: int = 3) -> tuple[nn.Module, int]:
    """Keras' CIFAR-10 network: two pairs of 3x3 convolutions; 884,576 prunable weights for images of 3x32x32.

    ``dropout`` has three shares: after the first pair, after the second pair and after the fully connected layer.
    ``side`` is the height and width of the images; what is left of it after the second pair decides how many inputs the
    fully connected layer has.
    """
    _positive("cifar-net", "channels", channels)
    if type(side) is not int or side < SMALLEST_SIDE:
        raise ConfigError(
            f"network 'cifar-net': side: expected a whole number of at least {SMALLEST_SIDE}, got {side!r}"
        )
    if not isinstance(dropout, list | tuple) or len(dropout) != 3:
        raise ConfigError(f"network 'cifar-net': dropout: expected a list of three shares, got {dropout!r}")
    for share in dropout:
        _share("cifar-net", "dropout", share)

    def pair(before: int, channels: int, share: float) -> list[nn.Module]:
        return [
            nn.Conv2d(before, channels, 3, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(share),
        ]

    # Sides: 32 -> 30 -> 28 -> pool 14 -> 12 -> 10 -> pool 5; 64 * 5 * 5 = 1600.
    left = ((side - 4) // 2 - 4) // 2
    layers = [*pair(channels, 32, dropout[0]), *pair(32, 64, dropout[1])]
    layers += [nn.Flatten(), nn.Linear(64 * left * left, 512), nn.ReLU(), nn.Dropout(dropout[2])]
    return nn.Sequential(*layers), 512


class _Bottleneck(nn.Module):
    """1-3-1 convolutions with a shortcut; the middle one carries the stride."""

    def __init__(self, before: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            nn.Conv1d(before, width, 1, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, after, 1, bias=False),
            nn.BatchNorm1d(after),
        )
        self.shortcut = (
            nn.Sequential(nn.Conv1d(before, after, 1, stride, bias=False), nn.BatchNorm1d(after))
            if project
            else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.relu(self.path(x) + self.shortcut(x))
        return result


@register("resnet50-1d")
def resnet50_1d(channels: int = 2) -> tuple[nn.Module, int]:
    """ResNet50 with one-dimensional convolutions for signals of any length; 15,901,568 prunable weights."""
    _positive("resnet50-1d", "channels", channels)
    layers: list[nn.Module] = [
        nn.Conv1d(channels, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.MaxPool1d(3, stride=2, padding=1),
    ]
    before = 64
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            layers.append(_Bottleneck(before, width, stride if block == 0 else 1, project=block == 0))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten()), before
