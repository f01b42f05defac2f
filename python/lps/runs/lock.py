"""One run at a time in a directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lps.errors import ConfigError

LOCK = ".lock"

# Not through a link, since the file that it leads to would be overwritten, and without waiting, should it be a pipe.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the directory and keep other processes from using it; the kernel releases it when this process dies.

    The lock belongs to the process (``lockf``), not to the open file: forked workers do not inherit it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {path}: cannot be made: {error.strerror}; choose another") from None
    try:
        descriptor = os.open(path / LOCK, _FLAGS, 0o666)
    except OSError as error:
        raise ConfigError(f"output: {path / LOCK}: cannot be opened: {error.strerror}; choose another") from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which of the two depends on the system
            raise ConfigError(
                f"output: {path} is in use by another run (process {_process(descriptor)}); wait for it or choose "
                "another"
            ) from None
        except OSError as error:
            raise ConfigError(f"output: {path / LOCK}: cannot be locked: {error.strerror}; choose another") from None
        with suppress(OSError):  # on a full disk it is not told which process it is
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _process(descriptor: int) -> str:
    """What the process that holds the lock wrote into the file."""
    with suppress(OSError):
        text = os.read(descriptor, 20).strip()
        return text.decode() if text.isdigit() else "unknown"
    return "unknown"
