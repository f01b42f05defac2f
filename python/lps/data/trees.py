"""Data sets of many small files: a zip archive, or the folder that it unpacks to, read in the same way.

Nothing is unpacked to disk, so that names in an archive are names and never paths. The table of contents of an archive
is read by this module: zipfile makes objects of all entries before anybody can say that they are too many.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from lps.data.download import fetch
from lps.data.files import FETCH_AGAIN, PASS_OR_DOWNLOAD, missing, unlike, unreadable
from lps.errors import DataError
from lps.options import shown
from lps.reading import open_regular, read_bytes, size_of

MOST_MEMBERS = 200_000  # TinyImageNet has 120,000
MOST_TABLE = 2**25  # bytes of the table of contents; that of TinyImageNet has about 2**24
_STORED, _DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")


class ZipTree:
    """The files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                size = size_of(file)
                # The last record stands at the end, before a comment of up to 65,535 bytes.
                start = max(0, size - _END.size - 2**16)
                file.seek(start)
                tail = file.read(size - start)
                place = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - _END.size + 4))
                if place < 0:
                    raise ValueError("expected a zip archive, got something else or an archive without its end")
                # Its number of entries is not used: with more than 65,535 it stands elsewhere.
                *_, length, first, _ = _END.unpack_from(tail, place)
                if first + length > start + place:
                    raise ValueError("its table of contents lies beyond its end")
                if length > MOST_TABLE:
                    raise ValueError(f"expected a table of contents of at most {MOST_TABLE:,} bytes, got {length:,}")
                file.seek(first)
                self._table = file.read(length)
            self._places = dict(self._entries())
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise unreadable(path, error, FETCH_AGAIN) from None

    def _entries(self) -> Iterator[tuple[str, int]]:
        """The name of every file and where its entry is in the table."""
        place, seen = 0, set[str]()
        while place < len(self._table):
            if place + _ENTRY.size > len(self._table) or self._table[place : place + 4] != b"PK\1\2":
                raise ValueError("its table of contents is damaged")
            lengths = struct.unpack_from("<3H", self._table, place + 28)  # of the name, of more fields, of a comment
            begin = place + _ENTRY.size
            name = self._table[begin : begin + lengths[0]].decode("utf-8", "replace")
            if begin + sum(lengths) > len(self._table):
                raise ValueError("its table of contents is damaged")
            if name in seen:
                raise unlike(self.path, f"members named {shown(name)}", "one", "more")
            if len(seen) == MOST_MEMBERS:
                raise ValueError(f"expected at most {MOST_MEMBERS:,} members, got more")
            seen.add(name)
            if not name.endswith("/"):  # folders
                yield name, place
            place = begin + sum(lengths)

    def names(self) -> list[str]:
        """Of all files, in the order of their names."""
        return sorted(self._places)

    def read(self, name: str, most: int) -> bytes:
        """The contents of a file of at most so many bytes."""
        where = f"member {shown(name)}"
        if name not in self._places:
            raise unlike(self.path, "members", shown(name), "none of this name")
        entry = _ENTRY.unpack_from(self._table, self._places[name])
        flags, method, checksum, packed, size, first = *entry[3:5], *entry[7:10], entry[16]
        if flags & 1 or method not in (_STORED, _DEFLATED):
            got = "encryption" if flags & 1 else f"number {method}"
            raise unlike(self.path, f"packing of {where}", "none or deflate", got)
        if size > most:
            raise unlike(self.path, f"length of {where} in bytes", f"at most {most:,}", f"{size:,}")
        try:
            with open_regular(self.path) as file:
                file.seek(first)
                local = file.read(_LOCAL.size)
                if len(local) < _LOCAL.size or local[:4] != b"PK\3\4":
                    raise ValueError(f"{where} is not where its table of contents says")
                file.seek(sum(_LOCAL.unpack(local)[9:]), os.SEEK_CUR)  # over the name and more fields
                # Deflate makes nothing longer than by a few bytes in thousands.
                data = file.read(min(packed, 2 * most + 1024))
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error, FETCH_AGAIN) from None
        try:
            content = data if method == _STORED else zlib.decompressobj(-15).decompress(data, size + 1)
        except zlib.error as error:
            raise unreadable(self.path, error, FETCH_AGAIN) from None
        if len(content) != size:
            got = "more" if len(content) > size else f"{len(content):,}"
            raise unlike(self.path, f"length of {where} in bytes", f"{size:,}", got)
        if zlib.crc32(content) != checksum:
            raise unlike(self.path, f"sum of {where}", f"{checksum:08x}", f"{zlib.crc32(content):08x}")
        return content


class FolderTree:
    """The files below a folder, named as in the archive: from the folder's own name on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Of all files, in the order of their names; links are not followed."""
        found: list[str] = []
        try:
            for folder, _, files in os.walk(self.path, onerror=_raise):
                below = Path(folder).relative_to(self.path.parent).as_posix()
                found += [f"{below}/{file}" for file in files]
                if len(found) > MOST_MEMBERS:
                    raise ValueError(f"expected at most {MOST_MEMBERS:,} files, got more")
        except (OSError, ValueError) as error:
            raise unreadable(self.path, error, FETCH_AGAIN) from None
        return sorted(found)

    def read(self, name: str, most: int) -> bytes:
        """The contents of a file of at most so many bytes."""
        path = self.path.parent / name
        try:
            return read_bytes(path, most)
        except OSError as error:
            raise unreadable(path, error, FETCH_AGAIN) from None


def _raise(error: OSError) -> None:
    raise error


Tree = ZipTree | FolderTree


def open_tree(what: str, data_dir: Path, archive: str) -> Tree:
    """The archive in this directory or, if that is not there, the folder that it unpacks to."""
    folder = archive.removesuffix(".zip")
    if (data_dir / archive).exists():
        return ZipTree(data_dir / archive)
    if (data_dir / folder).is_dir():
        return FolderTree(data_dir / folder)
    raise missing(what, (archive, f"{folder}/"), (data_dir,), PASS_OR_DOWNLOAD)


def fetch_missing(key: str, data_dir: Path, *archives: str) -> None:
    """Fetch the archives of a data set unless each is there or its folder is."""
    if not all((data_dir / name).exists() for archive in archives for name in _either(data_dir, archive)):
        fetch(key, data_dir)


def _either(data_dir: Path, archive: str) -> list[str]:
    folder = archive.removesuffix(".zip")
    return [folder if (data_dir / folder).is_dir() else archive]
