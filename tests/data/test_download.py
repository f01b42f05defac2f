"""Fetching files from a real local server: complete and correct, or one sentence and no file left behind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lps.data import cifar, download, omniglot, stream, svhn, tinyimagenet
from lps.data.download import SOURCES, Source, check_recorded, fetch
from lps.errors import ConfigError, DataError

from tests.data.making import write_mnist

CONTENT = bytes(range(256)) * 1000
NAME = "cifar-10-binary.tar.gz"


class Server(SimpleHTTPRequestHandler):
    """Serves a folder; for names that start with "short" the announced length is too large."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/short/"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(2 * len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)


def serve(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / NAME).write_bytes(CONTENT)
    return folder


@pytest.fixture
def url(remote: Path) -> Iterator[str]:
    yield from serve(remote)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of the file on the server."""
    monkeypatch.setitem(SOURCES, "cifar10", Source("", {NAME: hashlib.md5(CONTENT).hexdigest()}))


def refused(url: str, folder: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        fetch("cifar10", folder, base_url=url)
    message = str(caught.value)
    assert "\n" not in message
    for part in (*parts, NAME):
        assert part in message


@pytest.mark.usefixtures("known")
def test_a_file_is_fetched_once(url: str, remote: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    local = tmp_path / "new" / "folder"
    assert fetch("cifar10", local, base_url=url) == [local / NAME]
    assert (local / NAME).read_bytes() == CONTENT
    assert [path.name for path in local.iterdir()] == [NAME]
    assert "100%" in capfd.readouterr().err  # the progress bar
    (remote / NAME).unlink()
    assert fetch("cifar10", local, base_url=url) == [local / NAME]


@pytest.mark.usefixtures("known")
def test_a_damaged_file_is_fetched_again(url: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT[:-1])
    fetch("cifar10", tmp_path, base_url=url)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_wrong_sum_keeps_nothing(url: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    refused(url, local, "md5 sum: expected c32a1d4ab5d03f1284b67883e8d87530")
    assert list(local.iterdir()) == []


@pytest.mark.usefixtures("known")
def test_an_absent_file_keeps_nothing(url: str, remote: Path, tmp_path: Path) -> None:
    (remote / NAME).unlink()
    local = tmp_path / "local"
    refused(url, local, "the server answered 404", str(local))
    assert list(local.iterdir()) == []


@pytest.mark.usefixtures("known")
def test_a_broken_connection_keeps_nothing(url: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    refused(url + "short/", local, "no whole answer came")
    assert list(local.iterdir()) == []


@pytest.mark.usefixtures("known")
def test_no_server(remote: Path, tmp_path: Path) -> None:
    server = serve(remote)
    url = next(server)
    next(server, None)  # stops it
    refused(url, tmp_path / "local", "no whole answer came (ConnectionError)")


@pytest.mark.usefixtures("known")
def test_a_folder_that_cannot_be(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused(url, tmp_path / "file" / "folder", "cannot be written")


LETTERS = "notMNIST_small.tar.gz"


def test_a_sum_that_nobody_published_is_recorded_at_the_first_download(url: str, remote: Path, tmp_path: Path) -> None:
    (remote / LETTERS).write_bytes(CONTENT)
    local, record = tmp_path / "local", tmp_path / "local" / f"{LETTERS}.sha256"
    fetch("notmnist", local, base_url=url)
    assert record.read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  {LETTERS}\n"
    assert sorted(path.name for path in local.iterdir()) == [LETTERS, record.name]
    check_recorded(local / LETTERS)
    # Damage is found when the file is read, and mended by another download.
    (local / LETTERS).write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=rf"{LETTERS}: sha256 sum: expected .*, as when it was first fetched"):
        stream("five-datasets", data_dir=local)[4]
    fetch("notmnist", local, base_url=url)
    assert (local / LETTERS).read_bytes() == CONTENT
    # Another file on the server is refused from now on.
    (remote / LETTERS).write_bytes(CONTENT[::-1])
    (local / LETTERS).unlink()
    with pytest.raises(DataError, match=rf"{LETTERS}: sha256 sum: expected .*, got another, so nothing was kept"):
        fetch("notmnist", local, base_url=url)
    assert [path.name for path in local.iterdir()] == [record.name]
    for wrong in (b"", b"0" * 63, b"\xff" * 64, b"0" * 2000):
        record.write_bytes(wrong)
        with pytest.raises(DataError, match=rf"{LETTERS}.sha256: .*; remove it") as caught:
            fetch("notmnist", local, base_url=url)
        assert "\n" not in str(caught.value)
    record.unlink()
    record.mkdir()
    with pytest.raises(DataError, match=rf"{LETTERS}.sha256: cannot be read: Is a directory; remove it"):
        fetch("notmnist", local, base_url=url)


def test_a_file_without_a_recorded_sum_passes(tmp_path: Path) -> None:
    (tmp_path / LETTERS).write_bytes(CONTENT)
    check_recorded(tmp_path / LETTERS)


@pytest.mark.usefixtures("known")
def test_a_download_that_is_too_long_keeps_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 100_000)
    local = tmp_path / "local"
    refused(url, local, "length in bytes: expected at most 100,000, got more, so nothing was kept")
    assert list(local.iterdir()) == []


def test_an_unknown_set() -> None:
    with pytest.raises(ConfigError, match="known are mnist, cifar10, cifar100"):
        fetch("imagenet", Path())


def test_every_source_has_an_official_address_and_md5_sums() -> None:
    without = []
    for name, source in SOURCES.items():
        # The servers of these three are known by their plain addresses alone.
        assert source.url.startswith("http://" if name in ("svhn", "notmnist", "tinyimagenet") else "https://")
        assert source.url.endswith("/")
        assert all(len(bytes.fromhex(md5)) == 16 for md5 in source.md5.values() if md5 is not None)
        without += [file for file, md5 in source.md5.items() if md5 is None]
    assert without == ["notMNIST_small.tar.gz"]  # of which no sum was published
    assert set(SOURCES["cifar100"].md5) == {cifar.CIFAR100.archive}
    assert set(SOURCES["svhn"].md5) == set(svhn.PARTS)
    assert set(SOURCES["omniglot"].md5) == set(omniglot.ARCHIVES)
    assert set(SOURCES["tinyimagenet"].md5) == {tinyimagenet.ARCHIVE}
    assert set(SOURCES["fashion-mnist"].md5) == set(SOURCES["mnist"].md5)


def test_a_stream_fetches_what_is_missing(
    url: str, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(remote)
    sums = {name: hashlib.md5((remote / name).read_bytes()).hexdigest() for name in SOURCES["mnist"].md5}
    monkeypatch.setitem(SOURCES, "mnist", Source(url, sums))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(stream("permuted-mnist", download=True, tasks=3)) == 3
    assert sorted(path.name for path in download.default_directory().iterdir()) == sorted(sums)
    monkeypatch.setitem(SOURCES, "mnist", Source("http://127.0.0.1:9/", sums))  # no server is asked again
    assert len(stream("permuted-mnist", download=True)) == 10
    assert len(stream("permuted-mnist")) == 10
