"""The real data sets, if LPS_DATA_DIR names a directory with them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from lps.data import cifar, mnist, stream
from lps.data.download import fetch
from lps.data.rf import read_captures
from lps.errors import DataError

from tests.data.test_download import serve
from tests.data.test_streams import arrays, first, sizes

pytestmark = pytest.mark.skipif("LPS_DATA_DIR" not in os.environ, reason="LPS_DATA_DIR names no directory of real data")


def real() -> Path:
    return Path(os.environ["LPS_DATA_DIR"])


@pytest.mark.parametrize(
    ("chosen", "part", "pixels", "labels"),
    [
        (
            cifar.CIFAR10,
            0,
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        ),
        (
            cifar.CIFAR100,
            1,
            "c140dbbd73f5f7a67b9d57afadacd892141517630f990be4d1bea953db36d531",
            "2a3b45f2d185ec64d47d01bb5e92b286d34a25158acc2a4a6dfba970ec19e4c6",
        ),
    ],
    ids=["cifar10-train", "cifar100-test"],
)
def test_real_cifar_is_decoded_exactly(chosen: Any, part: int, pixels: str, labels: str) -> None:
    folder, name = real() / chosen.sheets, ("train.npz", "test.npz")[part]
    if not folder.is_dir():
        pytest.skip(f"LPS_DATA_DIR has no {chosen.sheets}")
    examples = cifar.read_sheets(folder / name, chosen.sheet_counts[part], chosen.sheet_classes)
    # The sums are over images with the channels last.
    last = examples.inputs.permute(0, 2, 3, 1).contiguous()
    assert hashlib.sha256(last.numpy().tobytes()).hexdigest() == pixels
    assert hashlib.sha256(examples.labels.numpy().tobytes()).hexdigest() == labels


def test_real_mnist() -> None:
    train, test = mnist.load(real(), download=False)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert round(float(train.inputs.float().mean()) / 255, 4) == 0.1307  # as published
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.parametrize("name", ["split-rf", "mixed"])
def test_real_streams(name: str) -> None:
    tasks = stream(name, data_dir=real())
    assert len(tasks) == 5
    assert all(first(task).isfinite().all() for task in tasks)
    assert sizes(tasks[1]) == ((1_269, 141, 550) if name == "split-rf" else (4_500, 500, 1_000))


@pytest.mark.parametrize("split", [10, 20])
def test_real_split_cifar100(split: int) -> None:
    """The first half of the tasks, which the sheets hold."""
    tasks = stream("split-cifar100", data_dir=real(), tasks=split // 2, options={"split": split})
    each = 100 // split
    assert all(sizes(task) == (450 * each, 50 * each, 100 * each) for task in tasks)
    assert tasks[-1].class_names[-1] == "mountain"
    if not (real() / cifar.CIFAR100.archive).exists() and not (real() / cifar.CIFAR100.folder).exists():
        with pytest.raises(DataError, match=f"pass --tasks {split // 2}"):
            stream("split-cifar100", data_dir=real(), options={"split": split})


def test_real_digits_in_pairs_and_rotated() -> None:
    pairs = stream("split-mnist", data_dir=real())
    assert [len(arrays(task.test)) for task in pairs] == [2115, 2042, 1874, 1986, 1983]
    upright, turned = stream("rotated-mnist", data_dir=real(), tasks=2)
    assert sizes(turned) == (54_000, 6_000, 10_000)
    # Turning moves ink, and loses next to none: digits lie in the middle.
    ink = [float(first(task, 1000).sum()) for task in (upright, turned)]
    assert abs(ink[1] / ink[0] - 1) < 0.01


def test_real_first_sets_of_five() -> None:
    """CIFAR-10 and MNIST; the others, if they are there."""
    count = 5 if (real() / "notMNIST_small.tar.gz").exists() else 2
    tasks = stream("five-datasets", data_dir=real(), tasks=count)
    assert [task.name for task in tasks][:2] == ["cifar10", "mnist"]
    assert all(first(task).shape == (8, 3, 32, 32) and first(task).isfinite().all() for task in tasks)


@pytest.mark.parametrize(
    ("name", "file"), [("split-tinyimagenet", "tiny-imagenet-200.zip"), ("omniglot-rotation", "images_background.zip")]
)
def test_real_archives(name: str, file: str) -> None:
    if not (real() / file).exists():
        pytest.skip(f"LPS_DATA_DIR has no {file}")
    task = stream(name, data_dir=real(), tasks=1)[0]
    assert sizes(task) == {"split-tinyimagenet": (9_000, 1_000, 1_000)}.get(name, (624, 96, 240))


def test_the_published_sums_are_those_of_the_real_files(tmp_path: Path) -> None:
    folder = next((path for path in (real(), real() / "mnist") if (path / "t10k-labels-idx1-ubyte.gz").exists()), None)
    if folder is None:
        pytest.skip("LPS_DATA_DIR has no MNIST")
    for url in serve(folder):
        assert len(fetch("mnist", tmp_path, base_url=url)) == 4
    assert (tmp_path / "train-images-idx3-ubyte.gz").stat().st_size == 9_912_422


def test_real_captures() -> None:
    path = real() / "rf-5g-pluto3" / "captures.npz"
    if not path.exists():
        pytest.skip("LPS_DATA_DIR has no rf-5g-pluto3")
    signals, transmitters = read_captures(path)
    assert signals.shape == (8, 2, 20000)
    assert transmitters.tolist() == [1, 1, 1, 2, 2, 2, 3, 3]
