"""Fetching the official files of the data sets, checked by their published md5 sums.

For a file whose sum was never published, the sha256 sum of the first copy that was fetched is written beside it, into
``<name>.sha256``, and the file is checked by that from then on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]
from requests import RequestException
from tqdm import tqdm

from lps.artifact.atomic import write_atomically
from lps.errors import ConfigError, DataError
from lps.options import one_line, shown
from lps.reading import open_regular, read_bytes


@dataclass(frozen=True)
class Source:
    """An address that ends in a slash, and the md5 sum of each file below it; None if none was published."""

    url: str
    md5: Mapping[str, str | None]


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
    ),
    "fashion-mnist": Source(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "svhn": Source(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "notmnist": Source("http://yaroslavvb.com/upload/notMNIST/", {"notMNIST_small.tar.gz": None}),
    "tinyimagenet": Source(
        "http://cs231n.stanford.edu/", {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    ),
    "omniglot": Source(
        "https://github.com/brendenlake/omniglot/raw/master/python/",
        {
            "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
            "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
        },
    ),
}

MOST_BYTES = 300_000_000  # of a file; the largest, TinyImageNet, has 248,100,043


def default_directory() -> Path:
    """Where data lie if no directory is named: ``learn-prune-share`` in the user's cache directory."""
    return Path(pooch.os_cache("learn-prune-share"))


def fetch(data_set: str, directory: Path, *, base_url: str | None = None) -> list[Path]:
    """Fetch the files of a data set in ``SOURCES`` into a directory, with a progress bar.

    A file that is there with the right sum is not fetched again. A file appears under its name only when it is whole
    and its sum is right. ``base_url`` names another server, and ends in a slash.
    """
    if data_set not in SOURCES:
        raise ConfigError(f"download: unknown data set {data_set!r}; known are {', '.join(SOURCES)}")
    source = SOURCES[data_set]
    return [_retrieve((base_url or source.url) + name, md5, directory / name) for name, md5 in source.md5.items()]


class _Bar(tqdm):  # type: ignore[type-arg]
    """A progress bar that ends a download which is too long."""

    def update(self, n: float | None = 1) -> bool | None:
        """Count bytes that have come; pooch counts them before it takes the next."""
        shown = super().update(n)
        if self.n > MOST_BYTES:
            raise _TooLongError
        return shown


class _TooLongError(Exception):
    pass


def _with_bar(url: str, output: str, caller: object) -> None:
    """Download as pooch does, under a bar that is closed before an error is shown."""
    with _Bar(desc=url.rsplit("/", 1)[-1], total=1, unit="B", unit_scale=True) as bar:
        # 64 KiB at a time: pooch's default of 1 KiB is slower than a fast line.
        pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16)(url, output, caller)


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def recorded(path: Path) -> str | None:
    """The sha256 sum that was written when the file was first fetched; None if it was not."""
    record = _record(path)
    try:
        text = read_bytes(record, 1000).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{one_line(str(record))}: cannot be read: {error.strerror}; remove it") from None
    found = text.partition(" ")[0].strip()
    if not re.fullmatch("[0-9a-f]{64}", found):
        raise DataError(f"{one_line(str(record))}: expected a sha256 sum, got {shown(text)}; remove it")
    return found


def check_recorded(path: Path) -> None:
    """Refuse a file that is not the one whose sum was written when it was first fetched; one without passes."""
    expected = recorded(path)
    if expected is None:
        return
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while piece := file.read(2**20):
                digest.update(piece)
    except OSError as error:
        raise DataError(f"{one_line(str(path))}: cannot be read: {error.strerror}; remove it") from None
    if digest.hexdigest() != expected:
        raise DataError(
            f"{one_line(str(path))}: sha256 sum: expected {expected}, as when it was first fetched, got another; "
            f"delete it and fetch it again with --download, or remove {_record(path).name} if it is right"
        )


def _retrieve(url: str, md5: str | None, path: Path) -> Path:
    by_hand = f"try again, or put the file into {path.parent} yourself"
    if path.exists() and not path.is_file():  # of a pipe the sum would never be known
        raise DataError(f"{one_line(str(path))}: expected a file, got something else; remove it")
    first = recorded(path) if md5 is None else None
    known = f"md5:{md5}" if md5 is not None else first and f"sha256:{first}"
    try:
        pooch.retrieve(url, known, path.name, path.parent, downloader=_with_bar)
        if known is None:
            digest = pooch.file_hash(str(path), "sha256")
            write_atomically(_record(path), f"{digest}  {path.name}\n".encode())
    except RequestException as error:
        answer = getattr(error.response, "status_code", None)
        reason = f"the server answered {answer}" if answer else f"no whole answer came ({type(error).__name__})"
        raise DataError(f"{url}: download failed: {reason}; {by_hand}") from None
    except _TooLongError:
        raise DataError(
            f"{url}: length in bytes: expected at most {MOST_BYTES:,}, got more, so nothing was kept; {by_hand}"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be written: {reason}; pass another directory") from None
    except ValueError:  # pooch's word for a wrong sum; it has deleted what came
        kind, _, expected = str(known).partition(":")
        raise DataError(
            f"{url}: {kind} sum: expected {expected}, got another, so nothing was kept; {by_hand}"
        ) from None
    return path
