"""Fetching the official files of MNIST and CIFAR, checked by their published md5 sums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]
from requests import RequestException
from tqdm import tqdm

from lps.errors import ConfigError, DataError
from lps.options import one_line


@dataclass(frozen=True)
class Source:
    """An address that ends in a slash, and the md5 sum of each file below it."""

    url: str
    md5: dict[str, str]


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
}


def default_directory() -> Path:
    """Where data lie if no directory is named: ``learn-prune-share`` in the user's cache directory."""
    return Path(pooch.os_cache("learn-prune-share"))


def fetch(data_set: str, directory: Path, *, base_url: str | None = None) -> list[Path]:
    """Fetch the files of ``mnist``, ``cifar10`` or ``cifar100`` into a directory, with a progress bar.

    A file that is there with the right sum is not fetched again. A file appears under its name only when it is whole
    and its sum is right. ``base_url`` names another server, and ends in a slash.
    """
    if data_set not in SOURCES:
        raise ConfigError(f"download: unknown data set {data_set!r}; known are {', '.join(SOURCES)}")
    source = SOURCES[data_set]
    return [_retrieve((base_url or source.url) + name, md5, directory / name) for name, md5 in source.md5.items()]


def _with_bar(url: str, output: str, caller: object) -> None:
    """Download as pooch does, under a bar that is closed before an error is shown."""
    with tqdm(desc=url.rsplit("/", 1)[-1], total=1, unit="B", unit_scale=True) as bar:
        # 64 KiB at a time: pooch's default of 1 KiB is slower than a fast line.
        pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16)(url, output, caller)


def _retrieve(url: str, md5: str, path: Path) -> Path:
    by_hand = f"try again, or put the file into {path.parent} yourself"
    if path.exists() and not path.is_file():  # of a pipe the sum would never be known
        raise DataError(f"{one_line(str(path))}: expected a file, got something else; remove it")
    try:
        pooch.retrieve(url, f"md5:{md5}", path.name, path.parent, downloader=_with_bar)
    except RequestException as error:
        answer = getattr(error.response, "status_code", None)
        reason = f"the server answered {answer}" if answer else f"no whole answer came ({type(error).__name__})"
        raise DataError(f"{url}: download failed: {reason}; {by_hand}") from None
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be written: {reason}; pass another directory") from None
    except ValueError:  # pooch's word for a wrong sum; it has deleted what came
        raise DataError(f"{url}: md5 sum: expected {md5}, got another, so nothing was kept; {by_hand}") from None
    return path
