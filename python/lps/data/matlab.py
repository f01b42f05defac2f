"""Reading arrays of small whole numbers from MATLAB files of version 5, packed or not, as SVHN has them.

The format is in "MAT-File Format" by The MathWorks: a header of 128 bytes, then elements, each with a tag of eight
bytes (type, length). An array is an element of other elements: flags, dimensions, name and values. A packed element
holds an array deflated with a checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lps.data.files import FETCH_AGAIN, Bytes, Readable, fill, unlike, unreadable
from lps.errors import DataError
from lps.options import shown
from lps.reading import open_regular, size_of

_INT8, _UINT8, _INT32, _UINT32, _DOUBLE, _MATRIX, _COMPRESSED = 1, 2, 5, 6, 9, 14, 15
_DOUBLE_CLASS, _UINT8_CLASS = 6, 9  # of an array; doubles that are small whole numbers may be stored as bytes
_COMPLEX = 0x800
_MOST_NAME, _MOST_DIMENSIONS = 64, 8
_DEFLATED = 2**16  # bytes that are unpacked at a time


def read_mat(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Bytes]:
    """Read arrays of whole numbers of 0 to 255, each of exactly its shape and with its first index varying fastest.

    Each comes with its dimensions in reverse order, so that the last one varies fastest.
    """
    found: dict[str, Bytes] = {}
    try:
        with open_regular(path) as file:
            header = file.read(128)
            if len(header) < 128 or header[124:] != b"\x00\x01IM":
                raise ValueError("expected a MATLAB file of version 5, got something else")
            while len(found) < len(shapes) and (tag := file.read(8)):
                kind, size = _tag(tag)
                end = file.tell() + size
                if end > size_of(file):
                    raise EOFError("it ends within an array")
                _read_element(path, file, kind, size, shapes, found)
                file.seek(end)
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    absent = [name for name in shapes if name not in found]
    if absent:
        raise unlike(path, "arrays", ", ".join(shapes), f"no {', '.join(absent)}")
    return found


def _tag(tag: bytes) -> tuple[int, int]:
    if len(tag) < 8:
        raise EOFError("it ends within a tag")
    kind, size = struct.unpack("<2I", tag)
    return kind, size


def _read_element(
    path: Path, file: BinaryIO, kind: int, size: int, shapes: Mapping[str, tuple[int, ...]], found: dict[str, Bytes]
) -> None:
    """Read an array if it is one of those that are asked for; anything else is passed over."""
    source = _Source(file, size, packed=kind == _COMPRESSED)
    if kind == _COMPRESSED:
        kind, size = _tag(source.exactly(8))
    if kind != _MATRIX:
        return
    flags, dimensions, name = (
        source.element(_UINT32, 8),
        source.element(_INT32, 4 * _MOST_DIMENSIONS),
        source.element(_INT8, _MOST_NAME).decode("ascii", "replace"),
    )
    if name not in shapes:
        return
    if name in found:
        raise unlike(path, f"arrays named {name}", "one", "more")
    shape = tuple(np.frombuffer(dimensions[: len(dimensions) // 4 * 4], "<i4").tolist())
    if shape != shapes[name]:
        raise unlike(path, f"shape of {name}", list(shapes[name]), shown(list(shape)))
    word = int.from_bytes(flags[:4], "little")
    if word & 0xFF not in (_UINT8_CLASS, _DOUBLE_CLASS) or word & _COMPLEX:
        raise unlike(path, f"type of {name}", "whole numbers", f"class {word & 0xFF}")
    found[name] = _values(path, name, shape, source)


def _values(path: Path, name: str, shape: tuple[int, ...], source: _Source) -> Bytes:
    count = prod(shape)
    kind, size, inline = source.tag()
    if kind not in (_UINT8, _DOUBLE):
        raise unlike(path, f"stored type of {name}", "bytes or doubles", f"number {kind}")
    stored = np.dtype(np.uint8 if kind == _UINT8 else "<f8")
    if size != count * stored.itemsize:
        raise unlike(path, f"length of {name} in bytes", f"{count * stored.itemsize:,}", f"{size:,}")
    values = np.empty(count, stored)
    if inline is not None:
        values[:] = np.frombuffer(inline[:size], stored)
    elif fill(source, values) < values.nbytes:
        raise EOFError(f"it ends within the array {name}")
    source.end()
    if kind == _DOUBLE:
        small = values.astype(np.uint8, casting="unsafe") if np.isin(values, np.arange(256)).all() else None
        if small is None:
            raise unlike(path, f"values of {name}", "whole numbers of 0 to 255", "others")
        values = small
    return values.reshape(shape[::-1])


class _Source(Readable):
    """The bytes of one element: as they are in the file, or unpacked little by little."""

    def __init__(self, file: BinaryIO, size: int, *, packed: bool) -> None:
        self.file, self.left = file, size
        self.unpacker = zlib.decompressobj() if packed else None

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes, none at the end."""
        if self.unpacker is None:
            data = self.file.read(min(size, self.left))
            self.left -= len(data)
            return data
        while not self.unpacker.eof:
            packed = self.unpacker.unconsumed_tail
            if not packed:
                packed = self.file.read(min(_DEFLATED, self.left))
                self.left -= len(packed)
                if not packed:
                    break
            if data := self.unpacker.decompress(packed, size):
                return data
        return b""

    def exactly(self, size: int) -> bytes:
        """Just so many bytes."""
        data = b""
        while len(data) < size:
            part = self.read(size - len(data))
            if not part:
                raise EOFError("it ends within an array")
            data += part
        return data

    def tag(self) -> tuple[int, int, bytes | None]:
        """Type and length of the element that follows, and its contents if they are in the tag."""
        tag = self.exactly(8)
        kind, size = _tag(tag)
        if kind >> 16:  # the small form: the length in the upper half, then up to four bytes
            if kind >> 16 > 4:
                raise ValueError("a tag of it is damaged")
            return kind & 0xFFFF, kind >> 16, tag[4:]
        return kind, size, None

    def element(self, expected: int, most: int) -> bytes:
        """The contents of the next element, which has this type and at most so many bytes."""
        kind, size, inline = self.tag()
        if kind != expected or size > most:
            raise ValueError("the description of an array in it is damaged")
        return inline[:size] if inline is not None else self.exactly(-(-size // 8) * 8)[:size]

    def end(self) -> None:
        """Check that nothing follows but padding to eight bytes, and the checksum."""
        padding = 0
        while part := self.read(8):  # which may give less than there is
            padding += len(part)
            if padding >= 8:
                raise ValueError("more follows after an array in it")
        if self.unpacker is not None and not self.unpacker.eof:
            raise EOFError("it ends within an array")
