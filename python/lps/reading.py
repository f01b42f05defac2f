"""Reading files that may be damaged, hostile or no files at all; every reader of the package begins here.

What a file claims is compared with what it holds before memory is taken for it. All functions raise OSError with a
``strerror`` that ends a sentence, or ValueError; the readers add the file's name and what to do.
"""

from __future__ import annotations

import errno
import os
import stat
from math import prod
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# Without O_NONBLOCK, opening a pipe waits for somebody to write into it. Windows has only the last of the three, and
# without it changes the ends of lines.
_FLAGS = os.O_RDONLY
for _name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. A pipe or a device, whose reading may never end, is refused without waiting."""
    try:
        descriptor = os.open(path, _FLAGS)
    except ValueError:  # NUL in the path
        raise OSError(errno.EINVAL, "its name holds a NUL character") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # sockets cannot be opened at all
            raise OSError(errno.EINVAL, "expected a file, got a socket", str(path)) from None
        raise
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


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """All bytes of a regular file, which has at most this many."""
    with open_regular(path) as file:
        size = size_of(file)
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"expected at most {most:,} bytes, got {size:,}", str(path))
        return file.read(size)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. NaN, numbers beyond float64 and nesting beyond Python's stack are ValueErrors."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("too many nested brackets") from None


_DTYPES = ("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64")
MOST_HEADER = 2**26  # bytes; 127 tasks of a network of 100 layers need 2**24
MOST_TENSORS = 2**17  # of which that network has 2**15


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor in the header of a safetensors file; its offsets are the library's to check."""

    data_offsets: tuple[int, int]
    dtype: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, lt=2**62)]], Meta(max_length=32)]


def safetensors_header(file: BinaryIO, size: int) -> dict[str, str]:
    """The metadata of a safetensors file of ``size`` bytes; a ValueError says what keeps it from being read.

    The library checks that the tensors fill the file exactly. This checks what the library, or torch, would fail on
    with an error of its own: the length of the header, types that torch lacks, shapes whose product overflows.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MOST_HEADER):
        raise ValueError(f"expected a header of at most {max(0, min(size - 8, MOST_HEADER)):,} bytes, got {length:,}")
    try:
        entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        metadata = entries.pop("__metadata__", msgspec.Raw(b"{}"))
        if len(entries) > MOST_TENSORS:
            raise ValueError(f"expected at most {MOST_TENSORS:,} tensors, got {len(entries):,}")
        for name, entry in entries.items():
            tensor = msgspec.json.decode(entry, type=_Tensor)
            if tensor.dtype not in _DTYPES:
                raise ValueError(f"tensor {name}: expected one of {', '.join(_DTYPES)}, got {tensor.dtype}")
            if prod(max(1, number) for number in tensor.shape) >= 2**62:
                raise ValueError(f"tensor {name}: expected fewer than 2^62 numbers, got shape {tensor.shape}")
        return msgspec.json.decode(metadata, type=dict[str, str])
    except RecursionError:
        raise ValueError("its header has too many nested brackets") from None
