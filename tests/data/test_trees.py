"""Zip archives of many files and MATLAB files: valid ones are read, traps and damage get one sentence at once."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from lps.data import trees
from lps.data.matlab import read_mat
from lps.data.trees import FolderTree, ZipTree

from tests.data.making import mat, mat_array, mat_of
from tests.data.test_hostile import GIGABYTE, refused, zeros

RANDOM = np.random.default_rng(0)


def packed(*members: tuple[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.zip"


def test_zip(path: Path) -> None:
    """Names are never paths: nothing is unpacked."""
    long = RANDOM.bytes(5000)
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path.write_bytes(
            packed(("b/x", b"1"), ("../evil", b"2"), ("/abs", b"3"), ("b/", b""), ("long", long), kind=kind)
        )
        tree = ZipTree(path)
        assert tree.names() == ["../evil", "/abs", "b/x", "long"]
        assert tree.read("../evil", 1) == b"2"
        assert tree.read("long", 5000) == long
        refused(lambda tree=tree: tree.read("long", 4999), path, "expected at most 4,999, got 5,000")  # type: ignore[misc]
        refused(lambda tree=tree: tree.read("none", 9), path, "members: expected none, got none of this name")  # type: ignore[misc]
    assert [file.name for file in path.parent.iterdir()] == ["a.zip"]


def test_zip_with_more_members_than_the_old_format_counts(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(66_000):
            archive.writestr(zipfile.ZipInfo(f"{number}"), b"")
    assert len(ZipTree(path).names()) == 66_000


def test_zip_with_a_comment(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"1")
        archive.comment = b"x" * 65_535
    assert ZipTree(path).read("a", 1) == b"1"


def test_zip_that_is_damaged(path: Path) -> None:
    whole = packed(("a", RANDOM.bytes(2000)), ("b", b"2"))
    table = whole.index(b"PK\1\2")
    cases = {
        b"": "expected a zip archive",
        b"no archive" * 10: "expected a zip archive",
        whole[: len(whole) // 2]: "expected a zip archive",
        whole[:-30]: "expected a zip archive",
        whole[:table] + b"XXXX" + whole[table + 4 :]: "its table of contents is damaged",
        whole[: table + 28] + b"\xff\xff" + whole[table + 30 :]: "its table of contents is damaged",
        whole[:-10] + b"\xf0\xff\xff\xff" + whole[-6:]: "its table of contents lies beyond its end",
    }
    for data, words in cases.items():
        path.write_bytes(data)
        refused(lambda: ZipTree(path), path, words, "--download")
    reads = {
        whole[:500] + bytes([whole[500] ^ 0xFF]) + whole[501:]: "a",
        b"XX" + whole[2:]: "member a is not where its table of contents says",
        whole[: table + 42] + b"\xff\xff\xff\x7f" + whole[table + 46 :]: "is not where",
        whole[: table + 8]
        + b"\1"
        + whole[table + 9 :]: "packing of member a: expected none or deflate, got encryption",
        whole[: table + 10] + b"\x0e" + whole[table + 11 :]: "got number 14",
        whole[: table + 16] + b"\0\0\0\0" + whole[table + 20 :]: "sum of member a: expected 00000000",
        whole[: table + 24] + b"\x01\0\0\0" + whole[table + 28 :]: "length of member a in bytes: expected 1, got more",
        whole[: table + 24] + b"\xff\xff\xff\xff" + whole[table + 28 :]: "expected at most 4,096, got 4,294,967,295",
        whole[: table + 20] + b"\x05\0\0\0" + whole[table + 24 :]: "length of member a in bytes: expected 2,000",
    }
    for data, words in reads.items():
        path.write_bytes(data)
        refused(lambda: ZipTree(path).read("a", 4096), path, words)
    path.write_bytes(packed(("a", b"1"), ("b", b"2")).replace(b"b", b"a"))
    refused(lambda: ZipTree(path), path, "members named a: expected one, got more")


def test_zip_that_unpacks_to_gigabytes(path: Path) -> None:
    """A member says that it has 100 bytes."""
    data = zeros(2 * GIGABYTE)
    sizes = struct.pack("<HHIIIHH", 0, 0, 0, len(data), 100, 1, 0)
    body = b"PK\3\4" + struct.pack("<HHH", 20, 0, 8) + sizes + b"a" + data
    table = b"PK\1\2" + struct.pack("<HHHH", 20, 20, 0, 8) + sizes + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"a"
    path.write_bytes(body + table + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(table), len(body), 0))
    refused(lambda: ZipTree(path).read("a", 4096), path, "length of member a in bytes: expected 100, got more")


def test_zip_with_a_table_of_contents_of_megabytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(number: int) -> bytes:
        return b"PK\1\2" + bytes(24) + struct.pack("<3H", 8, 0, 0) + bytes(12) + b"%08d" % number

    for count, words in ((800_000, "expected a table of contents of at most"), (250_000, "expected at most 200,000 m")):
        table = b"".join(map(entry, range(count)))
        path.write_bytes(table + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(table), 0, 0))
        refused(lambda: ZipTree(path), path, words)


def test_pipes_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, read in (("a.zip", ZipTree), ("a.mat", lambda path: read_mat(path, {"y": (2, 1)}))):
        path = tmp_path / name
        os.mkfifo(path)
        refused(lambda path=path, read=read: read(path), path, "expected a file, got a pipe")  # type: ignore[misc]
    folder = tmp_path / "set"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1").write_bytes(b"123")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    tree = FolderTree(folder)
    assert tree.names() == ["set/a/1", "set/pipe"]
    assert tree.read("set/a/1", 3) == b"123"
    for name, words in (("a/1", "expected at most 2 bytes, got 3"), ("pipe", "got a pipe"), ("none", "No such file")):
        refused(lambda name=name: tree.read(f"set/{name}", 2), folder, words)  # type: ignore[misc]
    monkeypatch.setattr(trees, "MOST_MEMBERS", 1)
    refused(tree.names, folder, "expected at most 1 files, got more")


# MATLAB

X = RANDOM.integers(0, 256, (4, 3, 2), np.uint8)
Y = np.array([[1], [2], [10], [3], [4]], np.uint8)
SHAPES: dict[str, tuple[int, ...]] = {"X": (4, 3, 2), "y": (5, 1)}


@pytest.mark.parametrize("deflated", [True, False])
def test_mat(tmp_path: Path, deflated: bool) -> None:
    path = tmp_path / "a.mat"
    for arrays in ({"X": X, "y": Y}, {"other": X, "y": Y.astype(float), "X": X, "last": Y}):
        path.write_bytes(mat(arrays, packed=deflated))
        found = read_mat(path, SHAPES)
        np.testing.assert_array_equal(found["X"].transpose(), X)
        np.testing.assert_array_equal(found["y"].transpose(), Y)
        assert found["y"].dtype == np.uint8
    path.write_bytes(mat({"y": Y[:3]}, packed=deflated))  # the small form of elements
    assert read_mat(path, {"y": (3, 1)})["y"].tolist() == [[1, 2, 10]]


def test_mat_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    whole = mat({"X": X, "y": Y})
    good, odd = mat_array("y", Y), np.array([[0.5]] * 5)
    cases = {
        b"": "expected a MATLAB file of version 5",
        b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM": "expected a MATLAB file of version 5",
        whole[:-9]: "it ends within an array",
        whole[:132]: "it ends within a tag",
        whole[:128]: "arrays: expected X, y, got no X, y",
        whole[:160] + bytes([whole[160] ^ 0xFF]) + whole[161:]: "cannot be read",
        mat({"X": X}): "got no y",
        mat({"X": X, "y": Y[:4]}): "shape of y: expected [5, 1], got [4, 1]",
        mat({"X": X, "y": odd}): "values of y: expected whole numbers of 0 to 255, got others",
        mat({"X": X, "y": odd + 300}): "values of y",
        mat({"X": X, "y": odd * np.nan}): "values of y",
        mat_of(good, good): "arrays named y: expected one, got more",
        mat_of(mat_array("y", Y, flags=0x809)): "type of y: expected whole numbers, got class 9",
        mat_of(mat_array("y", Y, flags=1)): "type of y: expected whole numbers, got class 1",
        mat_of(mat_array("y", Y[:4], dimensions=(5, 1))): "length of y in bytes: expected 5, got 4",
        mat_of(mat_array("y" * 70, Y)): "the description of an array in it is damaged",
        mat_of(good + bytes(8)): "more follows after an array in it",
        mat_of(good[:-8]): "it ends within the array y",
        mat_of(b""): "it ends within an array",
    }
    for data, words in cases.items():
        path.write_bytes(data)
        refused(lambda: read_mat(path, SHAPES), path, words, "--download")


def test_mat_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    header = mat({})
    for start in (mat_array("y", Y), b"", mat_array("other", Y)):
        deflated = b"\x78\x9c" + zeros(2 * GIGABYTE, start) + bytes(4)
        path.write_bytes(header + struct.pack("<2I", 15, len(deflated)) + deflated)
        refused(lambda: read_mat(path, {"y": (5, 1)}), path)
    # An array that says that it has 2^60 bytes.
    huge = mat_array("y", Y, dimensions=(2**30, 2**30))
    path.write_bytes(header + struct.pack("<2I", 15, len(zlib.compress(huge))) + zlib.compress(huge))
    refused(lambda: read_mat(path, {"y": (5, 1)}), path, "shape of y: expected [5, 1], got [1073741824, 1073741824]")
