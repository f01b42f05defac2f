"""The header of an .npy file or of an array in an .npz archive, read and checked before any memory is taken."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

# Of the text in a header; that of a plain array has about 100 characters.
MOST_CHARACTERS = 10_000

# How each version of the format stores the length of its header, and what parses it. Version 3 is for structured
# arrays only.
_VERSIONS: dict[bytes, tuple[int, Callable[..., Any]]] = {
    b"\x01\x00": (2, npy.read_array_header_1_0),
    b"\x02\x00": (4, npy.read_array_header_2_0),
}


@dataclass(frozen=True)
class Header:
    """What the header says of an array; ``size`` is that of the header in bytes."""

    shape: tuple[int, ...]
    fortran: bool  # whether the first index varies fastest in the file
    dtype: np.dtype[Any]
    size: int

    @property
    def array_bytes(self) -> int:
        """Of the whole array; not a number of numpy's, so that it cannot overflow."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> Header:
    """Read the header at the start of a file; ValueError says what is wrong with it."""
    start = file.read(npy.MAGIC_LEN)
    if start[:-2] != npy.MAGIC_PREFIX:
        raise ValueError("it is no array in numpy's format")
    if start[-2:] not in _VERSIONS:
        raise ValueError(f"expected version 1.0 or 2.0 of numpy's format, got {start[-2]}.{start[-1]}")
    width, parse = _VERSIONS[start[-2:]]
    length = file.read(width)
    count = int.from_bytes(length, "little")
    if count > MOST_CHARACTERS:  # numpy would read them all before it counts them
        raise ValueError(f"expected a header of at most {MOST_CHARACTERS:,} bytes, got {count:,}")
    text = file.read(count)
    if len(length) < width or len(text) < count:
        raise ValueError("it ends within its header")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            shape, fortran, dtype = parse(io.BytesIO(length + text), max_header_size=MOST_CHARACTERS)
    # What numpy, Python's parser and its tokenizer raise for texts that are no header, and for dtypes that are none.
    except (ValueError, TypeError, SyntaxError, LookupError, ArithmeticError, MemoryError, RecursionError, TokenError):
        raise ValueError("its header is not one that numpy writes") from None
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded, because they are pickled")
    header = Header(shape, bool(fortran), dtype, len(start) + len(length) + len(text))
    # numpy takes True for a size, and any whole number.
    if any(type(size) is not int or not 0 <= size < 2**63 for size in (*shape, header.array_bytes)):
        raise ValueError("its header has a size that is not among 0 to 2^63 - 1")
    return header
