"""folder: the user's own images; ``--data-dir`` holds a folder per task, and in it a folder per class.

Tasks and classes are in the order of their names and have them::

    DIR/birds/heron/*.jpg              DIR/birds/train/heron/*.jpg
    DIR/birds/stork/*.jpg       or     DIR/birds/test/heron/*.jpg
    DIR/fish/pike/*.png                DIR/birds/validation/heron/*.jpg   (may be left out)

A task folder whose only folders are ``train`` and ``test``, and perhaps ``validation``, is divided by them. Of any
other task a fifth of each class, chosen by the seed of the stream, is the test part. Where there is no ``validation``,
a tenth of the training images is held out for it. Images of all sizes and of the formats that ``lps.infer`` reads
become colour images of ``--image-size`` squared. Hidden files and files that are no images by their ending are passed
over; links are refused: what they lead to may change, or never end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lps.data.augment import crop_and_flip
from lps.data.base import Examples, Raw, Stream, classification_task, hold_out, random
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request
from lps.data.cifar import Colour
from lps.data.download import default_directory
from lps.data.files import unlike, unreadable
from lps.data.inputs import CHECK_PATH, image_endings, read_image
from lps.data.options import FolderOptions
from lps.data.tinyimagenet import PHOTO_MEAN, PHOTO_STD
from lps.errors import ConfigError, DataError
from lps.options import is_unicode, one_line
from lps.task import Task
from lps_kernels.owner import MAX_TASKS

MOST_MEMORY = 2**32  # bytes of all images together
FEWEST = 5  # images of a class of which a fifth is held out for the test
_PARTS = ("train", "test")
_VALIDATION = "validation"

Files = dict[str, list[Path]]  # images by class


@dataclass(frozen=True)
class _Listed:
    """The images of a task; without ``test`` a part of ``train`` becomes it."""

    name: str
    train: Files
    test: Files | None
    validation: Files | None

    def count(self) -> int:
        parts = (self.train, self.test or {}, self.validation or {})
        return sum(len(files) for part in parts for files in part.values())


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """What is in a folder, in the order of the names, and of which kind; hidden entries are left out."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name, entry.stat(follow_symlinks=False).st_mode)
                for entry in entries
                if not entry.name.startswith(".")
            )
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise unreadable(folder, error, CHECK_PATH) from None
    for name, mode in found:
        path, kind = folder / name, stat.S_IFMT(mode)
        if kind == stat.S_IFLNK:
            raise unlike(path, "kind", "a file or a folder", "a link", "put what it leads to in its place")
        if not is_unicode(name):
            raise unlike(path, "name", "text in UTF-8", "other bytes", "give it another name")
        yield path, kind


def _folders(folder: Path) -> list[Path]:
    return [path for path, kind in _entries(folder) if kind == stat.S_IFDIR]


def _classes(folder: Path) -> Files:
    """The images in each class folder of a folder."""
    found: Files = {}
    for path in _folders(folder):
        images = found[path.name] = []
        for entry, kind in _entries(path):
            if kind == stat.S_IFDIR:
                raise unlike(entry, "kind", "an image", "a folder", "put images into the folder of their class")
            if entry.suffix.lower() in image_endings():
                if kind != stat.S_IFREG:
                    raise unlike(entry, "kind", "an image", "a pipe, a socket or a device", "remove it")
                images.append(entry)
    if len(found) < 2:
        raise unlike(folder, "folders of classes", "at least 2", len(found), "put a folder per class there")
    return found


def list_task(folder: Path) -> _Listed:
    """Find the images of a task, and check that there are enough."""
    inner = {path.name for path in _folders(folder)}
    if not {*_PARTS} <= inner <= {*_PARTS, _VALIDATION}:
        train = _classes(folder)
        _expect_images(folder, train, FEWEST)
        return _Listed(folder.name, train, None, None)
    parts = {part: _classes(folder / part) for part in sorted(inner)}
    for part, files in parts.items():
        others = sorted(files.keys() ^ parts["train"].keys())
        if others:
            where = folder / part
            got = f"{one_line(others[0])} in one of both alone"
            raise unlike(where, "folders of classes", "those of train", got, "give each part the same classes")
        _expect_images(folder / part, files, 1)
    return _Listed(folder.name, parts["train"], parts["test"], parts.get(_VALIDATION))


def _expect_images(folder: Path, classes: Mapping[str, Sequence[Path]], least: int) -> None:
    for name, images in classes.items():
        if len(images) < least:
            raise unlike(folder / name, "images", f"at least {least}", len(images), "add some or leave the class out")


def count(_own: FolderOptions, data_dir: Path | None) -> int:
    """As many tasks as there are folders; without a directory, as many as there can be."""
    return MAX_TASKS if data_dir is None else len(task_folders(data_dir))


def task_folders(data_dir: Path) -> list[Path]:
    """The folder of each task."""
    folders = _folders(data_dir)
    if not 1 <= len(folders) <= MAX_TASKS:
        expected = f"1 to {MAX_TASKS}, and in each a folder per class"
        raise unlike(data_dir, "folders of tasks", expected, len(folders), "pass another folder with --data-dir")
    return folders


def read_images(files: Files, side: int) -> Examples:
    """Read the images of all classes, which are labelled in the order of their names."""
    paths = [path for images in files.values() for path in images]
    pixels = np.empty((len(paths), 3, side, side), np.uint8)
    for index, path in enumerate(paths):
        pixels[index] = read_image(path, (3, side, side))
    counts = torch.tensor([len(images) for images in files.values()])
    return Examples(torch.from_numpy(pixels), torch.arange(len(files)).repeat_interleave(counts))


def _divided(files: Files, generator: np.random.Generator) -> tuple[Files, Files]:
    """Four fifths of the images of each class, and the others."""
    train: Files = {}
    test: Files = {}
    for name, images in files.items():
        order = generator.permutation(len(images))
        chosen = {*order[: len(images) // FEWEST].tolist()}
        train[name] = [path for index, path in enumerate(images) if index not in chosen]
        test[name] = [path for index, path in enumerate(images) if index in chosen]
    return train, test


def raw(request: Request, _number: int) -> Raw:
    """What every task reads."""
    shape = (3, request.own.image_size, request.own.image_size)
    return Raw(shape, shape, 255, Colour(PHOTO_MEAN, PHOTO_STD))


def build(request: Request) -> Stream:
    """Build the stream; all images are found, and counted, before the first is read."""
    if request.data_dir == default_directory():
        raise ConfigError("folder: data_dir: expected a folder with a folder per task, got none; pass it as --data-dir")
    side = request.own.image_size
    listed = [list_task(folder) for folder in task_folders(request.data_dir)[: request.tasks]]
    images, most = sum(task.count() for task in listed), MOST_MEMORY // (3 * side * side)
    if images > most:
        raise DataError(
            f"{one_line(str(request.data_dir))}: images: expected at most {most:,} of {side}x{side}, which take "
            f"{MOST_MEMORY:,} bytes of memory, got {images:,}; pass a smaller --image-size or fewer --tasks"
        )

    def build_task(number: int) -> Task:
        task = listed[number]
        train, test = task.train, task.test
        if test is None:
            train, test = _divided(train, random(request.seed, "test-folder", number))
        learn, judge = read_images(train, side), read_images(test, side)
        if task.validation is not None:
            kept, held = learn, read_images(task.validation, side)
        else:
            kept, held = hold_out(learn, random(request.seed, "validation-folder", number))
        change = crop_and_flip if request.augment else None
        transform = raw(request, number).transform
        return classification_task(task.name, list(train), kept, held, judge, transform, change)

    network = ("cifar-net", {"dropout": [0.25, 0.25, 0.5], "side": side})
    return Stream("folder", network, request.tasks, build_task)


# Not in the paper: split CIFAR's settings with equal shares, and small batches, because a task may have few images.
_PAPER: dict[str, Any] = {
    **PAPER_SOLVER,
    "epochs": (20, 60, 20),
    "beta": 0.92,
    "dropout": (0.25, 0.25, 0.5),
    "batch_size": 32,
}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=MAX_TASKS,
    most=MAX_TASKS,
    presets={"quick": {**_PAPER, **QUICK, "epochs": (4, 12, 4)}, "paper": _PAPER},
    augments=True,
    count=count,
)
