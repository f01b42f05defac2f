"""The settings of a run: their fields, how preset, file and flags are merged, what a resumed run may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import yaml
from msgspec import Meta

from lps.data import BENCHMARKS, known, own_options
from lps.errors import ConfigError
from lps.metadata import Source
from lps.methods import METHODS, Method
from lps.methods.base import EVERY_METHOD_USES
from lps.methods.lps.config import PATTERNS, PER_TASK, SHARINGS, LPSConfig, TaskConfig
from lps.options import TEXT, Text, convert, listed, one_line, option, read_yaml, shown
from lps.private import NORMS
from lps.reading import read_bytes
from lps.runs.loggers import LOGGERS
from lps_kernels.owner import MAX_TASKS

QUICK = "quick"
PRESETS = (QUICK, "paper")
MOST_THREADS = 4096

MOST_BYTES = 100_000  # of a settings file; one with all settings has about 1,000

Threads = Annotated[int, Meta(ge=1, le=MOST_THREADS)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run; ``lps`` holds the settings of training, ``method_options`` those that only this
    method has, ``options`` those of the benchmark.

    Every field has a flag, and so has every field inside these three.
    """

    benchmark: Text = option(
        "permuted-digits", "NAME", f"stream of tasks: {', '.join(BENCHMARKS)}", choices=tuple(BENCHMARKS)
    )
    preset: Text = option(QUICK, "", "quick: minutes on two cores; paper: its Table I", choices=PRESETS)
    method: Text = option("lps", "", "how tasks are learnt", choices=tuple(METHODS))
    data_dir: Text | None = option(
        None, "DIR", "folder with the data files; by default one in the user's cache", expected=TEXT
    )
    download: bool = option(False, "", "fetch data files that are missing")
    tasks: Annotated[int, Meta(ge=1, le=MAX_TASKS)] = option(
        1, "N", "learn the first N tasks; by default as many as in the paper", expected=f"1 to {MAX_TASKS}"
    )
    augment: bool = option(False, "", "crop and mirror colour images at random in training")
    pattern: Text = option("irregular", "", "what is pruned together", choices=PATTERNS)
    sharing: Text = option("elementwise", "", "how weights are reused", choices=SHARINGS)
    norms: Text = option(
        "frozen",
        "",
        "biases and normalisation: learnt with task 1 and frozen, or a copy per task",
        choices=NORMS,
    )
    fill_last: bool = option(False, "", "the last task takes all that is free")
    dropout: float | tuple[float, ...] | None = option(
        None,
        "SHARE",
        "dropout of the network: one or several shares, as in 0.25,0.25,0.5",
        expected="a number or several, as in 0.25,0.25,0.5",
        read=listed,
    )
    stream_seed: Seed | None = option(
        None,
        "N",
        "determines permutations, the classes of each task, held-out examples and simulated data; by default --seed",
        expected="0 to 2^63 - 1",
    )
    device: Text = option("cpu", "DEVICE", "cpu, cuda or cuda:N")
    threads: Threads | None = option(
        None, "N", "threads of torch; by default torch's choice", expected=f"1 to {MOST_THREADS}"
    )
    save_every: Seconds = option(
        60.0, "SECONDS", "how often the state of the task being learnt is saved", expected="seconds above 0, up to 1e9"
    )
    log: Text = option(
        "tensorboard",
        "NAME[,NAME]",
        f"tools that show the values of the run: {', '.join(LOGGERS)}",
        expected=f"one or several of {', '.join(LOGGERS)}, as in tensorboard,wandb",
    )
    output: Text | None = option(
        None, "DIR", "run directory; by default the next free runs/<benchmark>-<number>", expected=TEXT
    )
    lps: LPSConfig = field(default_factory=LPSConfig)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that are not among the choices."""
        for chosen in fields(self):
            value, choices = getattr(self, chosen.name), chosen.metadata.get("choices")
            if choices and value not in choices:
                raise ConfigError(f"{chosen.name}: expected {chosen.metadata['expected']}, got {shown(value)}")
        if not LOGGERS.keys() >= set(self.loggers):
            raise ConfigError(f"log: expected one or several of {', '.join(LOGGERS)}, got {shown(self.log)}")

    @property
    def loggers(self) -> tuple[str, ...]:
        """The names in ``log``, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.log.split(",")))

    @property
    def seed(self) -> int:
        """Determines the first weights and the order of training examples."""
        return self.lps.seed

    def of_task(self, number: int) -> TaskConfig:
        """The method's settings for this task, counted from 1."""
        config = self.lps.of_task(number)
        return replace(config, alpha="rest") if self.fill_last and number == self.tasks else config

    def of_all_tasks(self) -> LPSConfig:
        """The same for all tasks."""
        return replace(self.lps, alpha=tuple(self.of_task(number).alpha for number in range(1, self.tasks + 1)))

    def source(self) -> Source:
        """The source of the tasks, as ``lps.eval`` needs it; options with default values are left out."""
        defaults = asdict(own_options(self.benchmark, {}))
        options = {name: value for name, value in self.options.items() if value != defaults[name]}
        seed = self.seed if self.stream_seed is None else self.stream_seed
        return Source(self.benchmark, seed, self.tasks, options)

    def flat(self) -> dict[str, object]:
        """All settings by name, without sections."""
        own = {name: value for name, value in asdict(self).items() if name not in _SECTIONS}
        of_method = {f"{self.method}.{name}": value for name, value in self.method_options.items()}
        return {**asdict(self.lps), **of_method, **own, **self.options}

    def to_yaml(self) -> str:
        """The same settings as a file for ``--config``."""
        return yaml.safe_dump(_plain(asdict(self)), sort_keys=False)


# Sections of a settings file; files of earlier versions have none and are read too. Options of a method are known by
# its name and theirs, as in ewc.strength; in a file they stand in the section of the method's options by theirs alone.
_SECTIONS = {
    "lps": {option.name for option in fields(LPSConfig)},
    "method_options": {f"{name}.{option.name}" for name, kind in METHODS.items() for option in fields(kind.options)},
    "options": {option.name for benchmark in BENCHMARKS.values() for option in fields(benchmark.options)},
}
_OWN = {option.name for option in fields(Settings)} - set(_SECTIONS)

# Settings of training: every one is read by some methods and by others not.
_OF_TRAINING = _SECTIONS["lps"] | {"pattern", "sharing", "norms", "fill_last"}

# Settings that do not affect weights learnt already.
_MAY_CHANGE = {"data_dir", "download", "tasks", "fill_last", "device", "threads", "save_every", "log", "output"}


def is_read(name: str, method: type[Method]) -> bool:
    """Whether a method reads a setting; those of the run and of the benchmark count for every method."""
    owner, dot, _ = name.partition(".")
    if dot:
        return owner == method.name
    if name == "norms":
        return method.norms is None
    return name not in _OF_TRAINING or name in EVERY_METHOD_USES | method.uses


def read_settings(path: Path) -> dict[str, object]:
    """The settings in a YAML file by name, without sections."""
    where = one_line(str(path))
    try:
        return _of_its_time(_flat(_mapping(read_yaml(read_bytes(path, MOST_BYTES).decode()))))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: expected text in UTF-8, got {error.reason} at byte {error.start}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _of_its_time(values: dict[str, object]) -> dict[str, object]:
    """A file with all settings that names no solver or norms was written when there was one kind alone."""
    if "rho_levels" not in values:
        return values
    solver = {} if "solver" in values else {"solver": "admm", "pull": "gradient"}
    return {"norms": "frozen", **values, **solver}


def settings_from(given: Mapping[str, object]) -> Settings:
    """Settings from values by name, on top of their preset; the first wrong one is refused."""
    for name in given:
        if name not in _OWN.union(*_SECTIONS.values()):
            raise ConfigError(f"{shown(name)}: is no setting; --help lists them all")
    benchmark, method = given.get("benchmark", Settings.benchmark), given.get("method", Settings.method)
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(f"method: expected one of {', '.join(METHODS)}, got {shown(method)}")
    flat = {**_preset(benchmark, given.get("preset", Settings.preset), method), **given}
    of_method = {name: value for name, value in flat.items() if name in _SECTIONS["method_options"]}
    own = own_options(
        str(benchmark),
        {name: value for name, value in flat.items() if name in _SECTIONS["options"] and value is not None},
    )
    count = known(benchmark).count
    if count is not None and not {"tasks", "alpha"} <= given.keys():
        data_dir = flat.get("data_dir")
        tasks = count(own, Path(data_dir) if isinstance(data_dir, str) and data_dir else None)
        flat = {**flat, "tasks": tasks, "alpha": 1 / tasks, **given}
    return convert(
        {
            **{name: value for name, value in flat.items() if name in _OWN},
            "lps": {name: value for name, value in flat.items() if name in _SECTIONS["lps"]},
            "method_options": asdict(_method_options(method, of_method)),
            "options": asdict(own),
        },
        Settings,
    )


def _method_options(method: str, given: Mapping[str, object]) -> Any:
    """The method's own options, checked; what is not given has its default."""
    values = {}
    for name, value in given.items():
        owner, _, option_name = name.partition(".")
        if owner != method:
            raise ConfigError(f"{name}: is an option of {owner}, but the method is {method}; leave it out")
        values[option_name] = value
    try:
        return convert(values, METHODS[method].options)
    except ConfigError as error:
        raise ConfigError(f"{method}.{error}") from None


def _preset(benchmark: object, name: object, method: str) -> dict[str, Any]:
    """The values of a benchmark's preset that a method reads, by setting; the other settings have their defaults."""
    chosen = known(benchmark)
    if not isinstance(name, str) or name not in chosen.presets:
        raise ConfigError(f"preset: expected one of {', '.join(chosen.presets)}, got {shown(name)}")
    of_method = chosen.quick_of.get(method, {}) if name == QUICK else {}
    values = {"tasks": chosen.tasks, **chosen.presets[name], **of_method}
    return {setting: value for setting, value in values.items() if is_read(setting, METHODS[method])}


def contradiction(before: Settings, now: Settings, learnt: int, *, begun: bool = False) -> str | None:
    """Why a run with ``learnt`` finished tasks, and one in learning if ``begun``, cannot resume with changed settings;
    None if it can.

    Paths, devices, the number of tasks and the shares and epochs of later tasks may change; before the first task has
    begun, everything may.
    """
    if not learnt and not begun:
        return None
    remedy = "leave it as it is or start another run"
    if now.tasks < learnt:
        return f"tasks: {learnt} are learnt already, got {now.tasks}; raise it or start another run"
    was, asked = _fixed(before), _fixed(now)
    for name in was | asked:
        if was.get(name) != asked.get(name):
            return f"{name}: it is {shown(was.get(name))} in this run, got {shown(asked.get(name))}; {remedy}"
    for task in range(1, min(learnt + begun, now.tasks) + 1):
        for name in _read_per_task(now):
            first, second = getattr(before.of_task(task), name), getattr(now.of_task(task), name)
            if first != second:
                how = "was learnt" if task <= learnt else "is being learnt"
                return f"{name}: task {task} {how} with {shown(first)}, got {shown(second)}; {remedy}"
    return None


def difference(before: Settings, now: Settings) -> str | None:
    """The first setting in which two whole runs differ, paths and speed aside; None if there is none."""
    was, asked = ({**_fixed(settings), **_of_all_tasks(settings)} for settings in (before, now))
    for name in was | asked:
        if was.get(name) != asked.get(name):
            return f"{name}: it is {shown(was.get(name))} in this run, got {shown(asked.get(name))}"
    return None


def _of_all_tasks(settings: Settings) -> dict[str, object]:
    per_task = {
        name: [getattr(settings.of_task(i + 1), name) for i in range(settings.tasks)]
        for name in _read_per_task(settings)
    }
    return {"tasks": settings.tasks, "device": settings.device, **per_task}


def _read_per_task(settings: Settings) -> list[str]:
    """The settings that may differ between tasks and that the method reads."""
    return [name for name in PER_TASK if is_read(name, METHODS[settings.method])]


def first_task_alone(settings: Settings) -> Settings:
    """The settings of a run of task 1 alone that a run with these settings can go on with."""
    return replace(settings, tasks=1, fill_last=False)


def first_task_key(settings: Settings) -> str:
    """The same text for settings whose task 1 is the same."""
    alone = first_task_alone(settings)
    values = {**_fixed(alone), **_of_all_tasks(alone)}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _fixed(settings: Settings) -> dict[str, object]:
    """Settings that must stay the same when a run is resumed, for all tasks: of those that the method reads."""
    # The method comes first: where it differs, so do its options, and it is what a refusal should name.
    values = {"method": settings.method, **settings.flat(), "stream_seed": settings.source().seed}
    left_out = {*_MAY_CHANGE, *PER_TASK}
    method = METHODS[settings.method]
    return {name: value for name, value in values.items() if name not in left_out and is_read(name, method)}


def _flat(values: Mapping[object, object]) -> dict[str, object]:
    """The settings of all sections in one mapping."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"expected names of settings, got {shown(name)}")
        if name in _SECTIONS:
            for inner, item in _mapping(value, f"{name}: ").items():
                full = f"{values.get('method')}.{inner}" if name == "method_options" else inner
                if full not in _SECTIONS[name]:
                    raise ConfigError(f"{name}: {shown(inner)}: is no setting of this section")
                flat[str(full)] = item
        else:
            flat[name] = value
    return flat


def _mapping(value: object, where: str = "") -> Mapping[object, object]:
    if not isinstance(value, dict):
        got = "nothing" if value is None else shown(value)
        raise ConfigError(f"{where}expected settings by name, as in 'alpha: 0.1', got {got}")
    return value


def _plain(value: Any) -> Any:
    """The value with lists for tuples, which YAML lacks."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
