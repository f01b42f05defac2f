"""split-tinyimagenet: the 200 classes of TinyImageNet in 10 tasks of 20 (``--split 10``) or 40 of five.

Read from the official ``tiny-imagenet-200.zip`` or the folder that it unpacks to. Classes are in the order of
``wnids.txt`` and have its names. The official test images have no labels: the 50 validation images of each class are
the test, as is usual, and a tenth of the 500 training images is held out for validation. Images are 3x64x64. A task is
decoded when it is asked for; all tasks together take 1.4 GB.

Y. Le and X. Yang, "Tiny ImageNet Visual Recognition Challenge", 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lps.data.augment import crop_and_flip
from lps.data.base import Examples, Network, Raw, Stream, classification_task, hold_out, random
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request, one_of
from lps.data.cifar import Colour
from lps.data.files import unlike
from lps.data.images import decode
from lps.data.trees import Tree, fetch_missing, open_tree
from lps.options import shown
from lps.task import Task

ARCHIVE, ROOT = "tiny-imagenet-200.zip", "tiny-imagenet-200"
CLASSES, TRAIN, TEST = 200, 500, 50  # classes, training and test images of each
SIDE = 64
NETWORK: Network = ("cifar-net", {"dropout": [0.25, 0.25, 0.5], "side": SIDE})

# Mean and standard deviation of ImageNet's training pixels in red, green and blue, as widely published.
PHOTO_MEAN = (0.485, 0.456, 0.406)
PHOTO_STD = (0.229, 0.224, 0.225)

MOST_BYTES = 2**17  # of one image; the largest has some thousands
MOST_TEXT = 2**21  # bytes of a list; that of the validation images has 400,000


def lines(tree: Tree, name: str) -> list[str]:
    """The lines of a text in the archive."""
    try:
        return tree.read(f"{ROOT}/{name}", MOST_TEXT).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise unlike(tree.path, name, "ASCII text", "other bytes") from None


def class_names(tree: Tree) -> list[str]:
    """The 200 names of classes, as in ``n01443537``."""
    names = [line.strip() for line in lines(tree, "wnids.txt") if line.strip()]
    if len(set(names)) != CLASSES or len(names) != CLASSES or not all(map(str.isalnum, names)):
        raise unlike(tree.path, "wnids.txt", f"{CLASSES} different names", f"{len(set(names))}")
    return names


def test_images(tree: Tree, names: Sequence[str]) -> dict[str, list[str]]:
    """The files of the 50 validation images of each class."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in lines(tree, "val/val_annotations.txt"):
        file, name, *_ = [*line.split("\t"), "", ""]
        if name not in found or not file.removesuffix(".JPEG").replace("_", "").isalnum():
            raise unlike(tree.path, "a line of val_annotations.txt", "an image and its class", shown(line))
        found[name].append(f"{ROOT}/val/images/{file}")
    for name, files in found.items():
        if len(set(files)) != TEST or len(files) != TEST:
            raise unlike(tree.path, f"validation images of {name}", TEST, len(set(files)))
    return found


def read_images(tree: Tree, files: Sequence[Sequence[str]]) -> Examples:
    """Decode the images of some classes, labelled 0, 1, ... in their order."""
    names = [name for group in files for name in group]
    pixels = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
    for index, name in enumerate(names):
        image = decode(
            tree.read(name, MOST_BYTES), tree.path, shown(name), "JPEG", (SIDE, SIDE), "RGB", others=("L", "CMYK")
        )
        pixels[index] = image.transpose(2, 0, 1)
    labels = torch.arange(len(files), dtype=torch.uint8).repeat_interleave(torch.tensor([*map(len, files)]))
    return Examples(torch.from_numpy(pixels), labels)


def raw(_request: Request, _number: int) -> Raw:
    """What every task reads."""
    return Raw((3, SIDE, SIDE), (3, SIDE, SIDE), 255, Colour(PHOTO_MEAN, PHOTO_STD))


def build(request: Request) -> Stream:
    """Build the stream."""
    if request.download:
        fetch_missing("tinyimagenet", request.data_dir, ARCHIVE)
    tree = open_tree("TinyImageNet", request.data_dir, ARCHIVE)
    names = class_names(tree)
    tests = test_images(tree, names)
    each = CLASSES // request.own.split

    def build_task(number: int) -> Task:
        chosen = names[each * number : each * (number + 1)]
        train = read_images(
            tree, [[f"{ROOT}/train/{name}/images/{name}_{i}.JPEG" for i in range(TRAIN)] for name in chosen]
        )
        kept, held = hold_out(train, random(request.seed, "validation-tinyimagenet", each * number))
        test = read_images(tree, [tests[name] for name in chosen])
        title = f"tinyimagenet-{each * number}-{each * (number + 1) - 1}"
        change = crop_and_flip if request.augment else None
        return classification_task(title, chosen, kept, held, test, raw(request, number).transform, change)

    return Stream("split-tinyimagenet", NETWORK, request.tasks, build_task)


# Not in the paper. Ten epochs in batches of ten are those of Kang et al., "Forget-free Continual Learning with Winning
# Subnetworks", 2022, divided among the phases as in the paper; the rest is the paper's for split CIFAR.
_PAPER: dict[str, Any] = {
    **PAPER_SOLVER,
    "epochs": (2, 6, 2),
    "batch_size": 10,
    "beta": 0.92,
    "dropout": (0.25, 0.25, 0.5),
}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=10,
    most=40,
    presets={"quick": {**_PAPER, **QUICK, "epochs": (1, 3, 1), "batch_size": 32}, "paper": _PAPER},
    augments=True,
    count=one_of("split-tinyimagenet", 10, 40),
)
