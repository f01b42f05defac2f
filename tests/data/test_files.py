"""Readers of data files: valid files give their bytes, invalid ones one sentence with the path."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lps.data import cifar, mnist, rf
from lps.data.files import read_file, read_idx, read_members, read_npz
from lps.errors import DataError

from tests.data.making import idx, webp, write_sheets

RANDOM = np.random.default_rng(0)


def refused(read: Callable[[], object], path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    for part in parts:
        assert part in message


IMAGES = RANDOM.integers(0, 256, (3, 28, 28), np.uint8)
WHOLE = idx(IMAGES)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(WHOLE) if name.endswith(".gz") else WHOLE)
    np.testing.assert_array_equal(read_idx(path, (3, 28, 28)), IMAGES)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"", ["magic number", "empty"]),
        (b"\0\0\x0d\x03" + WHOLE[4:], ["magic number: expected 00000803, got 00000d03"]),
        (idx(IMAGES[0]), ["magic number: expected 00000803, got 00000802"]),
        (idx(IMAGES[:2]), ["dimensions: expected (3, 28, 28), got (2, 28, 28)"]),
        (idx(IMAGES.reshape(3, 14, 56)), ["got (3, 14, 56)"]),
        (WHOLE[:10], ["length in bytes: expected 2,368, got 10"]),
        (WHOLE[:-1], ["length in bytes: expected 2,368, got 2,367", "--download"]),
        (WHOLE + b"x", ["expected 2,368, got more"]),
    ],
    ids=["empty", "floats", "fewer-dimensions", "fewer-images", "other-sides", "header-cut", "cut", "longer"],
)
def test_idx_refuses(tmp_path: Path, data: bytes, parts: list[str], packed: bool) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(data) if packed else data)
    refused(lambda: read_idx(path, (3, 28, 28)), path, *parts)


def test_idx_refuses_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    packed = gzip.compress(WHOLE)
    wrong_sum = packed[:-8] + bytes(4) + packed[-4:]
    broken = packed[:20] + bytes([packed[20] ^ 0xFF]) * 40 + packed[60:]
    for data in (packed[:-1], packed[: len(packed) // 2], wrong_sum, broken, WHOLE):
        path.write_bytes(data)
        refused(lambda: read_idx(path, (3, 28, 28)), path, "cannot be read", "--download")
    refused(lambda: read_idx(tmp_path, (3, 28, 28)), tmp_path, "cannot be read")


def test_mnist_checks_labels(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(WHOLE)
    labels.write_bytes(idx(np.array([0, 9, 5], np.uint8)))
    read = mnist.read(images, labels, 3)
    assert read.labels.tolist() == [0, 9, 5]
    np.testing.assert_array_equal(read.inputs.numpy(), IMAGES.reshape(3, 784))
    labels.write_bytes(idx(np.array([0, 10, 5], np.uint8)))
    refused(lambda: mnist.read(images, labels, 3), labels, "labels: expected 0 to 9, got 10 for example 1")
    labels.write_bytes(idx(np.array([0, 1], np.uint8)))
    refused(lambda: mnist.read(images, labels, 3), labels, "dimensions: expected (3,), got (2,)")


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, iq=np.ones((4, 2, 8), np.uint8), offsets=np.arange(3), more=np.array(["x"], object))
    arrays = read_npz(path, {"iq": (4, 2, None), "offsets": (3,)}, offsets=np.int64)
    assert arrays["iq"].shape == (4, 2, 8)
    shapes: list[tuple[dict[str, tuple[int | None, ...]], str]] = [
        ({"iq": (4, 3, None)}, "shape of iq: expected [4, 3, any], got [4, 2, 8]"),
        ({"iq": (4,)}, "shape of iq"),
        ({"labels": (4,)}, "arrays: expected labels, got iq, offsets, more"),
        ({"more": (1,)}, "cannot be read: Object arrays cannot be loaded"),
    ]
    for wanted, part in shapes:
        refused(lambda wanted=wanted: read_npz(path, wanted), path, part)  # type: ignore[misc]
    np.savez(path, iq=np.ones((4, 2, 8), np.int16))
    refused(lambda: read_npz(path, {"iq": (4, 2, 8)}), path, "type of iq: expected uint8, got int16")


def test_npz_refuses_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, iq=RANDOM.integers(0, 256, 5000, np.uint8))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[1000] ^= 0xFF
    # The dtype in the header is changed to one of 10^15 bytes; the file is uncompressed, so the header is plain text.
    np.savez(path, iq=np.zeros(5000, np.uint8))
    lying = path.read_bytes().replace(b"(5000,), }         ", b"(1000000000000000,), }"[:22])
    for data in (b"", b"no zip", whole[: len(whole) // 2], whole[:-30], bytes(flipped), lying):
        path.write_bytes(data)
        refused(lambda: read_npz(path, {"iq": (5000,)}), path, "cannot be read", "replace it")
    with path.open("wb") as file:
        np.save(file, np.zeros(5000, np.uint8))
    refused(lambda: read_npz(path, {"iq": (5000,)}), path, "expected an npz archive, got a single array")
    refused(lambda: read_npz(tmp_path / "none.npz", {"iq": (1,)}), tmp_path / "none.npz", "No such file")


def write_tar(path: Path, members: dict[str, bytes | str]) -> None:
    """Bytes become a file, a string becomes a link to that name."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def test_tar(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    write_tar(path, {"../evil": b"x", "d/a": b"123", "/abs": b"x", "d/b": b"45", "d/l": "/etc/passwd"})
    assert read_members(path, {"d/b": 2, "d/a": 3}) == {"d/a": b"123", "d/b": b"45"}
    refused(lambda: read_members(path, {"d/a": 4}), path, "length of member d/a in bytes: expected 4, got 3")
    refused(lambda: read_members(path, {"d/a": 3, "d/c": 1}), path, "got no d/c")
    refused(lambda: read_members(path, {"d/l": 3}), path, "expected a plain file, got a link")
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]  # nothing was unpacked
    assert not (tmp_path.parent / "evil").exists()


def test_tar_refuses_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    write_tar(path, {"a": RANDOM.bytes(50_000)})
    whole = path.read_bytes()
    for data in (b"", b"no archive", whole[:20_000], whole[:-1], whole[:-8] + bytes(8), gzip.compress(b"no tar" * 999)):
        path.write_bytes(data)
        refused(lambda: read_members(path, {"a": 50_000}), path, "cannot be read", "--download")


def test_plain_file_of_a_size(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"123")
    assert read_file(path, 3) == b"123"
    refused(lambda: read_file(path, 2), path, "expected 2, got more")
    refused(lambda: read_file(path, 4), path, "expected 4, got 3")
    refused(lambda: read_file(tmp_path / "b", 4), tmp_path / "b", "No such file")


@pytest.mark.parametrize("labels", [(10,), (20, 100)], ids=["cifar10", "cifar100"])
def test_cifar_records(tmp_path: Path, labels: tuple[int, ...]) -> None:
    pixels = RANDOM.integers(0, 256, (4, 3072), np.uint8)
    heads = np.stack([np.array([0, 1, 2, most - 1], np.uint8) for most in labels], 1)
    rows = np.concatenate([heads, pixels], 1)
    assert rows.shape[1] == 3072 + len(labels)
    examples = cifar.records(rows.tobytes(), tmp_path, labels)
    assert examples.labels.tolist() == [0, 1, 2, labels[-1] - 1]
    np.testing.assert_array_equal(examples.inputs.numpy(), pixels.reshape(4, 3, 32, 32))
    for column, most in enumerate(labels):
        wrong = rows.copy()
        wrong[2, column] = most
        refused(lambda wrong=wrong: cifar.records(wrong.tobytes(), tmp_path, labels), tmp_path, f"got {most} for")  # type: ignore[misc]


def test_sheets(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    pixels = RANDOM.integers(0, 256, (200, 32, 32, 3), np.uint8)
    first, second = (webp(half.reshape(3200, 32, 3)) for half in (pixels[:100], pixels[100:]))
    labels = [i % 10 for i in range(200)]
    write_sheets(path, [first, second], labels)
    examples = cifar.read_sheets(path, 200, 10)
    np.testing.assert_array_equal(examples.inputs.numpy(), pixels.transpose(0, 3, 1, 2))
    assert examples.labels.tolist() == labels

    def broken(part: str, sheets: list[bytes], labels: list[int] = labels, offsets: list[int] | None = None) -> None:
        write_sheets(path, sheets, labels, offsets)
        refused(lambda: cifar.read_sheets(path, 200, 10), path, part, "replace it")

    small = webp(pixels[:99].reshape(3168, 32, 3))
    grey = webp(np.zeros((3200, 32, 4), np.uint8))
    size = len(first) + len(second)
    broken("sheet 1: expected RGB 32x3200, got RGB 32x3168", [first, small])
    broken("sheet 1: expected RGB 32x3200, got RGBA 32x3200", [first, grey])
    broken("sheet 0: expected a WebP image", [webp(pixels[:100].reshape(3200, 32, 3), "PNG"), second])
    broken("sheet 1: expected a WebP image", [first, b"nothing"])
    broken(str(path), [first, second[: len(second) // 2]])
    broken("shape of offsets: expected [3], got [2]", [first])
    broken("shape of labels: expected [200], got [100]", [first, second], labels[:100])
    broken("labels: expected 0 to 9, got 10", [first, second], [*labels[:-1], 10])
    for offsets in ([0, len(first), size - 1], [1, len(first), size], [0, 0, size], [0, size + 5, size]):
        broken("offsets: expected growing numbers", [first, second], labels, offsets)


def test_radio_file(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    iq = RANDOM.integers(0, 256, (100, 2, 16), np.uint8)
    labels = np.arange(100, dtype=np.uint8) % 50
    np.savez(path, iq=iq, labels=labels)
    examples = rf.read(path, 2)
    assert torch.equal(examples.inputs, torch.from_numpy(iq))
    np.savez(path, iq=iq, labels=labels // 2)
    refused(lambda: rf.read(path, 2), path, "windows of transmitter 0: expected 2, got 4")
    np.savez(path, iq=iq, labels=labels + 1)
    refused(lambda: rf.read(path, 2), path, "labels: expected 0 to 49, got 50 for example 49")
    np.savez(path, iq=iq[:, :1], labels=labels)
    refused(lambda: rf.read(path, 2), path, "shape of iq: expected [100, 2, any], got [100, 1, 16]")
    np.savez(path, iq=iq[:99], labels=labels)
    refused(lambda: rf.read(path, 2), path, "shape of iq")
