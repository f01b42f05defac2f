"""One run at a time in a directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lps.errors import ConfigError

LOCK = ".lock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the directory and keep other processes from using it; the kernel releases it when this process dies.

    The lock belongs to the process (``lockf``), not to the open file: forked workers do not inherit it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / LOCK).open("a+")
    except OSError as error:
        raise ConfigError(f"output: {path}: cannot be made: {error.strerror}; choose another") from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            process = file.read(20).strip() or "unknown"
            raise ConfigError(
                f"output: {path} is in use by another run (process {process}); wait for it or choose another"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
