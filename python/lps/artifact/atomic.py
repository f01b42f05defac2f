"""Files that are replaced as a whole or not at all, and files that grow by whole entries."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from lps.errors import WriteError

ADVICE = {
    errno.ENOENT: "make the directory first",
    errno.ENOTDIR: "choose a path whose parents are directories",
    errno.EISDIR: "choose the path of a file",
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.EROFS: "choose a directory that you may write to",
    errno.ENOSPC: "free some space or choose another disk",
    errno.EDQUOT: "free some space or choose another disk",
    errno.EFBIG: "raise the limit on file sizes or choose another disk",
}


SUFFIX = ".lps.tmp"


def is_temporary(path: Path) -> bool:
    """Whether this is what a process that was killed while it wrote a file left behind."""
    return path.name.startswith(".") and path.name.endswith(SUFFIX)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is always either the old one or the whole new one; a link stays a link."""
    try:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path  # a link goes on pointing to the file
        if target.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():  # the new file would take its place
            raise OSError(errno.EINVAL, "there is a pipe, a socket or a device")
        temporary = target.parent / f".{secrets.token_hex(8)}{SUFFIX}"
        file = temporary.open("xb")
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise _failure(path, error) from error


class Log:
    """A file that grows by whole entries. They are written at once, so that a full disk is noticed at the entry that
    does not fit, of which nothing stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise _failure(path, error) from error

    def add(self, entry: bytes) -> None:
        """Append an entry."""
        size = self._file.seek(0, os.SEEK_END)
        left = memoryview(entry)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(size)
            raise _failure(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _failure(path: Path, error: OSError | ValueError) -> WriteError:
    number, reason = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    return WriteError(f"{path}: could not be written: {reason}; {ADVICE.get(number or 0, 'choose another path')}")


def _sync_directory(directory: Path) -> None:
    """Make the new name last through a power cut."""
    if os.name != "posix":  # elsewhere directories cannot be opened
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
