"""split-cifar: all of CIFAR-10, then five tasks of ten consecutive classes of CIFAR-100.

Read from the official binary archives, from their unpacked folders, or from npz files whose pixels are lossless WebP
sheets (``cifar10/train.npz`` and so on; arrays ``sheets``, ``offsets``, ``labels``).

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lps.data.augment import crop_and_flip
from lps.data.base import Examples, Network, Raw, Stream, classification_task, hold_out, of_classes, random
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request
from lps.data.download import fetch
from lps.data.files import (
    FETCH_AGAIN,
    PASS_OR_DOWNLOAD,
    REPLACE,
    check_labels,
    missing,
    read_file,
    read_members,
    read_npz,
    unlike,
)
from lps.data.images import decode
from lps.task import Task

NETWORK: Network = ("cifar-net", {"dropout": [0.25, 0.25, 0.5]})

# Mean and standard deviation of CIFAR-10's training pixels in red, green and blue, as widely published; for CIFAR-100
# too, because the first layers are largely frozen after task 1 and should see one scale.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

CIFAR10_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())  # noqa: SIM905
CIFAR100_NAMES = tuple(
    # Ten per line instead of a line each.
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
    bowl boy bridge bus butterfly camel can castle caterpillar cattle
    chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket
    rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)

# Table I of the paper.
PAPER: dict[str, Any] = {
    **PAPER_SOLVER,
    "epochs": (200, 600, 200),
    "alpha": (0.5, 0.1),
    "beta": 0.92,
    "dropout": (0.25, 0.25, 0.5),
}

_PIXELS = 3 * 32 * 32
_SHEET = 100  # images stacked top to bottom in one sheet


@dataclass(frozen=True)
class _Set:
    """Where a data set may lie and what its files hold."""

    key: str  # what lps.data.download calls it
    archive: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    counts: tuple[int, int]  # training and test images in the archive
    labels: tuple[int, ...]  # how many values each label byte of a record can have; the last is the class
    sheets: str
    sheet_counts: tuple[int, int]
    sheet_classes: int


CIFAR10 = _Set(
    key="cifar10",
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    counts=(50_000, 10_000),
    labels=(10,),
    sheets="cifar10",
    sheet_counts=(50_000, 10_000),
    sheet_classes=10,
)
CIFAR100 = _Set(
    key="cifar100",
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=("train.bin",),
    test=("test.bin",),
    counts=(50_000, 10_000),
    labels=(20, 100),  # superclass and class
    sheets="cifar100-first50",
    sheet_counts=(25_000, 5_000),
    sheet_classes=50,
)


def records(data: bytes, where: Path | str, labels: tuple[int, ...]) -> Examples:
    """Take records of label bytes and 3x32x32 pixels apart; each label byte is below its number in ``labels``."""
    rows = np.frombuffer(data, np.uint8).reshape(-1, len(labels) + _PIXELS)
    for column, classes in enumerate(labels):
        check_labels(where, rows[:, column], classes)
    pixels = torch.from_numpy(rows[:, len(labels) :].copy().reshape(-1, 3, 32, 32))
    return Examples(pixels, torch.from_numpy(rows[:, len(labels) - 1].copy()))


def read_sheets(path: Path, count: int, classes: int) -> Examples:
    """Read ``count`` images from an npz file of WebP sheets, each 32 wide and 3200 high."""
    shapes = {"sheets": (None,), "offsets": (count // _SHEET + 1,), "labels": (count,)}
    arrays = read_npz(path, shapes, offsets=np.int64)
    sheets, offsets, labels = arrays["sheets"], arrays["offsets"], arrays["labels"]
    check_labels(path, labels, classes, REPLACE)
    if offsets[0] != 0 or offsets[-1] != len(sheets) or (np.diff(offsets) <= 0).any():
        raise unlike(path, "offsets", f"growing numbers from 0 to {len(sheets)}", "others", REPLACE)
    pixels = np.empty((count, 3, 32, 32), np.uint8)
    for sheet, (start, end) in enumerate(pairwise(offsets)):
        first, where = sheet * _SHEET, f"sheet {sheet}"
        image = decode(sheets[start:end].tobytes(), path, where, "WEBP", (32, 32 * _SHEET), "RGB", REPLACE)
        pixels[first : first + _SHEET] = image.reshape(_SHEET, 32, 32, 3).transpose(0, 3, 1, 2)
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels))


def _read_binary(source: Path, chosen: _Set) -> tuple[Examples, Examples]:
    """Read the training and test images from the official archive or from the folder it unpacks to."""
    width = len(chosen.labels) + _PIXELS
    parts = ((chosen.train, chosen.counts[0]), (chosen.test, chosen.counts[1]))
    sizes = {name: width * count // len(names) for names, count in parts for name in names}
    if source.is_dir():
        data = {name: read_file(source / name, size) for name, size in sizes.items()}
    else:
        members = read_members(source, {f"{chosen.folder}/{name}": size for name, size in sizes.items()})
        data = {name: members.pop(f"{chosen.folder}/{name}") for name in sizes}
    # Each file is let go of when its images are taken from it.
    read = [[records(data.pop(name), source, chosen.labels) for name in names] for names, _ in parts]
    train, test = (Examples(*map(torch.cat, zip(*examples, strict=True))) for examples in read)
    return train, test


def _find(data_dir: Path, chosen: _Set) -> Path | None:
    names = (chosen.archive, chosen.folder, chosen.sheets)
    return next((path for name in names if (path := data_dir / name).exists()), None)


def load(chosen: _Set, data_dir: Path, download: bool) -> tuple[Examples, Examples]:
    """Read the training and test images of CIFAR-10 or CIFAR-100 in the first form that is there.

    ``download`` fetches the official archive if no form is there.
    """
    if download and _find(data_dir, chosen) is None:
        fetch(chosen.key, data_dir)
    source = _find(data_dir, chosen)
    if source is None:
        names = (chosen.archive, f"{chosen.folder}/", f"{chosen.sheets}/")
        raise missing("CIFAR", names, (data_dir,), PASS_OR_DOWNLOAD)
    if source.name != chosen.sheets:
        return _read_binary(source, chosen)
    train, test = (
        read_sheets(source / name, count, chosen.sheet_classes)
        for name, count in zip(("train.npz", "test.npz"), chosen.sheet_counts, strict=True)
    )
    return train, test


class Colour:
    """Scale colour images from bytes to mean 0 and deviation 1 in each channel; by default as CIFAR-10 has them."""

    def __init__(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        deviation = torch.tensor(std).view(3, 1, 1)
        self.scale = 1 / (255 * deviation)
        self.shift = -torch.tensor(mean).view(3, 1, 1) / deviation

    def __call__(self, images: Tensor) -> Tensor:
        """Map [batch, 3, height, width] with values 0..255 to float32."""
        return torch.addcmul(self.shift, images.to(torch.float32), self.scale)


def raw(_request: Request, _number: int) -> Raw:
    """What every task reads."""
    return Raw((3, 32, 32), (3, 32, 32), 255, Colour())


def part_of_hundred(train: Examples, test: Examples, first: int, seed: int, augment: bool, count: int = 10) -> Task:
    """A task of ``count`` classes of CIFAR-100 from ``first`` on."""
    last = first + count - 1
    classes = range(first, last + 1)
    learn, judge = of_classes(train, classes), of_classes(test, classes)
    if (len(learn.labels), len(judge.labels)) != (500 * count, 100 * count):
        got = f"{len(learn.labels)} and {len(judge.labels)}"
        where = f"CIFAR-100 classes {first} to {last}"
        raise unlike(where, "training and test images", f"{500 * count} and {100 * count}", got, FETCH_AGAIN)
    kept, held = hold_out(learn, random(seed, "validation-cifar100", first))
    names = CIFAR100_NAMES[first : last + 1]
    change = crop_and_flip if augment else None
    return classification_task(f"cifar100-{first}-{last}", names, kept, held, judge, Colour(), change)


def build(request: Request) -> Stream:
    """Build the stream; CIFAR-100 is read only if there is a second task."""
    train, test = load(CIFAR10, request.data_dir, request.download)
    hundred = load(CIFAR100, request.data_dir, request.download) if request.tasks > 1 else None

    def build_task(number: int) -> Task:
        if number == 0 or hundred is None:
            kept, held = hold_out(train, random(request.seed, "validation-cifar10"))
            change = crop_and_flip if request.augment else None
            return classification_task("cifar10", CIFAR10_NAMES, kept, held, test, Colour(), change)
        return part_of_hundred(*hundred, first=10 * (number - 1), seed=request.seed, augment=request.augment)

    return Stream("split-cifar", NETWORK, request.tasks, build_task)


# Later tasks have a tenth of the images: batches of 32 give them enough steps.
_QUICK = {**PAPER, **QUICK, "epochs": ((1, 3, 1), (3, 9, 3)), "batch_size": 32, "channels_last": True}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=6,
    most=6,
    presets={"quick": _QUICK, "paper": PAPER},
    augments=True,
)
