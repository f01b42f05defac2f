"""Data files that are traps: pipes and devices, archives that unpack to gigabytes, headers and images that lie.

Each gives one sentence, at once, and takes little memory beyond what was resident before.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps.data import cifar, rf, stream
from lps.data.download import SOURCES, fetch
from lps.data.files import read_file, read_idx, read_members, read_npz
from lps.data.inputs import ArrayFile, Form, ImageFile, open_inputs
from lps.errors import DataError
from PIL import Image

from tests.fuzz import memory
from tests.fuzz.readers import COLOUR, DIGITS, FLOATS, RADIO

GIGABYTE = 2**30


def refused(read: Callable[[], object], path: Path, *parts: str, needs: int = 0) -> None:
    """Reading gives one sentence with these words, and takes no more memory than is allowed."""
    size = path.stat().st_size
    memory.forget()
    before = memory.resident()
    with pytest.raises(DataError) as caught:
        read()
    assert memory.grown(before) <= 2 * size + needs + memory.ALLOWED
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in (path.name, *parts):
        assert part in message


def npy(shape: str, descr: str = "'|u1'", version: int = 1, fortran: str = "False") -> bytes:
    """The header of an array, with these texts in it."""
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


@cache
def _piece() -> bytes:
    """16 MiB of zeros, deflated so that more may follow: a thousandth of their size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)


def zeros(count: int, start: bytes = b"") -> bytes:
    """These bytes and about so many zeros, deflated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH) + _piece() * -(-count // 2**24) + b"\3\0"


def gzip_of_zeros(count: int, start: bytes) -> bytes:
    """The same as a gzip file, whose sum is wrong: nobody should get as far as that."""
    return b"\x1f\x8b\x08" + bytes(7) + zeros(count, start) + bytes(8)


def bomb(path: Path, **headers: bytes) -> None:
    """An npz file whose arrays consist of a header and 2.3 GB of zeros, in about 2 MB."""
    count = 2_300_000_000
    place, directory, body = 0, b"", b""
    for name, header in headers.items():
        data = zeros(count, header)
        sizes = struct.pack("<HHIIIHH", 0, 0, 0, len(data), len(header) + count, len(name) + 4, 0)
        local = b"PK\3\4" + struct.pack("<HHH", 20, 0, 8) + sizes + name.encode() + b".npy"
        directory += b"PK\1\2" + struct.pack("<HHHH", 20, 20, 0, 8) + sizes + struct.pack("<HHHII", 0, 0, 0, 0, place)
        directory += name.encode() + b".npy"
        body += local + data
        place = len(body)
    end = struct.pack("<HHHHIIH", 0, 0, len(headers), len(headers), len(directory), len(body), 0)
    path.write_bytes(body + directory + b"PK\5\6" + end)


def test_npz_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    bomb(path, iq=npy("(100, 2, 11500000)"))
    assert path.stat().st_size < 3_000_000
    wanted: dict[str, tuple[int | None, ...]] = {"iq": (100, 2, None)}
    refused(lambda: read_npz(path, wanted), path, "length of iq in bytes: expected at most", "got 2,300,000,000")
    refused(lambda: read_npz(path, {"iq": (100, 2, 8)}), path, "shape of iq: expected [100, 2, 8]")
    # The header is as it should be, but more follows.
    bomb(path, iq=npy("(100, 2, 8)"))
    refused(lambda: read_npz(path, {"iq": (100, 2, 8)}), path, "length of iq in bytes: expected 1,600, got more")
    bomb(path, iq=npy("(100, 2, 10)", "'<f4'"))
    refused(lambda: read_npz(path, wanted), path, "type of iq: expected uint8, got float32")
    # A header of 2 GB; then text that never ends.
    bomb(path, iq=b"\x93NUMPY\2\0" + (2**31).to_bytes(4, "little"))
    refused(lambda: read_npz(path, wanted), path, "expected a header of at most 10,000 bytes, got 2,147,483,648")
    bomb(path, iq=b"")
    refused(lambda: read_npz(path, wanted), path, "it is no array in numpy's format")


def test_arrays_of_free_length_share_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "captures.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("iq.npy", npy("(1, 10000000, 2)", "'<i2'") + bytes(40_000_000))
        archive.writestr("transmitter.npy", npy("(50000000,)"))
    refused(lambda: rf.read_captures(path), path, "length of transmitter in bytes: expected at most", "got 50,000,000")


def test_npz_with_a_table_of_contents_of_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    entry = b"PK\1\2" + bytes(42)
    table = entry * 400_000  # zipfile would make 400 MB of objects
    path.write_bytes(table + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(table), 0, 0))
    refused(lambda: read_npz(path, {"iq": (1,)}), path, "its table of contents has 18,400,000 bytes")


def hostile_arrays() -> dict[str, tuple[bytes, str]]:
    """Contents of an npz member that should be uint8 [4], and words of the refusal."""
    odd = "its header is not one that numpy writes"
    large = "its header has a size that is not among 0 to 2^63 - 1"
    return {
        "text": (b"this is no array", "it is no array in numpy's format"),
        "nothing": (b"", "it is no array"),
        "cut": (npy("(4,)")[:30], "it ends within its header"),
        "magic alone": (b"\x93NUMPY\1\0", "it ends within its header"),
        "version 3": (npy("(4,)", version=3), "expected version 1.0 or 2.0 of numpy's format, got 3.0"),
        "endless number": (npy(f"({10**400},)"), large),
        "endless nothing": (npy(f"(0, {2**63})"), large),
        "product": (npy(f"({2**62}, {2**62})"), large),
        "negative": (npy("(-4,)"), large),
        "true": (npy("(True,)"), large),
        "digits": (npy("(" + "9" * 5000 + ",)"), odd),
        "brackets": (npy("(" * 3000 + ")" * 3000), odd),
        "minus": (npy("-" * 6000 + "1"), odd),
        "text as shape": (npy("'four'"), odd),
        "no type": (npy("(4,)", "'|q9'"), odd),
        "fields": (npy("(4,)", "[('a', '<f4'), ('b', '|u1')]"), "type of a: expected uint8, got [('a', '<f4')"),
        "inner shape": (npy("(4,)", "('|u1', (2,))"), "type of a: expected uint8"),
        "dates": (npy("(4,)", "'<M8[ns]'"), "type of a: expected uint8, got datetime64[ns]"),
        "objects": (npy("(4,)", "'|O'"), "Object arrays cannot be loaded"),
        "few bytes": (npy("(4,)") + b"123", "length of a in bytes: expected 4, got 3"),
        "many bytes": (npy("(4,)") + b"12345", "length of a in bytes: expected 4, got more"),
    }


@pytest.mark.parametrize("name", list(hostile_arrays()))
def test_members_that_are_no_arrays(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    content, words = hostile_arrays()[name]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    refused(lambda: read_npz(path, {"a": (4,)}), path, words, "replace it")


def test_archives_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    array = npy("(4,)") + b"1234"
    for kind, words in (
        (zipfile.ZIP_BZIP2, "expected none or deflate, got number 12"),
        (zipfile.ZIP_LZMA, "number 14"),
    ):
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("a.npy", array)
        refused(lambda: read_npz(path, {"a": (4,)}), path, "packing of a", words)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array)
        archive.writestr("a", array)  # a name of the same array
    refused(lambda: read_npz(path, {"a": (4,)}), path, "arrays named a: expected one, got 2")
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("a.npy")
    refused(lambda: read_npz(path, {"a": (4,)}), path, "arrays: expected a, got a.npy/")
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(f"{number}\n.npy", array)
    refused(lambda: read_npz(path, {"a": (4,)}), path, r"'0\n', '1\n'", "...")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array)
    whole = path.read_bytes()
    flags = whole.index(b"PK\1\2") + 8
    encrypted = whole[:6] + b"\1" + whole[7:flags] + b"\1" + whole[flags + 1 :]
    path.write_bytes(encrypted)
    refused(lambda: read_npz(path, {"a": (4,)}), path, "cannot be read", "encrypted")
    # In the last record the table of contents has 4 GB.
    path.write_bytes(whole[:-10] + b"\xf0\xff\xff\xff" + whole[-6:])
    refused(lambda: read_npz(path, {"a": (4,)}), path, "cannot be read")
    # Sizes as zip64, which lie: the member has 2^62 bytes.
    place = whole.index(b"PK\1\2")
    entry = bytearray(whole[place:-22])
    entry[20:28] = b"\xff" * 8
    entry[30:32] = struct.pack("<H", 20)
    entry += struct.pack("<HHQQ", 1, 16, 2**62, 2**62)
    path.write_bytes(whole[:place] + entry + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), place, 0))
    refused(lambda: read_npz(path, {"a": (4,)}), path, "a")


def test_npz_in_other_orders_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    columns = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    np.savez(path, a=columns)
    np.testing.assert_array_equal(read_npz(path, {"a": (3, None)})["a"], columns)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy("(4L,)", version=2) + b"1234")  # as Python 2 wrote it
    assert read_npz(path, {"a": (4,)})["a"].tobytes() == b"1234"


def test_gzip_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    header = bytes([0, 0, 8, 1]) + (100).to_bytes(4)
    path.write_bytes(gzip_of_zeros(2 * GIGABYTE, header))
    refused(lambda: read_idx(path, (100,)), path, "length in bytes: expected 108, got more")
    path.write_bytes(gzip.compress(header + bytes(100)) + b"garbage")
    refused(lambda: read_idx(path, (100,)), path, "cannot be read: Not a gzipped file")


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(tarfile.REGTYPE, "other"), (tarfile.XHDTYPE, "pax"), (tarfile.GNUTYPE_LONGNAME, "long"), (tarfile.REGTYPE, "a")],
)
def test_tar_that_unpacks_to_gigabytes(tmp_path: Path, kind: bytes, name: str) -> None:
    """As a member nobody asked for, as headers that Python's tarfile would read into memory, as the member itself."""
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip_of_zeros(2 * GIGABYTE, tar_header(name, 2 * GIGABYTE, kind)))
    refused(lambda: read_members(path, {"a": 100}), path, "length of the archive in bytes: expected at most 67,108,964")


def test_tar_that_goes_on_for_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip_of_zeros(2 * GIGABYTE, tar_header("a", 1) + b"1".ljust(512, b"\0")))
    refused(lambda: read_members(path, {"a": 1}), path, "length of the archive in bytes")


def test_tar_with_members_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    end = bytes(1024)
    for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        path.write_bytes(gzip.compress(tar_header("a", 1, kind) + b"1".ljust(512, b"\0") + end))
        refused(lambda: read_members(path, {"a": 1}), path, "member a: expected a plain file")
    # A header for the next member which says that it is a.
    told = b"10 path=a\n"
    extended = tar_header("x", len(told), tarfile.XHDTYPE) + told.ljust(512, b"\0")
    path.write_bytes(gzip.compress(extended + tar_header("b", 1) + b"1".ljust(512, b"\0") + end))
    refused(lambda: read_members(path, {"a": 1}), path, "got no a")
    whole = tar_header("a", 1) + b"1".ljust(512, b"\0")
    path.write_bytes(gzip.compress(whole + whole + end))
    refused(lambda: read_members(path, {"a": 1}), path, "members named a: expected one, got more")
    negative = bytearray(tar_header("a", 1))
    negative[124:136] = b"-0000000001\0"
    path.write_bytes(gzip.compress(bytes(negative) + end))
    refused(lambda: read_members(path, {"a": 1}), path, "expected a tar archive, got something else")
    negative[124:136] = b"00000000002\0"
    path.write_bytes(gzip.compress(bytes(negative) + end))
    refused(lambda: read_members(path, {"a": 1}), path, "the sum of a header")
    path.write_bytes(gzip.compress(whole))
    refused(lambda: read_members(path, {"a": 1}), path, "an archive without its end")
    path.write_bytes(gzip.compress(whole + end))
    assert read_members(path, {"a": 1}) == {"a": b"1"}
    path.write_bytes(gzip.compress(extended + whole + end))  # of some other archiver
    assert read_members(path, {"a": 1}) == {"a": b"1"}


def readers() -> dict[str, Callable[[Path], object]]:
    return {
        "train-images": lambda path: read_idx(path, (3,)),
        "images.gz": lambda path: read_idx(path, (3,)),
        "data_batch_1.bin": lambda path: read_file(path, 3),
        "cifar.tar.gz": lambda path: read_members(path, {"a": 3}),
        "train.npz": lambda path: rf.read(path, 2),
        "inputs.npy": lambda path: ArrayFile(path, FLOATS),
        "image.png": lambda path: ImageFile(path, COLOUR).read(0, 1),
    }


@pytest.mark.parametrize("name", list(readers()))
def test_pipes_and_devices(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    refused(lambda: readers()[name](path), path, "cannot be read: expected a file, got a pipe")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(lambda: readers()[name](path), path, "cannot be read: expected a file, got a device")
    nul = tmp_path / f"x\0{name}"
    with pytest.raises(DataError, match="holds a NUL character"):
        readers()[name](nul)


def test_pipes_among_data_and_images(tmp_path: Path) -> None:
    names = list(SOURCES["mnist"].md5)
    for name in names:
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=r"found no train-images-idx3-ubyte.gz or "):
        stream("permuted-mnist", data_dir=tmp_path)
    with pytest.raises(DataError, match=rf"{names[0]}: expected a file, got something else; remove it"):
        fetch("mnist", tmp_path, base_url="http://127.0.0.1:9/")
    os.mkfifo(tmp_path / cifar.CIFAR10.archive)
    with pytest.raises(DataError, match="expected a file, got a pipe"):
        stream("split-cifar", data_dir=tmp_path)
    folder = tmp_path / "images"
    folder.mkdir()
    os.mkfifo(folder / "a\n.png")
    (image,) = open_inputs([folder], COLOUR)
    with pytest.raises(DataError, match="cannot be read: expected a file, got a pipe") as caught:
        image.read(0, 1)
    assert "\n" not in str(caught.value)


def hostile_npy() -> dict[str, tuple[bytes, Form, str]]:
    huge = 2**40
    return {
        "no.npy": (npy(f"({huge}, 12)", "'<f4'"), FLOATS, "its header tells of 52,776,558,133,248 more bytes"),
        "none.npy": (npy("(0, 12)", "'<f4'"), FLOATS, "holds no examples"),
        "endless.npy": (npy(f"(0, {2**63})", "'<f4'"), FLOATS, "its header has a size that is not among"),
        "empty.npy": (npy("(5, 2, 0)"), RADIO, "holds no examples"),
        "true.npy": (npy("(True, 64)") + bytes(64), DIGITS, "its header has a size"),
        "fields.npy": (npy("(1,)", "[('a', '<f4')]") + bytes(4), FLOATS, "type: expected floats or uint8, got [('a'"),
        "dates.npy": (npy("(1, 12)", "'<M8[ns]'") + bytes(96), FLOATS, "got datetime64[ns]"),
        "complex.npy": (npy("(1, 12)", "'<c8'") + bytes(96), FLOATS, "got complex64"),
        "long.npy": (
            b"\x93NUMPY\2\0" + b"\xff\xff\xff\x7f" + bytes(1000),
            FLOATS,
            "expected a header of at most 10,000",
        ),
    }


@pytest.mark.parametrize("name", list(hostile_npy()))
def test_arrays_to_classify(tmp_path: Path, name: str) -> None:
    content, form, words = hostile_npy()[name]
    path = tmp_path / name
    path.write_bytes(content)
    refused(lambda: ArrayFile(path, form), path, words)


def test_arrays_in_other_orders_and_versions(tmp_path: Path) -> None:
    values = np.arange(36, dtype=np.float32).reshape(3, 12)
    path = tmp_path / "a.npy"
    np.save(path, np.asfortranarray(values))
    np.testing.assert_array_equal(ArrayFile(path, FLOATS).read(1, 3).numpy(), values[1:])
    path.write_bytes(npy("(3L, 12L)", "'<f4'", version=2) + values.tobytes())
    np.testing.assert_array_equal(ArrayFile(path, FLOATS).read(0, 3).numpy(), values)


def png(width: int, height: int, kind: int = 2) -> bytes:
    """A black image of any size; kind 2 has three bytes per pixel, 0 one."""
    rows = b"\x78\x9c" + zeros(height * (1 + width * (3 if kind == 2 else 1)))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff_in_one_tile() -> bytes:
    """Ten by ten pixels in a tile of 40,000 by 40,000."""
    tags = {256: 10, 257: 10, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 40_000}
    body = b"\x78\x9c" + zeros(40_000 * 40_000)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    entries += struct.pack("<HHII", 324, 4, 1, 8) + struct.pack("<HHII", 325, 4, 1, len(body))
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + struct.pack("<H", len(tags) + 2) + entries + bytes(4)


def hostile_images() -> dict[str, tuple[Callable[[], bytes], str]]:
    small = Image.new("RGB", (20, 20))
    return {
        "bomb.png": (lambda: png(13_000, 13_000), "expected at most"),
        "large.png": (lambda: png(6_000, 6_000), "got 6000x6000; make it smaller"),
        "wide.bmp": (lambda: saved(Image.new("L", (70_000, 1)), "BMP"), "got 70000x1; make it smaller"),
        "large.webp": (
            lambda: saved(Image.new("RGB", (2_600, 2_600)), "WEBP", lossless=True, method=0),
            "got 2600x2600; make it smaller",
        ),
        "large.gif": (lambda: saved(Image.new("L", (4_000, 3_500)), "GIF"), "got 4000x3500; make it smaller"),
        "tile.tiff": (tiff_in_one_tile, "got 10x10; make it smaller"),
        "cut.png": (lambda: saved(small, "PNG")[:50], "cannot be read"),
        "cut.jpeg": (lambda: saved(small, "JPEG")[:-200], "cannot be read"),
        "cut.webp": (lambda: saved(small, "WEBP", lossless=True)[:-4], "image.webp"),
        "picture.eps": (
            lambda: saved(small, "EPS"),
            "kind of file: expected an image (PNG, JPEG, WEBP, GIF, BMP, TIFF, PPM)",
        ),
        "picture.avif": (lambda: b"\0\0\0\x1cftypavif" + bytes(100), "kind of file: expected an image"),
        "picture.ico": (lambda: saved(small, "ICO"), "kind of file: expected an image"),
        "picture.pcx": (lambda: saved(small, "PCX"), "kind of file: expected an image"),
        "empty.png": (lambda: b"", "kind of file: expected an image"),
    }


@pytest.mark.parametrize("name", list(hostile_images()))
def test_images_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    content, words = hostile_images()[name]
    path = tmp_path / f"image{Path(name).suffix}"
    path.write_bytes(content())
    refused(lambda: ImageFile(path, COLOUR).read(0, 1), path, words)


def test_no_other_program_is_started_for_an_image(tmp_path: Path) -> None:
    """Pillow hands EPS files to Ghostscript; a folder of images leaves them out."""
    for name in ("a.eps", "b.avif", "c.png"):
        (tmp_path / name).write_bytes(saved(Image.new("RGB", (4, 4)), "PNG"))
    assert [file.path.name for file in open_inputs([tmp_path], COLOUR)] == ["c.png"]


def test_large_photographs_are_shrunk_while_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "photograph.jpeg"
    Image.radial_gradient("L").resize((6_000, 4_000)).convert("RGB").save(path)
    small = tmp_path / "small.png"
    Image.radial_gradient("L").resize((32, 32)).convert("RGB").save(small)
    memory.forget()
    before = memory.resident()
    got = ImageFile(path, COLOUR).read(0, 1)
    assert memory.grown(before) <= 2 * path.stat().st_size + memory.ALLOWED
    assert (got - ImageFile(small, COLOUR).read(0, 1)).abs().max() < 0.05


def test_images_with_several_frames_or_damaged_notes(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """The first frame counts; damage outside the pixels is passed over in silence."""
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    for kind in ("GIF", "WEBP", "TIFF", "PNG"):
        path = tmp_path / f"frames.{kind.lower()}"
        frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)  # that one is of WebP
        torch.testing.assert_close(ImageFile(path, COLOUR).read(0, 1), red)
    path = tmp_path / "notes.jpeg"
    frames[0].save(path, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01", quality=95)
    assert (ImageFile(path, COLOUR).read(0, 1) - red).abs().max() < 0.05
    assert not recwarn.list
