"""The settings of a run, how they are read from a file and flags, and the presets of each benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

import yaml

from lps.data import BENCHMARKS
from lps.errors import ConfigError
from lps.methods.lps.config import PATTERNS, SCHEDULES, SHARINGS, LPSConfig, Share

# What every task gets: one share for all of them, or one for each, of which the last repeats.
Shares = Share | tuple[Share, ...]
Kind = Callable[[object], Any]


class _UnexpectedError(Exception):
    """A value of the wrong kind; the message is what was expected."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _UnexpectedError("text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _UnexpectedError("a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _UnexpectedError("a number")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _UnexpectedError("true or false")
    return value


def _one_of(choices: tuple[str, ...]) -> Kind:
    def kind(value: object) -> object:
        if value not in choices:
            raise _UnexpectedError(f"one of {', '.join(choices)}")
        return value

    return kind


def _items(value: object, expected: str, convert: Callable[[str], object]) -> object:
    """On the command line a list is written ``a,b,c``: take it apart."""
    if not isinstance(value, str):
        return value
    try:
        return [convert(part) for part in value.split(",")]
    except ValueError:
        raise _UnexpectedError(expected) from None


def _epochs(value: object) -> tuple[int, ...]:
    expected = "three whole numbers, as in 1,3,1"
    value = _items(value, expected, int)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _UnexpectedError(expected)
    return tuple(_whole(item) for item in value)


def _shares(value: object) -> Shares:
    expected = "a number, a list of numbers as in 0.5,0.1, or a mapping from layer patterns to numbers"

    def share(item: object) -> Share:
        if isinstance(item, Mapping):
            return {_text(layer): _number(number) for layer, number in item.items()}
        return _number(item)

    value = _items(value, expected, float)
    try:
        if isinstance(value, list | tuple) and value:
            return tuple(share(item) for item in value)
        return share(value)
    except _UnexpectedError:
        raise _UnexpectedError(expected) from None


def _dropout(value: object) -> float | tuple[float, ...]:
    value = _items(value, "a number or several, as in 0.25,0.25,0.5", float)
    if isinstance(value, list | tuple):
        return tuple(_number(item) for item in value)
    return _number(value)


def _option(default: object, kind: Kind, metavar: str, text: str) -> Any:
    is_text = kind is _text or isinstance(default, str)  # to be taken as it stands, even where it looks like a number
    return field(default=default, metadata={"kind": kind, "metavar": metavar, "text": is_text, "help": text})


@dataclass(frozen=True)
class Settings:
    """All that determines a run; every preset sets tasks, epochs, alpha and beta."""

    benchmark: str = _option("permuted-digits", _text, "NAME", f"stream of tasks: {', '.join(BENCHMARKS)}")
    preset: str = _option(
        "quick", _one_of(("quick", "paper")), "{quick,paper}", "quick: minutes on two cores; paper: its Table I"
    )
    data_dir: str | None = _option(None, _text, "DIR", "folder with the data files; by default one in the user's cache")
    download: bool = _option(False, _flag, "", "fetch data files that are missing")
    tasks: int = _option(1, _whole, "N", "learn the first N tasks; by default as many as in the paper")
    epochs: tuple[int, int, int] = _option(
        (1, 1, 1), _epochs, "W,A,F", "epochs W,A,F of warm-up, ADMM and final, per task"
    )
    pattern: str = _option("irregular", _one_of(PATTERNS), "PATTERN", f"what is pruned together: {', '.join(PATTERNS)}")
    alpha: float | Mapping[str, float] | tuple[Share, ...] = _option(
        0.1, _shares, "SHARE", "share of each layer for a task; of a list, one a task, the last is for all that follow"
    )
    beta: float | Mapping[str, float] | tuple[Share, ...] = _option(
        0.9, _shares, "SHARE", "share of the earlier tasks' weights that a task reuses; a list as for alpha"
    )
    fill_last: bool = _option(False, _flag, "", "the last task takes all that is free")
    reserve: float = _option(0.0, _number, "SHARE", "share of every layer that must stay free")
    sharing: str = _option("elementwise", _one_of(SHARINGS), "MODE", f"how weights are reused: {', '.join(SHARINGS)}")
    batch_size: int = _option(128, _whole, "N", "examples a training step")
    lr: float = _option(1e-3, _number, "RATE", "learning rate of Adam")
    schedule: str = _option(
        "constant", _one_of(SCHEDULES), "SCHEDULE", f"learning rate in a phase: {', '.join(SCHEDULES)}"
    )
    rho: float = _option(1e-3, _number, "RHO", "penalty of ADMM in its first level")
    rho_levels: int = _option(3, _whole, "N", "levels of ADMM; the penalty grows tenfold from one to the next")
    dropout: float | tuple[float, ...] | None = _option(
        None, _dropout, "SHARE", "dropout of the network; one or several shares"
    )
    window: int | None = _option(None, _whole, "N", "samples that are cut from the middle of radio windows")
    seed: int = _option(0, _whole, "N", "determines tasks, first weights and training")
    save_every: float = _option(60.0, _number, "SECONDS", "how often the state of a task in learning is saved")
    norms: str = _option(
        "frozen", _one_of(("frozen", "per-task")), "MODE", "biases and normalisation: frozen, per-task"
    )
    method: str = _option("lps", _one_of(("lps",)), "METHOD", "how tasks are learnt: lps")
    device: str = _option("cpu", _text, "DEVICE", "cpu, cuda or cuda:N")
    threads: int | None = _option(None, _whole, "N", "threads of torch; by default torch's choice")
    output: str | None = _option(
        None, _text, "DIR", "run directory; by default the next free runs/<benchmark>-<number>"
    )

    def __post_init__(self) -> None:
        """Refuse what no task could use, before anything is read or written."""
        if self.tasks < 1:
            raise ConfigError(f"tasks: expected at least 1, got {self.tasks}")
        if self.threads is not None:
            check_threads(self.threads)
        entries = [len(shares) for shares in (self.alpha, self.beta) if isinstance(shares, tuple)]
        for task in range(1, max(entries, default=1) + 1):
            self.of_task(task)

    def of_task(self, task: int) -> LPSConfig:
        """How this task, counted from 1, is learnt."""
        fills = self.fill_last and task == self.tasks
        return LPSConfig(
            alpha="rest" if fills else _of_task(self.alpha, task),
            beta=_of_task(self.beta, task),
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            schedule=cast("Literal['constant', 'linear', 'cosine']", self.schedule),
            rho=self.rho,
            rho_levels=self.rho_levels,
            reserve=self.reserve,
            seed=self.seed,
        )

    def to_yaml(self) -> str:
        """The same settings as a file for ``--config``."""
        return yaml.safe_dump(_plain(asdict(self)), sort_keys=False)


def check_threads(threads: int) -> None:
    """Refuse a number of threads that no machine has."""
    if not 1 <= threads <= 4096:
        raise ConfigError(f"threads: expected 1 to 4096, got {threads}")


def settings_from(values: Mapping[str, object]) -> Settings:
    """Settings from what a YAML file or flags hold; a wrong value gives a :class:`ConfigError`."""
    converted: dict[str, Any] = {}
    for option in fields(Settings):
        value = values[option.name]
        try:
            may_be_none = option.default is None and value is None
            converted[option.name] = None if may_be_none else option.metadata["kind"](value)
        except _UnexpectedError as expected:
            raise ConfigError(f"{option.name}: expected {expected}, got {value}") from None
    return Settings(**converted)


def contradiction(before: Settings, now: Settings, learnt: int) -> str | None:
    """Why a run with ``learnt`` finished tasks cannot go on with other settings, or None if it can.

    Places and devices may change, how many tasks there are and what the tasks to come get.
    """
    if now.tasks < learnt:
        return f"tasks: {learnt} are learnt already, got {now.tasks}; raise it or start another run"
    for option in fields(Settings):
        name = option.name
        if name in (
            "save_every",
            "data_dir",
            "download",
            "device",
            "threads",
            "output",
            "tasks",
            "alpha",
            "beta",
            "fill_last",
        ):
            continue
        if getattr(before, name) != getattr(now, name):
            changed = f"{getattr(before, name)} in this run, got {getattr(now, name)}"
            return f"{name}: it is {changed}; leave it as it is or start another run"
    for task in range(1, learnt + 1):
        for name in ("alpha", "beta"):
            was, asked = getattr(before.of_task(task), name), getattr(now.of_task(task), name)
            if was != asked:
                return f"{name}: task {task} was learnt with {was}, got {asked}; leave it as it is or start another run"
    return None


def preset(benchmark: str, name: str) -> dict[str, Any]:
    """What the preset of this name says for a benchmark; the rest are the defaults of :class:`Settings`."""
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"benchmark: expected one of {', '.join(BENCHMARKS)}, got {benchmark}")
    if name not in PRESETS[benchmark]:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS[benchmark])}, got {name}")
    return {"tasks": BENCHMARKS[benchmark].tasks, **PRESETS[benchmark][name]}


def _of_task(shares: Shares, task: int) -> Share:
    return shares[min(task, len(shares)) - 1] if isinstance(shares, tuple) else shares


def _plain(value: Any) -> Any:
    """The value without tuples, which YAML does not know."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


# Table I of the paper. Batch 128 and a constant learning rate of 1e-3 are the defaults.
_MNIST = {"epochs": (30, 90, 30), "alpha": 0.1, "beta": 0.9, "dropout": 0.5}
_CIFAR = {"epochs": (200, 600, 200), "alpha": (0.5, 0.1), "beta": 0.92, "dropout": (0.25, 0.25, 0.5)}
_RF = {"epochs": (20, 60, 20), "alpha": 0.2, "beta": 0.9, "pattern": "column"}

# Short runs gain from a falling learning rate, a weaker penalty and less dropout.
_QUICK = {"schedule": "cosine", "rho": 1e-4}
# 1,269 windows a task: so few need small batches to make steps enough.
_SHORT_RF = {"epochs": (1, 3, 1), "batch_size": 32, "window": 256}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "permuted-digits": {
        # A network so small gains nothing from a second thread, and waits for it when the other core is busy.
        "quick": {**_QUICK, "epochs": (20, 60, 20), "alpha": 0.2, "beta": 0.9, "dropout": 0.2, "threads": 1},
        "paper": {**_MNIST, "alpha": 0.2},  # not in the paper: permuted MNIST with five tasks
    },
    # The last tasks have few free weights to learn with: twice the learning rate helps them most.
    "permuted-mnist": {"quick": {**_MNIST, **_QUICK, "epochs": (1, 3, 1), "dropout": 0.2, "lr": 2e-3}, "paper": _MNIST},
    "split-cifar": {"quick": {**_CIFAR, **_QUICK, "epochs": (2, 6, 2)}, "paper": _CIFAR},
    "split-rf": {"quick": {**_RF, **_QUICK, **_SHORT_RF}, "paper": _RF},
    "synthetic-rf": {"quick": {**_RF, **_QUICK, **_SHORT_RF}, "paper": _RF},
    # Section V.B: the best share of reuse among tasks that differ drastically is a fifth.
    "mixed": {
        "quick": {**_CIFAR, **_QUICK, "epochs": (1, 3, 1), "alpha": 0.2, "beta": 0.2},
        "paper": {**_CIFAR, "alpha": 0.2, "beta": 0.2},
    },
}
