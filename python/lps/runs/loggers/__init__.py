"""Where the values of a run are shown besides ``metrics.csv``: a logger per tool.

A new tool is one file with a :class:`Logger` and one line in :data:`LOGGERS`; an optional package is an extra of the
same name and is imported when the logger is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec

from lps.errors import ConfigError, LPSError, WriteError, complain, in_a_sentence
from lps.runs.loggers.base import Logger, Start
from lps.table import Table

__all__ = ["LOGGERS", "Loggers", "Start", "check_installed"]

LOGGERS: Table[type[Logger]] = Table(
    {
        "tensorboard": "lps.runs.loggers.tensorboard:Events",
        "wandb": "lps.runs.loggers.wandb_run:WandbRun",
        "mlflow": "lps.runs.loggers.mlflow_run:MlflowRun",
    }
)


def check_installed(names: Iterable[str]) -> None:
    """Refuse loggers whose packages are missing."""
    for name in names:
        for module in LOGGERS[name].needs:
            found = find_spec(module)
            if found is None or found.origin is None:  # without an origin, a folder of this name; W&B makes one
                raise ConfigError(f"log: {name} lacks a package: pip install 'learn-prune-share[{name}]'")


class Loggers:
    """The loggers of a run. One that cannot begin is an error; one that fails later is left out from then on, after a
    sentence: it must not cost what is being learnt. A file that cannot be written ends the run, as any other does.
    """

    def __init__(self, names: Iterable[str], start: Start) -> None:
        self._open: dict[str, Logger] = {}
        for name in names:
            try:
                self._open[name] = LOGGERS[name](start)
            except BaseException as error:
                self.close(complete=False)
                if isinstance(error, LPSError) or not isinstance(error, Exception):
                    raise
                raise LPSError(f"log: {name} cannot begin: {in_a_sentence(error)}") from error

    def resumed(self, steps: int) -> None:
        """The run resumes after this many steps; later ones will be taken again."""
        self._each(lambda logger: logger.resumed(steps))

    def add(self, values: Mapping[str, float], step: int, *, again: bool = False) -> None:
        """Add a value to each of these curves; ``again`` if they were added before the run was resumed."""
        self._each(lambda logger: None if again and logger.continues else logger.add(values, step))

    def close(self, *, complete: bool) -> None:
        """End; ``complete`` if all tasks are learnt."""
        self._each(lambda logger: logger.close(complete=complete))
        self._open.clear()

    def _each(self, action: Callable[[Logger], None]) -> None:
        for name, logger in list(self._open.items()):
            try:
                action(logger)
            except WriteError:
                raise
            except Exception as error:  # of any kind: it is the tool's
                del self._open[name]
                with suppress(Exception):
                    logger.close(complete=False)
                complain("lps.train", f"log: {name} failed: {in_a_sentence(error)}; the run goes on without it")
