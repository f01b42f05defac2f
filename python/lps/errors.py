"""What can go wrong in a way that the user can put right: each error is one sentence."""

from __future__ import annotations


class LPSError(Exception):
    """Base of all errors below; a command prints its message and exits with ``exit_code``."""

    exit_code = 1


class ConfigError(LPSError, ValueError):
    """A setting that cannot be used."""


class CapacityError(LPSError, ValueError):
    """A task asks for more weights than are free."""


class DataError(LPSError, ValueError):
    """A data file or a data set that is not what it should be."""


class DivergedError(LPSError, ArithmeticError):
    """The loss of a task became infinite or NaN; the tasks learnt before it are as they were."""


class FileFormatError(LPSError, ValueError):
    """A file that is not a whole and unchanged model.lps."""


class StoppedError(LPSError):
    """Learning was asked to stop; where a checkpoint is kept, the state of the task is saved."""
