"""Files in the layout of official data sets, small or with few different contents."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(kind: str, side: int, value: int, mode: str = "L") -> bytes:
    """A square image of one colour."""
    file = io.BytesIO()
    Image.new("L", (side, side), value).convert(mode).save(file, kind)
    return file.getvalue()


def _element(kind: int, content: bytes) -> bytes:
    if 0 < len(content) <= 4:  # the small form
        return struct.pack("<2H", kind, len(content)) + content.ljust(4, b"\0")
    return struct.pack("<2I", kind, len(content)) + content + bytes(-len(content) % 8)


def mat_array(name: str, values: NDArray[Any], *, flags: int | None = None, dimensions: tuple[int, ...] = ()) -> bytes:
    """An array as MATLAB 5 stores it, uint8 or double."""
    stored, kind = (2, 9) if values.dtype == np.uint8 else (9, 6)
    parts = [
        _element(6, struct.pack("<2I", kind if flags is None else flags, 0)),
        _element(5, np.array(dimensions or values.shape, "<i4").tobytes()),
        _element(1, name.encode()),
        _element(stored, values.tobytes("F")),
    ]
    body = b"".join(parts)
    return struct.pack("<2I", 14, len(body)) + body


def mat_of(*arrays: bytes, packed: bool = True) -> bytes:
    """A file of these arrays."""
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    pieces = [zlib.compress(array, 1) for array in arrays]
    return header + b"".join(
        struct.pack("<2I", 15, len(piece)) + piece if packed else array
        for array, piece in zip(arrays, pieces, strict=True)
    )


def mat(arrays: Mapping[str, NDArray[Any]], *, packed: bool = True) -> bytes:
    """A file of arrays by name."""
    return mat_of(*(mat_array(name, values) for name, values in arrays.items()), packed=packed)


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """As a zip archive if the name says so, else below the parent of ``place``."""
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir(place.stem)
            for name, content in files.items():
                archive.writestr(name, content)
        return
    for name, content in files.items():
        path = place.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def tiny_files(classes: int, train: int, test: int) -> dict[str, bytes]:
    """TinyImageNet with fewer classes and images, whose colour is their class, not in the order of names."""
    names = [f"n{(7 * i) % classes:08}" for i in range(classes)]
    files = {"wnids.txt": "".join(f"{name}\n" for name in names).encode()}
    notes = ""
    for label, name in enumerate(names):
        modes = ("RGB", "L")
        for i in range(train):
            files[f"train/{name}/images/{name}_{i}.JPEG"] = picture("JPEG", 64, label, modes[i % 2])
        for i in range(test):
            file = f"val_{label + classes * i}.JPEG"
            notes += f"{file}\t{name}\t0\t0\t63\t63\n"
            files[f"val/images/{file}"] = picture("JPEG", 64, label, "RGB")
    files["val/val_annotations.txt"] = notes.encode()
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


def omniglot_files(root: str, counts: list[int], first: int) -> dict[str, bytes]:
    """Alphabets with so many characters each; a drawing is blank but for a mark that tells its drawer."""
    files = {}
    for alphabet, count in enumerate(counts):
        for character in range(count):
            first += 1
            for drawer in range(20):
                pixels = np.full((105, 105), 255, np.uint8)
                pixels[: 5 * (drawer + 1), :20] = 0
                file = io.BytesIO()
                Image.fromarray(pixels).convert("1").save(file, "PNG")
                name = f"{root}/Alphabet_{alphabet}/character{character + 1:02}/{first:04}_{drawer + 1:02}.png"
                files[name] = file.getvalue()
    return files


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def webp(pixels: np.ndarray[Any, np.dtype[np.uint8]], kind: str = "WEBP") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, lossless=True)
    return buffer.getvalue()


def write_sheets(path: Path, sheets: list[bytes], labels: list[int], offsets: list[int] | None = None) -> None:
    ends = np.cumsum([0] + [len(sheet) for sheet in sheets]) if offsets is None else np.array(offsets)
    arrays = {"sheets": np.frombuffer(b"".join(sheets), np.uint8), "labels": np.array(labels, np.uint8)}
    np.savez(path, offsets=ends, **arrays)  # type: ignore[arg-type]


def write_mnist(folder: Path) -> None:
    """Files of the official sizes: ten different images, one per class, repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        labels = np.arange(count) % 10
        for name, array in (("images-idx3", kinds[labels]), ("labels-idx1", labels.astype(np.uint8))):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array), 1))
