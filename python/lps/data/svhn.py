"""SVHN, house numbers in photographs: the official ``train_32x32.mat`` and ``test_32x32.mat``.

Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Ng, "Reading Digits in Natural Images with Unsupervised Feature
Learning", 2011.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lps.data.base import Examples
from lps.data.download import fetch
from lps.data.files import PASS_OR_DOWNLOAD, missing, unlike
from lps.data.matlab import read_mat

PARTS = {"train_32x32.mat": 73_257, "test_32x32.mat": 26_032}
_BLOCK = 4096  # images that are turned at a time


def read(path: Path, count: int) -> Examples:
    """Read ``count`` images [3, 32, 32] and their labels; the digit 0 has label 10 in the file."""
    arrays = read_mat(path, {"X": (32, 32, 3, count), "y": (count, 1)})
    labels = arrays["y"].reshape(count)
    wrong = np.flatnonzero((labels < 1) | (labels > 10))
    if len(wrong):
        raise unlike(path, "labels", "1 to 10", f"{labels[wrong[0]]} for example {wrong[0]}")
    pixels = arrays["X"]  # [images, channels, columns, rows]
    for start in range(0, count, _BLOCK):
        block = pixels[start : start + _BLOCK]
        block[...] = block.transpose(0, 1, 3, 2).copy()
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels % 10))


def load(data_dir: Path, download: bool) -> tuple[Examples, Examples]:
    """Read the training and test images from ``data_dir`` or its folder ``svhn``; ``download`` fetches them."""
    folders = (data_dir, data_dir / "svhn")
    folder = next((folder for folder in folders if all((folder / name).exists() for name in PARTS)), None)
    if folder is None and download:
        fetch("svhn", data_dir)
        folder = data_dir
    if folder is None:
        raise missing("SVHN", (" and ".join(PARTS),), folders, PASS_OR_DOWNLOAD)
    train, test = (read(folder / name, count) for name, count in PARTS.items())
    return train, test
