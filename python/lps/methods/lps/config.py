"""The settings of Learn-Prune-Share, for all tasks and for one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Literal

from lps.errors import ConfigError
from lps.options import listed, option, shown

PATTERNS = ("irregular", "column", "filter", "channel")
SHARINGS = ("elementwise", "structured")
SCHEDULES = ("constant", "linear", "cosine")
PRECISIONS = ("fp32", "bf16")

# One share for every layer, or a mapping from shell patterns of layer names to shares (the first match counts).
Share = float | Mapping[str, float]
Epochs = tuple[int, int, int]  # of warm-up, ADMM and final

PER_TASK = ("alpha", "beta", "epochs")  # fields that may hold one value per task

_SHARES = "a number, a list of numbers as in 0.5,0.1, or a mapping from layer patterns to numbers"
_PER_TASK = "a list gives one per task, its last one to all that follow"


@dataclass(frozen=True)
class LPSConfig:
    """How many weights a task owns and reuses, and how it is trained.

    ``alpha`` is the share of a layer's weights (or groups) that the task will own, ``"rest"`` all that is free;
    ``beta`` the share of the earlier tasks' weights (or groups) that it reuses. ``reserve`` is the share of every
    layer that must still be free afterwards. ``epochs`` are for warm-up, ADMM and final. ``alpha``, ``beta`` and
    ``epochs`` may also be tuples with one value per task, of which the last repeats. The penalty starts at ``rho`` and
    grows tenfold ``rho_levels - 1`` times at equal intervals. ``schedule`` is how the learning rate falls within each
    phase. ``precision`` is that of the forward and backward pass in training; weights and optimiser stay in fp32.
    """

    alpha: Share | Literal["rest"] | tuple[Share, ...] = option(
        0.1, "SHARE", f"share of each layer that a task owns; {_PER_TASK}", expected=_SHARES, read=listed
    )
    beta: Share | tuple[Share, ...] = option(
        0.9,
        "SHARE",
        f"share of the earlier tasks' weights that a task reuses; {_PER_TASK}",
        expected=_SHARES,
        read=listed,
    )
    epochs: tuple[int | Epochs, ...] = option(
        (30, 90, 30),
        "W,A,F",
        "epochs of warm-up, ADMM and final; W,A,F;W,A,F;... one triple per task, the last one for all that follow",
        expected="three whole numbers, as in 1,3,1, or several such triples, as in 4,12,4;10,30,10",
        read=listed,
    )
    batch_size: int = option(128, "N", "examples per training step")
    lr: float = option(1e-3, "RATE", "learning rate of Adam")
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "", "how the learning rate falls within a phase", choices=SCHEDULES
    )
    rho: float = option(1e-3, "RHO", "penalty of ADMM in its first level")
    rho_levels: int = option(3, "N", "levels of ADMM; the penalty grows tenfold from one to the next")
    reserve: float = option(0.0, "SHARE", "share of every layer that must stay free")
    seed: int = option(0, "N", "determines the first weights and the order of training examples")
    precision: Literal["fp32", "bf16"] = option(
        "fp32",
        "",
        "arithmetic of training steps; bf16 by autocast",
        choices=PRECISIONS,
    )
    channels_last: bool = option(False, "", "keep images in training as height, width, channels in memory")

    def __post_init__(self) -> None:
        """Refuse unusable values before anything is trained."""
        for name in PER_TASK:
            _expect(len(self._values(name)) > 0, name, "at least one value", "none")
            for value in self._values(name):
                if name == "epochs":
                    _check_epochs(value)
                elif not (name == "alpha" and value == "rest"):
                    _check_share(name, value)
        _check_share("reserve", self.reserve)
        _expect(1 <= self.batch_size < 2**31, "batch_size", "1 to 2147483647", self.batch_size)
        _expect(0 < self.lr < float("inf"), "lr", "a number above 0", self.lr)
        _expect(self.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}", self.schedule)
        _expect(0 <= self.rho <= 1e6, "rho", "a number from 0 to 1e6", self.rho)
        _expect(1 <= self.rho_levels <= 12, "rho_levels", "1 to 12", self.rho_levels)
        _expect(0 <= self.seed < 2**63, "seed", "0 to 2^63 - 1", self.seed)
        _expect(self.precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", self.precision)

    def of_task(self, number: int) -> TaskConfig:
        """The settings of one task, counted from 1, in place of values per task."""
        values = {field.name: getattr(self, field.name) for field in fields(LPSConfig)}
        for name in PER_TASK:
            several = self._values(name)
            values[name] = several[min(number, len(several)) - 1]
        return TaskConfig(**values)

    def _values(self, name: str) -> Sequence[Any]:
        """The field's values per task; a list of one if the value holds for all tasks."""
        value = getattr(self, name)
        several = isinstance(value, tuple | list)
        if name == "epochs":
            several = several and any(not isinstance(item, int) for item in value)
        return value if several else (value,)


@dataclass(frozen=True)
class TaskConfig(LPSConfig):
    """The settings of one task: an LPSConfig without values per task."""

    alpha: Share | Literal["rest"] = 0.1
    beta: Share = 0.9
    epochs: Epochs = (30, 90, 30)


def check_patterns(name: str, share: object, layers: Sequence[str]) -> None:
    """Refuse a pattern that matches no layer: it is probably misspelt."""
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


def _check_epochs(epochs: object) -> None:
    counts = epochs if isinstance(epochs, tuple | list) else ()
    whole = len(counts) == 3 and all(isinstance(count, int) and count >= 0 for count in counts)
    _expect(whole, "epochs", "three counts of at least 0", epochs)
    _expect(max(counts) < 2**31, "epochs", "at most 2147483647 of a phase", epochs)
    _expect(sum(counts) > 0, "epochs", "at least one epoch in all", epochs)


def _check_share(name: str, share: object) -> None:
    if isinstance(share, Mapping):
        for layer, value in share.items():
            _check_share(f"{name}[{layer}]", value)
        return
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    _expect(is_number and 0 <= share <= 1, name, "a number from 0 to 1", share)  # type: ignore[operator]


def _expect(condition: bool, name: str, expected: str, got: object) -> None:
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {shown(got)}")
