"""The record that every benchmark's file has at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lps.data.options import SplitOptions
from lps.errors import ConfigError
from lps.options import shown

if TYPE_CHECKING:
    from lps.data.base import Raw, Stream

# What all paper presets share: Eq. (13) to the letter.
PAPER_SOLVER: dict[str, Any] = {"solver": "admm", "pull": "gradient"}
# What all quick presets share: a falling learning rate, and a solver that arrives within a few epochs; with --solver
# admm, the pull that does.
QUICK: dict[str, Any] = {
    "schedule": "cosine",
    "solver": "straight-through",
    "beta": "auto",
    "pull": "proximal",
}


@dataclass(frozen=True)
class Request:
    """What a stream is built from, checked by :func:`lps.data.stream`."""

    data_dir: Path
    tasks: int
    seed: int
    download: bool
    augment: bool
    own: Any  # the benchmark's own options: an instance of its Benchmark.options


@dataclass(frozen=True)
class Benchmark:
    """All that the package knows about a benchmark.

    ``presets`` maps quick and paper to settings, by the names of their flags; ``quick_of`` has those that quick has for
    one method alone, by its name, chosen like all others on validation data.

    ``count`` is for benchmarks whose number of tasks depends on their own options or on the user's folder, which is
    None where no data are at hand. Their tasks own equal shares of the network unless ``alpha`` is given.
    """

    build: Callable[[Request], Stream]
    raw: Callable[[Request, int], Raw]  # what a task, counted from 0, reads
    tasks: int  # as many as in the paper
    most: int  # as many as there can be
    presets: Mapping[str, Mapping[str, Any]]
    augments: bool = False  # whether it has colour images, which can be cropped and mirrored
    count: Callable[[Any, Path | None], int] | None = None
    quick_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def one_of(name: str, *splits: int) -> Callable[[SplitOptions, Path | None], int]:
    """The ``count`` of a benchmark that can be split into these numbers of tasks."""

    def count(own: SplitOptions, _data_dir: Path | None) -> int:
        if own.split not in splits:
            raise ConfigError(f"{name}: split: expected {' or '.join(map(str, splits))}, got {shown(own.split)}")
        return own.split

    return count
