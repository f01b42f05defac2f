"""Data sets of the official sizes, made once for all tests that only read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.making import webp, write_mnist, write_sheets


@pytest.fixture(scope="session")
def mnist_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder / "mnist")
    return folder


@pytest.fixture(scope="session")
def sheets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR of the official sizes as sheets, in which every image has one colour."""
    folder = tmp_path_factory.mktemp("data")
    pixels = np.repeat(np.arange(100, dtype=np.uint8), 32 * 32 * 3).reshape(3200, 32, 3)
    sheet = webp(pixels)
    for name, classes, counts in (("cifar10", 10, (50_000, 10_000)), ("cifar100-first50", 50, (25_000, 5_000))):
        (folder / name).mkdir()
        for part, count in zip(("train", "test"), counts, strict=True):
            labels = [i * classes // count for i in range(count)]
            write_sheets(folder / name / f"{part}.npz", [sheet] * (count // 100), labels)
    return folder
