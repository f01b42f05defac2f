"""permuted-mnist: ten tasks of MNIST with permuted pixels, read from the four official idx files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lps.data.base import Examples, Network, Raw, Stream
from lps.data.benchmark import QUICK, Benchmark, Request
from lps.data.download import fetch
from lps.data.files import PASS_OR_DOWNLOAD, check_labels, missing, read_idx
from lps.data.permuted import PAPER, permuted_raw, permuted_stream
from lps_kernels.owner import MAX_TASKS

PARTS = {"train": 60_000, "t10k": 10_000}


NETWORK: Network = ("mlp", {"inputs": 784, "hidden": [2000, 2000], "dropout": 0.5})


def _find(folders: Sequence[Path], stem: str) -> Path | None:
    names = (f"{stem}.gz", stem)
    return next((path for folder in folders for name in names if (path := folder / name).is_file()), None)


def read(images: Path, labels: Path, count: int) -> Examples:
    """Read ``count`` images of 28x28 as flat rows, and their labels."""
    pixels, classes = read_idx(images, (count, 28, 28)), read_idx(labels, (count,))
    check_labels(labels, classes, 10)
    return Examples(torch.from_numpy(pixels.reshape(count, 784)), torch.from_numpy(classes))


def load(data_dir: Path, download: bool) -> tuple[Examples, Examples]:
    """Read the training and test images from ``data_dir`` or its folder ``mnist``; ``download`` fetches them."""
    return load_like("MNIST", (data_dir, data_dir / "mnist"), download)


def load_like(name: str, folders: Sequence[Path], download: bool) -> tuple[Examples, Examples]:
    """Read the training and test images of a set with the files of MNIST, each from the first folder that has it.

    ``download`` fetches them into the first folder.
    """
    stems = [f"{part}-{kind}" for part in PARTS for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    if download and not all(_find(folders, stem) for stem in stems):
        fetch(name.lower(), folders[0])
    paths = []
    for stem in stems:
        path = _find(folders, stem)
        if path is None:
            raise missing(name, (f"{stem}.gz", stem), folders, PASS_OR_DOWNLOAD)
        paths.append(path)
    train_images, train_labels, test_images, test_labels = paths
    return read(train_images, train_labels, PARTS["train"]), read(test_images, test_labels, PARTS["t10k"])


def raw(request: Request, number: int) -> Raw:
    """What task ``number``, counted from 0, reads."""
    return permuted_raw(request.seed, number, side=28, top=255)


def build(request: Request) -> Stream:
    """Build the stream; its network is the paper's with 5,568,000 prunable weights."""
    return permuted_stream("permuted-mnist", NETWORK, *load(request.data_dir, request.download), raw, request)


# The last tasks have few free weights to learn with: twice the learning rate helps them most.
_QUICK = {**PAPER, **QUICK, "epochs": (1, 3, 1), "dropout": 0.2, "lr": 2e-3}
# As in its paper: every step needs the gradients of all earlier tasks.
_QUICK_OF = {"gem": {"epochs": (1, 0, 0)}}

BENCHMARK = Benchmark(
    build, raw, tasks=10, most=MAX_TASKS, presets={"quick": _QUICK, "paper": PAPER}, quick_of=_QUICK_OF
)
