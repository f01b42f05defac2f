"""One run at a time in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lps.errors import ConfigError

LOCK = ".lock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the directory and keep other processes from using it; the kernel releases it when this process dies.

    The lock belongs to the process (``lockf``), not to the open file: forked workers do not inherit it.
    """
    fcntl = locks()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {path}: cannot be made: {error.strerror}; choose another") from None
    try:
        # Not through a link, since the file that it leads to would be overwritten, and without waiting for a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path / LOCK, flags, 0o666)
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


def locks() -> Any:
    """The module ``fcntl``, which Windows lacks."""
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "output: this system lacks the locks that a run directory needs; run the command on Linux or macOS, or "
            "learn in Python with Lifelong.learn"
        ) from None
    return fcntl


def _process(descriptor: int) -> str:
    """What the process that holds the lock wrote into the file."""
    with suppress(OSError):
        text = os.read(descriptor, 20).strip()
        return text.decode() if text.isdigit() else "unknown"
    return "unknown"
