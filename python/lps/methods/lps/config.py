"""The settings of Learn-Prune-Share, for all tasks and for one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from lps.errors import ConfigError
from lps.options import listed, option, shown

# As lps_kernels has them; a command's help has no time for importing it. tests/commands/test_help.py compares.
PULLS = ("gradient", "proximal")
MAX_TASKS = 127

PATTERNS = ("irregular", "column", "filter", "channel")
SHARINGS = ("elementwise", "structured")
SCHEDULES = ("constant", "linear", "cosine")
SOLVERS = ("admm", "straight-through")
NORMS = ("frozen", "per-task")
WHOLE = "network"  # every task has a copy of the whole backbone
PRECISIONS = ("fp32", "bf16")
STORES = ("fp32", "fp16", "bf16")

# One share for every layer, or a mapping from shell patterns of layer names to shares (the first match counts).
Share = float | Mapping[str, float]
# Of masks also "auto", the share that emerges, or "max:0.9", the same with an upper bound.
MaskShare = float | str | Mapping[str, float | str]
Epochs = tuple[int, int, int]  # of warm-up, ADMM and final

_AT_MOST = "max:"

Value = TypeVar("Value", bound=float | str)

PER_TASK = ("alpha", "beta", "epochs")  # fields that may hold one value per task

_SHARES = "a number, a list of numbers as in 0.5,0.1, or a mapping from layer patterns to numbers"
_MASK_SHARES = "a number, auto or max:NUMBER, a list of these, or a mapping from layer patterns to these"
_PER_TASK = "a list gives one per task, its last one to all that follow"


def _mask_shares(text: str) -> object:
    """The plain value of the flag: numbers as numbers, because ``auto`` makes text a possible value."""

    def number(part: object) -> object:
        if isinstance(part, list):
            return [number(item) for item in part]
        try:
            return float(part) if isinstance(part, str) else part
        except ValueError:
            return part

    return number(listed(text))


@dataclass(frozen=True)
class LPSConfig:
    """How many weights a task owns and reuses, and how it is trained.

    ``alpha`` is the share of a layer's weights (or groups) that the task will own, ``"rest"`` all that is free;
    ``beta`` the share of the earlier tasks' weights (or groups) that it reuses: a number, ``"auto"`` for the share
    that emerges, ``"max:0.9"`` for the same with an upper bound. ``reserve`` is the share of every layer that must
    still be free afterwards. ``epochs`` are for warm-up, the solver and final. ``alpha``, ``beta`` and ``epochs`` may
    also be tuples with one value per task, of which the last repeats. ``epochs=10`` is 10 in all, (2, 6, 2).

    ``solver`` finds which weights the task owns and reuses: ``admm`` is the paper's, ``straight-through`` trains the
    pruned network itself. The penalty of ADMM starts at ``rho``; with the ``gradient`` pull of Eq. (13) it grows
    tenfold ``rho_levels - 1`` times at equal intervals, with the ``proximal`` pull, which Adam does not normalise,
    smoothly to ``10 ** rho_levels`` times as much. ``share_cost`` is added to the gradient of every mask by
    ``straight-through``. ``schedule`` is how the learning rate falls within each phase. ``precision`` is that of the
    forward and backward pass in training; weights and optimiser stay in fp32. ``store`` rounds the weights that a task
    owns, and its head, when it is learnt, before its accuracy is measured: its answers are those of the rounded weights
    from then on, and the file holds them in half the bytes. ``clip_norm`` bounds the norm of the gradient of a step.
    With ``patience`` a phase ends when the accuracy on the task's validation examples has not risen for so many epochs;
    the solver's phase, whose steps are planned ahead, is never cut short.
    """

    alpha: Share | Literal["rest"] | tuple[Share | Literal["rest"], ...] = option(
        0.1, "SHARE", f"share of each layer that a task owns; {_PER_TASK}", expected=_SHARES, read=listed
    )
    beta: MaskShare | tuple[MaskShare, ...] = option(
        0.9,
        "SHARE",
        f"share of the earlier tasks' weights that a task reuses; auto: the share that emerges, max:0.9: at most that; "
        f"{_PER_TASK}",
        expected=_MASK_SHARES,
        read=_mask_shares,
    )
    epochs: int | tuple[int | Epochs, ...] = option(
        (30, 90, 30),
        "W,A,F",
        "epochs of warm-up, solver and final, or N in all, of which each gets 1/5, 3/5 and 1/5; W,A,F;W,A,F;... one "
        "triple per task, the last one for all that follow",
        expected="one whole number, three, as in 1,3,1, or several triples, as in 4,12,4;10,30,10",
        read=listed,
    )
    batch_size: int = option(128, "N", "examples per training step")
    lr: float = option(1e-3, "RATE", "learning rate of Adam")
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "", "how the learning rate falls within a phase", choices=SCHEDULES
    )
    solver: Literal["admm", "straight-through"] = option(
        "admm", "", "how the weights of a task are found: the paper's ADMM, or straight-through", choices=SOLVERS
    )
    pull: Literal["gradient", "proximal"] = option(
        "proximal",
        "",
        "how ADMM pulls: an exact proximal step after Adam's, or Eq. (13) of the paper, which Adam normalises",
        choices=PULLS,
    )
    rho: float = option(1e-3, "RHO", "penalty of ADMM at its start")
    rho_levels: int = option(
        3, "N", "levels of ADMM; the penalty grows tenfold from one to the next (proximal: within each)"
    )
    share_cost: float = option(
        0.0, "COST", "added to the gradient of every mask by straight-through: tasks reuse less and run faster"
    )
    reserve: float = option(0.0, "SHARE", "share of every layer that must stay free")
    seed: int = option(0, "N", "determines the first weights and the order of training examples")
    precision: Literal["fp32", "bf16"] = option(
        "fp32",
        "",
        "arithmetic of training steps; bf16 by autocast",
        choices=PRECISIONS,
    )
    store: Literal["fp32", "fp16", "bf16"] = option(
        "fp32",
        "",
        "the weights and the head of a learnt task are rounded to this, which halves their bytes in the file",
        choices=STORES,
    )
    channels_last: bool = option(False, "", "keep images in training as height, width, channels in memory")
    clip_norm: float | None = option(
        None,
        "NORM",
        "longest gradient of a step, over all weights of the network; a longer one is scaled to it",
        expected="a number above 0",
    )
    patience: int | None = option(
        None,
        "N",
        "a phase ends early when validation accuracy has not risen for N epochs; not that of the solver",
        expected="a whole number of at least 1",
    )

    def __post_init__(self) -> None:
        """Refuse unusable values before anything is trained; divide epochs that are given as one number."""
        object.__setattr__(self, "epochs", _divided(self.epochs))
        for name in PER_TASK:
            _expect(len(self._values(name)) > 0, name, "at least one value", "none")
            for value in self._values(name):
                if name == "epochs":
                    _check_epochs(value)
                elif name == "beta":
                    _check_mask_share(name, value)
                elif not (name == "alpha" and value == "rest"):
                    _check_share(name, value)
        _check_share("reserve", self.reserve)
        _expect(1 <= self.batch_size < 2**31, "batch_size", "1 to 2147483647", self.batch_size)
        _expect(0 < self.lr < float("inf"), "lr", "a number above 0", self.lr)
        _expect(self.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}", self.schedule)
        _expect(0 <= self.rho <= 1e6, "rho", "a number from 0 to 1e6", self.rho)
        _expect(1 <= self.rho_levels <= 12, "rho_levels", "1 to 12", self.rho_levels)
        _expect(self.solver in SOLVERS, "solver", f"one of {', '.join(SOLVERS)}", self.solver)
        _expect(self.pull in PULLS, "pull", f"one of {', '.join(PULLS)}", self.pull)
        _expect(abs(self.share_cost) < float("inf"), "share_cost", "a finite number", self.share_cost)
        if self.solver != "straight-through":
            _expect(self.share_cost == 0, "share_cost", "0, as only straight-through has a cost", self.share_cost)
        _expect(0 <= self.seed < 2**63, "seed", "0 to 2^63 - 1", self.seed)
        if self.clip_norm is not None:
            _expect(0 < self.clip_norm < float("inf"), "clip_norm", "a number above 0", self.clip_norm)
        if self.patience is not None:
            _expect(1 <= self.patience < 2**31, "patience", "1 to 2147483647", self.patience)
        _expect(self.precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", self.precision)
        _expect(self.store in STORES, "store", f"one of {', '.join(STORES)}", self.store)

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
    beta: MaskShare = 0.9
    epochs: Epochs = (30, 90, 30)


@dataclass(frozen=True)
class MaskRule:
    """How many of the earlier tasks' weights a task reuses in one layer: ``share`` of them or, where it ``emerges``,
    those whose mask is above 1/2, up to this share.
    """

    share: float
    emerges: bool = False

    @property
    def learns(self) -> bool:
        """Whether there is anything to choose: masks that must be all 0 or all 1 are fixed from the start."""
        return self.share > 0 and (self.emerges or self.share < 1)


def mask_rule(beta: float | str) -> MaskRule:
    """The rule that one value of ``beta`` stands for."""
    if not isinstance(beta, str):
        return MaskRule(beta)
    return MaskRule(1.0 if beta == "auto" else float(beta.removeprefix(_AT_MOST)), emerges=True)


def check_patterns(name: str, share: object, layers: Sequence[str]) -> None:
    """Refuse a pattern that matches no layer: it is probably misspelt."""
    for pattern in share if isinstance(share, Mapping) else ():
        if not any(fnmatchcase(layer, pattern) for layer in layers):
            raise ConfigError(f"{name}: expected patterns of layers ({', '.join(layers)}), got {pattern}")


def share_of(name: str, share: Value | Mapping[str, Value], layer: str) -> Value:
    """The share of this layer."""
    if not isinstance(share, Mapping):
        return share
    for pattern, value in share.items():
        if fnmatchcase(layer, pattern):
            return value
    raise ConfigError(f"{name}: expected a share for layer {layer}, got patterns {', '.join(share)}; add one, or '*'")


def _divided(epochs: Any) -> Any:
    """Epochs in all as those of warm-up, solver and final, divided 1 : 3 : 1 as the presets do; others as they are."""
    if isinstance(epochs, int) and not isinstance(epochs, bool):
        _expect(1 <= epochs < 2**31, "epochs", "at least one epoch in all, at most 2147483647", epochs)
        each = (2 * epochs + 5) // 10  # a fifth, rounded
        return each, epochs - 2 * each, each
    several = isinstance(epochs, tuple | list) and any(not isinstance(item, int) for item in epochs)
    return tuple(_divided(item) for item in epochs) if several else epochs


def _check_epochs(epochs: object) -> None:
    counts = epochs if isinstance(epochs, tuple | list) else ()
    whole = len(counts) == 3 and all(isinstance(count, int) and count >= 0 for count in counts)
    _expect(whole, "epochs", "three counts of at least 0", epochs)
    _expect(max(counts) < 2**31, "epochs", "at most 2147483647 of a phase", epochs)
    _expect(sum(counts) > 0, "epochs", "at least one epoch in all", epochs)


def _check_mask_share(name: str, share: object) -> None:
    if isinstance(share, Mapping):
        for layer, value in share.items():
            _check_mask_share(f"{name}[{layer}]", value)
        return
    number = share
    if isinstance(share, str) and share.startswith(_AT_MOST):
        try:
            number = float(share.removeprefix(_AT_MOST))
        except ValueError:
            number = None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    fits = share == "auto" or (is_number and 0 <= number <= 1)  # type: ignore[operator]
    _expect(fits, name, "a number from 0 to 1, auto, or max: and such a number", share)


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
