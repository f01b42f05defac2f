"""Errors that the user can fix; the message of each is one sentence."""

from __future__ import annotations

import sys
from contextlib import suppress


class LPSError(Exception):
    """Base of all errors below; a command prints its message and exits with ``exit_code``."""

    exit_code = 1


class ConfigError(LPSError, ValueError):
    """A setting that cannot be used."""


class CapacityError(LPSError, ValueError):
    """A task asks for more weights than are free."""


class DataError(LPSError, ValueError):
    """A data file or data set with the wrong contents."""


class DivergedError(LPSError, ArithmeticError):
    """The loss of a task became infinite or NaN; earlier tasks are unchanged."""


class FileFormatError(LPSError, ValueError):
    """A file that is not a complete, undamaged model.lps or state."""


class WriteError(LPSError):
    """A file that could not be written, on a full disk for instance; what was there before is as it was."""


class StoppedError(LPSError):
    """Learning was asked to stop; with a checkpoint, the state of the task is saved."""


def escaped(text: str) -> str:
    """The text with each character that would break a line or cannot be printed as an escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def in_a_sentence(text: object) -> str:
    """A message on one line of at most 400 characters, whatever a file has put into it."""
    line = escaped(str(text))
    return line if len(line) <= 400 else f"{line[:200]} ... {line[-196:]}"


def complain(prog: str, sentence: str) -> None:
    """Print a sentence on one line to the standard error, if that is possible."""
    if sys.stderr is None:  # print would take the standard output instead
        return
    with suppress(OSError, ValueError):
        print(f"{prog}: {escaped(sentence)}", file=sys.stderr)
