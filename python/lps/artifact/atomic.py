"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from lps.errors import LPSError

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
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "choose another path")
        raise LPSError(f"{path}: could not be written: {error.strerror}; {advice}") from error


def _sync_directory(directory: Path) -> None:
    """Make the new name last through a power cut."""
    if os.name != "posix":  # elsewhere directories cannot be opened
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
