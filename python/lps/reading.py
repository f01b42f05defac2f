"""Reading files that may be damaged, hostile or no files at all; every reader of the package begins here.

What a file claims is compared with what it holds before memory is taken for it. All functions raise OSError with a
``strerror`` that ends a sentence, or ValueError; the readers add the file's name and what to do.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. A pipe or a device, whose reading may never end, is refused without waiting."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:  # NUL in the path
        raise OSError(errno.EINVAL, "its name holds a NUL character") from None
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, f"expected a file, got {_KINDS.get(kind, 'something else')}", str(path))


def size_of(file: BinaryIO) -> int:
    """The size in bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_bytes(path: str | Path, most: int) -> bytes:
    """All bytes of a regular file that has at most this many."""
    with open_regular(path) as file:
        data = file.read(min(size_of(file), most) + 1)  # one more than there should be, should it be growing
    if len(data) > most:
        raise OSError(errno.EFBIG, f"expected at most {most:,} bytes, got more", str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. NaN, numbers beyond float64 and nesting beyond Python's stack are ValueErrors."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("too many nested brackets") from None
