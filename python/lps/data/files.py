"""Reading data files that may be cut short, damaged or something else; nothing is unpickled or unpacked to disk.

Each reader is told what the file must hold and checks all of it; a file that differs gives a one-sentence
:class:`DataError`.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lps.errors import DataError

Bytes = NDArray[np.uint8]

FETCH_AGAIN = "delete it and fetch it again with --download"
REPLACE = "replace it with a whole copy"


def unlike(where: Path | str, what: str, expected: object, got: object, remedy: str = FETCH_AGAIN) -> DataError:
    """Say in one sentence where which thing is not as expected, and what to do."""
    return DataError(f"{where}: {what}: expected {expected}, got {got}; {remedy}")


def unreadable(where: Path, error: BaseException, remedy: str) -> DataError:
    """Say in one sentence that a file could not be read; only the first line of the reason is kept."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataError(f"{where}: cannot be read: {reason.splitlines()[0] if reason else type(error).__name__}; {remedy}")


def missing(what: str, names: Iterable[str], folders: Iterable[Path], remedy: str) -> DataError:
    """Say in one sentence which files were looked for where."""
    return DataError(f"{what}: found no {' or '.join(names)} in {' or '.join(map(str, folders))}; {remedy}")


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
    header = 4 + 4 * len(shape)
    expected = header + prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # One byte more than should be there: it finds a longer file, and makes gzip check its sum at the end.
            data = bytearray(file.read(expected + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    magic = bytes([0, 0, 8, len(shape)])
    if data[:4] != magic:
        raise unlike(path, "magic number", magic.hex(), data[:4].hex() or "an empty file")
    if len(data) >= header:
        dimensions = tuple(np.frombuffer(data, ">u4", len(shape), offset=4).tolist())
        if dimensions != shape:
            raise unlike(path, "dimensions", shape, dimensions)
    if len(data) != expected:
        got = "more" if len(data) > expected else f"{len(data):,}"
        raise unlike(path, "length in bytes", f"{expected:,}", got)
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_npz(path: Path, shapes: Mapping[str, tuple[int | None, ...]], **kinds: DTypeLike) -> dict[str, NDArray[Any]]:
    """Read arrays of an npz file, each of its shape, where None stands for any length.

    All must be uint8, except those whose type is given by name.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise unlike(path, "kind of file", "an npz archive", "a single array", REPLACE)
        with archive:
            absent = [key for key in shapes if key not in archive.files]
            if absent:
                raise unlike(path, "arrays", ", ".join(shapes), ", ".join(archive.files) or "none", REPLACE)
            arrays = {key: archive[key] for key in shapes}
    except DataError:
        raise
    # What numpy and zipfile raise for pickled objects, headers that lie, cut, damaged or encrypted archives.
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise unreadable(path, error, REPLACE) from None
    for key, shape in shapes.items():
        array, kind = arrays[key], np.dtype(kinds.get(key, np.uint8))
        if array.dtype != kind:
            raise unlike(path, f"type of {key}", kind, array.dtype, REPLACE)
        if not fits(array.shape, shape):
            raise unlike(path, f"shape of {key}", shape_text(shape), list(array.shape), REPLACE)
    return arrays


def fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Whether a shape is the expected one, where None stands for any length."""
    return len(shape) == len(expected) and all(n in (None, m) for n, m in zip(expected, shape, strict=True))


def shape_text(shape: Sequence[int | None]) -> str:
    """As in ``[any, 2, 1024]``."""
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def read_file(path: Path, size: int) -> bytes:
    """Read a file of exactly this many bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(size + 1)
    except OSError as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    if len(data) != size:
        raise unlike(path, "length in bytes", f"{size:,}", "more" if len(data) > size else f"{len(data):,}")
    return data


def read_members(path: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Read members of a gzipped tar archive into memory, each a plain file of exactly its size."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as packed, tarfile.open(fileobj=packed, mode="r:") as archive:
            for member in archive:  # in their order, so that the archive is unpacked once
                if member.name not in sizes:
                    continue
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise unlike(path, f"member {member.name}", "a plain file", "a link or a folder")
                if member.size != sizes[member.name]:
                    expected = f"{sizes[member.name]:,}"
                    raise unlike(path, f"length of member {member.name} in bytes", expected, f"{member.size:,}")
                found[member.name] = file.read()
            while packed.read(2**20):  # to the end, where gzip checks its sum
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error, FETCH_AGAIN) from None
    absent = [name for name in sizes if name not in found]
    if absent:
        raise unlike(path, "members", ", ".join(sizes), f"no {', '.join(absent)}")
    return found
