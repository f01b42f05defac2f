"""Reading data files that may be cut short, damaged or something else; nothing is unpickled or unpacked to disk.

Each reader is told what the file must hold and checks all of it; a file that differs gives a one-sentence
:class:`DataError`. What a header claims is compared with what is expected before memory is taken for it.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import DTypeLike, NDArray

from lps.data.npy import read_header
from lps.errors import DataError
from lps.options import one_line, shown
from lps.reading import open_regular, size_of

Bytes = NDArray[np.uint8]

# Bytes that an archive may unpack to beyond what is known of it: a file of some megabytes can stand for gigabytes.
MOST_PACKED = 2**26
PIECE = 2**20  # bytes that are read at a time

FETCH_AGAIN = "delete it and fetch it again with --download"
REPLACE = "replace it with a whole copy"


def unlike(where: Path | str, what: str, expected: object, got: object, remedy: str = FETCH_AGAIN) -> DataError:
    """Say in one sentence where which thing is not as expected, and what to do."""
    return DataError(f"{one_line(str(where))}: {what}: expected {expected}, got {got}; {remedy}")


def unreadable(where: Path, error: BaseException, remedy: str) -> DataError:
    """Say in one sentence that a file could not be read; only the first line of the reason is kept."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    first = one_line(reason.splitlines()[0]) if reason else type(error).__name__
    return DataError(f"{one_line(str(where))}: cannot be read: {first}; {remedy}")


def missing(what: str, names: Iterable[str], folders: Iterable[Path], remedy: str) -> DataError:
    """Say in one sentence which files were looked for where."""
    places = " or ".join(one_line(str(folder)) for folder in folders)
    return DataError(f"{what}: found no {' or '.join(names)} in {places}; {remedy}")


PASS_OR_DOWNLOAD = "pass the directory that holds it with --data-dir, or --download to fetch it"


def check_labels(where: Path | str, labels: Bytes, classes: int, remedy: str = FETCH_AGAIN) -> None:
    """Refuse labels outside 0 to ``classes - 1``."""
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        got = f"{labels[wrong[0]]} for example {wrong[0]}"
        raise unlike(where, "labels", f"0 to {classes - 1}", got, remedy)


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """Read an idx file of unsigned bytes, gzipped if its name says so, of exactly this shape.

    The header is 0, 0, 8 (unsigned bytes), the number of dimensions, and each dimension as a big-endian int32.
    """
    start = 4 + 4 * len(shape)
    array = np.empty(shape, np.uint8)
    try:
        with open_regular(path) as plain, gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain as file:
            header = file.read(start)
            length = len(header) + fill(file, array)
            longer = bool(file.read(1))  # at the end gzip checks its sum
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    magic = bytes([0, 0, 8, len(shape)])
    if header[:4] != magic:
        raise unlike(path, "magic number", magic.hex(), header[:4].hex() or "an empty file")
    if len(header) == start:
        dimensions = tuple(np.frombuffer(header, ">u4", offset=4).tolist())
        if dimensions != shape:
            raise unlike(path, "dimensions", shape, dimensions)
    expected = start + array.size
    if longer or length != expected:
        raise unlike(path, "length in bytes", f"{expected:,}", "more" if longer else f"{length:,}")
    return array


class Readable(Protocol):
    """Gives up to ``size`` bytes, none at its end."""

    def read(self, size: int, /) -> bytes:
        """The next bytes."""


def fill(file: Readable, array: NDArray[Any]) -> int:
    """Read into the memory of an array, in its order, up to its end or that of the file; returns how many bytes."""
    memory: Bytes = array.reshape(-1).view(np.uint8)
    done = 0
    while done < len(memory):
        part = file.read(min(PIECE, len(memory) - done))
        if not part:
            break
        memory[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    return done


@dataclass(frozen=True)
class AnyOf:
    """Any type among these letters of numpy's kinds; ``words`` say which."""

    letters: str
    words: str


def read_npz(
    path: Path, shapes: Mapping[str, tuple[int | None, ...]], **kinds: DTypeLike | AnyOf
) -> dict[str, NDArray[Any]]:
    """Read arrays of an npz file, each of its shape, where None stands for any length.

    All must be uint8, except those whose type is given by name. Arrays of any length may together have twice as many
    bytes as the file and 64 MiB more: signals and images hardly shrink when they are packed, so more is no data.
    """
    try:
        with _Archive(open_regular(path)) as file:
            if file.peek(len(MAGIC_PREFIX)).startswith(MAGIC_PREFIX):
                raise unlike(path, "kind of file", "an npz archive", "a single array", REPLACE)
            most = 2 * size_of(file) + MOST_PACKED
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                names = [member.filename.removesuffix(".npy") for member in members]
                if not set(shapes) <= set(names):
                    raise unlike(path, "arrays", ", ".join(shapes), _some(names), REPLACE)
                arrays = {}
                for key, shape in shapes.items():
                    if names.count(key) > 1:
                        raise unlike(path, f"arrays named {key}", "one", names.count(key), REPLACE)
                    kind, member = kinds.get(key, np.uint8), members[names.index(key)]
                    arrays[key] = _read_member(path, archive, member, shape, kind, most)
                    if None in shape:
                        most -= arrays[key].nbytes
                return arrays
    except DataError:
        raise
    # What numpy and zipfile raise for pickled objects, headers that lie, cut, damaged or encrypted archives.
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise unreadable(path, error, REPLACE) from None


def _some(names: Sequence[str]) -> str:
    """The first names in a sentence, each short and on one line."""
    return ", ".join([*map(shown, names[:8]), *["..."] * (len(names) > 8)]) or "none"


class _Archive(io.BufferedReader):
    """A zip file of which nothing is read in large pieces.

    zipfile reads the table of contents in one, and makes about 1 kB of objects of each 50 bytes in it.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)  # type: ignore[arg-type]

    def read(self, size: int | None = -1) -> bytes:
        left = size_of(self) - self.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > PIECE:
            raise zipfile.BadZipFile(f"its table of contents has {wanted:,} bytes")
        return super().read(wanted)


def _read_member(
    path: Path,
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    shape: Sequence[int | None],
    kind: DTypeLike | AnyOf,
    most: int,
) -> NDArray[Any]:
    """Read one array of an archive, after its header was found to be the expected one."""
    key = shown(member.filename.removesuffix(".npy"))
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise unlike(path, f"packing of {key}", "none or deflate", f"number {member.compress_type}", REPLACE)
    with archive.open(member) as file:
        header = read_header(file)
        alike = header.dtype.kind in kind.letters if isinstance(kind, AnyOf) else header.dtype == kind
        if not alike:
            expected = kind.words if isinstance(kind, AnyOf) else np.dtype(kind)
            raise unlike(path, f"type of {key}", expected, shown(str(header.dtype)), REPLACE)
        if not fits(header.shape, shape):
            raise unlike(path, f"shape of {key}", shape_text(shape), shape_text(header.shape), REPLACE)
        if None in shape and header.array_bytes > most:
            raise unlike(path, f"length of {key} in bytes", f"at most {most:,}", f"{header.array_bytes:,}", REPLACE)
        array = np.empty(header.shape[::-1] if header.fortran else header.shape, header.dtype)
        length = fill(file, array)
        if length < header.array_bytes or file.read(1):  # at the end zipfile checks the sum
            got = f"{length:,}" if length < header.array_bytes else "more"
            raise unlike(path, f"length of {key} in bytes", f"{header.array_bytes:,}", got, REPLACE)
    return array.T if header.fortran else array


def fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Whether a shape is the expected one, where None stands for any length."""
    return len(shape) == len(expected) and all(n in (None, m) for n, m in zip(expected, shape, strict=True))


def shape_text(shape: Sequence[int | None]) -> str:
    """As in ``[any, 2, 1024]``."""
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def read_file(path: Path, size: int) -> bytes:
    """Read a file of exactly this many bytes."""
    try:
        with open_regular(path) as file:
            data = file.read(size + 1)
    except OSError as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    if len(data) != size:
        raise unlike(path, "length in bytes", f"{size:,}", "more" if len(data) > size else f"{len(data):,}")
    return data


def read_members(path: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Read members of a gzipped tar archive into memory, each a plain file of exactly its size."""
    found: dict[str, bytes] = {}
    for member in tar_members(path, sum(sizes.values()) + MOST_PACKED):
        name = member.name
        if name in sizes:
            if name in found:
                raise unlike(path, f"members named {name}", "one", "more")
            if not member.plain:
                raise unlike(path, f"member {name}", "a plain file", "a link or a folder")
            if member.size != sizes[name]:
                raise unlike(path, f"length of member {name} in bytes", f"{sizes[name]:,}", f"{member.size:,}")
            found[name] = member.read()
    absent = [name for name in sizes if name not in found]
    if absent:
        raise unlike(path, "members", ", ".join(sizes), f"no {', '.join(absent)}")
    return found


@dataclass(frozen=True)
class TarMember:
    """A member of a tar archive; it can be read until the next one is asked for."""

    name: str
    plain: bool  # whether it is a plain file
    size: int
    read: Callable[[], bytes]


def tar_members(path: Path, most: int) -> Iterator[TarMember]:
    """The members of a gzipped tar archive that unpacks to at most so many bytes.

    Only what every tar archive has is read: a header of 512 bytes before each member. Extensions (long names, sparse
    files) are members of other types.
    """
    too_long = unlike(path, "length of the archive in bytes", f"at most {most:,}", "more")
    try:
        with open_regular(path) as plain, gzip.GzipFile(fileobj=plain) as file:
            while (header := file.read(512)).strip(b"\0") or len(header) < 512:  # a block of zeros is the end
                name, kind, size = _tar_header(header)
                end = file.tell() + -(-size // 512) * 512
                if end > most:
                    raise too_long
                yield TarMember(name, kind in b"0\0", size, partial(_read_tar, path, file, size))
                if file.seek(end) < end:
                    raise EOFError("it ends within a member")
            while file.read(PIECE):  # to the end, where gzip checks its sum
                if file.tell() > most:
                    raise too_long
    except DataError:
        raise
    except _TAR_ERRORS as error:
        raise unreadable(path, error, FETCH_AGAIN) from None


_TAR_ERRORS = (OSError, EOFError, ValueError, zlib.error)  # of cut and damaged archives


def _read_tar(path: Path, file: gzip.GzipFile, size: int) -> bytes:
    try:
        return file.read(size)
    except _TAR_ERRORS as error:
        raise unreadable(path, error, FETCH_AGAIN) from None


def _tar_header(header: bytes) -> tuple[str, bytes, int]:
    """Name, type and size in bytes of the member that follows a header; ValueError if it is none."""
    numbers = [header[start:end].strip(b" \0") for start, end in ((124, 136), (148, 156))]
    if len(header) < 512 or not all(re.fullmatch(rb"[0-7]+", number) for number in numbers):
        raise ValueError("expected a tar archive, got something else or an archive without its end")
    size, checksum = (int(number, 8) for number in numbers)
    if sum(header) - sum(header[148:156]) + 8 * ord(" ") != checksum:
        raise ValueError("the sum of a header in the archive is not the one stored in it")
    folder = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    name = header[:100].partition(b"\0")[0]
    return (folder + b"/" + name if folder else name).decode(errors="replace"), header[156:157], size
