"""What loggers have in common: where they begin, what they are told, the id by which a resumed run finds its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lps.artifact.atomic import write_atomically
from lps.reading import read_bytes

PROJECT = "learn-prune-share"  # of W&B, and the experiment of MLflow, unless the user names another
MOST_BYTES = 1000  # of an id


@dataclass(frozen=True)
class Start:
    """The run that a logger is for: its directory, its settings by name and the steps of the tasks learnt so far."""

    directory: Path
    settings: Mapping[str, object]
    steps: int

    @property
    def name(self) -> str:
        """Of the run."""
        return self.directory.resolve().name


class Logger(ABC):
    """Shows the values of a run elsewhere.

    ``needs`` are the modules of its extra, which has the logger's name. ``continues`` is true of one that goes on with
    what it was told before the run was resumed, and cannot forget any of it.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    continues = False

    def __init__(self, start: Start) -> None:
        self.steps = start.steps

    def resumed(self, steps: int) -> None:
        """The run resumes after this many steps; later ones will be taken again."""
        self.steps = steps

    @abstractmethod
    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add a value to each of these curves."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """End, within bounded time; ``complete`` if all tasks are learnt."""


def read_id(file: Path) -> str | None:
    """The id that an earlier process of this run kept, if any."""
    return read_bytes(file, MOST_BYTES).decode(errors="replace") if file.exists() else None


def keep_id(file: Path, name: str) -> None:
    """Keep the id for a resumed run."""
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, name.encode())
