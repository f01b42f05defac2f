"""How one task is learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from lps.errors import ConfigError

PATTERNS = ("irregular", "column", "filter", "channel")
SHARINGS = ("elementwise", "structured")
SCHEDULES = ("constant", "linear", "cosine")

# A share of every layer, or one for each layer whose name matches a shell pattern (the first that matches counts).
Share = float | Mapping[str, float]


@dataclass(frozen=True)
class LPSConfig:
    """What a task may take, what it may reuse and how it is trained.

    ``alpha`` is the share of a layer's weights (or groups) that becomes the task's own, ``"rest"`` all that is free;
    ``beta`` the share of the earlier tasks' weights (or groups) that it reuses. ``reserve`` is the share of every
    layer that must still be free afterwards. ``epochs`` are those of warm-up, ADMM and final. The penalty starts at
    ``rho`` and grows tenfold ``rho_levels - 1`` times at equal intervals. ``schedule`` is how the learning rate falls
    within each phase.
    """

    alpha: Share | Literal["rest"] = 0.1
    beta: Share = 0.9
    epochs: tuple[int, int, int] = (30, 90, 30)
    batch_size: int = 128
    lr: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    rho: float = 1e-3
    rho_levels: int = 3
    reserve: float = 0.0
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be used, before anything is trained."""
        if self.alpha != "rest":
            _check_share("alpha", self.alpha)
        _check_share("beta", self.beta)
        _check_share("reserve", self.reserve)
        _expect(len(self.epochs) == 3 and min(self.epochs) >= 0, "epochs", "three counts of at least 0", self.epochs)
        _expect(sum(self.epochs) > 0, "epochs", "at least one epoch in all", self.epochs)
        _expect(1 <= self.batch_size < 2**31, "batch_size", "1 to 2147483647", self.batch_size)
        _expect(0 < self.lr < float("inf"), "lr", "a number above 0", self.lr)
        _expect(self.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}", self.schedule)
        _expect(0 <= self.rho <= 1e6, "rho", "a number from 0 to 1e6", self.rho)
        _expect(1 <= self.rho_levels <= 12, "rho_levels", "1 to 12", self.rho_levels)
        _expect(0 <= self.seed < 2**63, "seed", "0 to 2^63 - 1", self.seed)


def check_patterns(name: str, share: object, layers: Sequence[str]) -> None:
    """Refuse a pattern of a mapping that matches no layer: a slip of the pen would go unnoticed."""
    for pattern in share if isinstance(share, Mapping) else ():
        if not any(fnmatchcase(layer, pattern) for layer in layers):
            raise ConfigError(f"{name}: expected patterns of layers ({', '.join(layers)}), got {pattern}")


def share_of(name: str, share: Share, layer: str) -> float:
    """The share of this layer."""
    if not isinstance(share, Mapping):
        return share
    for pattern, value in share.items():
        if fnmatchcase(layer, pattern):
            return value
    raise ConfigError(f"{name}: expected a share for layer {layer}, got patterns {', '.join(share)}; add one, or '*'")


def _check_share(name: str, share: object) -> None:
    if isinstance(share, Mapping):
        for layer, value in share.items():
            _check_share(f"{name}[{layer}]", value)
        return
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    _expect(is_number and 0 <= share <= 1, name, "a number from 0 to 1", share)  # type: ignore[operator]


def _expect(condition: bool, name: str, expected: str, got: object) -> None:
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {got}")
