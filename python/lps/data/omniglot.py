"""omniglot-rotation: 1,200 handwritten characters in 100 tasks of twelve, with every drawing in four rotations.

Read from the official ``images_background.zip`` and ``images_evaluation.zip``, or the folders that they unpack to. The
characters are the first 1,200 of 1,623 in the order of their paths, the background alphabets first; a task takes twelve
in a row, so that most of its characters come from one alphabet. Each character has 20 drawings, of 20 people; each
drawing is reduced from 105x105 to 32x32 (averaging) and shown turned by 0, 90, 180 and 270 degrees as the same class:
80 images of a class, of which 60 are for training and 20 for the test.

The test consists of five drawings of each character, chosen by the seed of the stream, in all rotations, and of the
other 15 two are held out for validation. This differs from the code of Kang et al., "Forget-free Continual
Learning with Winning Subnetworks", 2022, which has the same 1,200 characters in 100 tasks of twelve (in the order in
which the file system lists them) and as many images, but divides the 80 images at random: there, most test images are
rotations of a drawing that is trained on. Results cannot be compared with theirs.

Ink is 1 and paper 0, as in MNIST. B. Lake, R. Salakhutdinov, J. Tenenbaum, "Human-level concept learning through
probabilistic program induction", 2015.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lps.data.base import Examples, Network, Raw, Stream, classification_task, random
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request
from lps.data.files import Bytes, unlike
from lps.data.images import decode
from lps.data.trees import Tree, fetch_missing, open_tree
from lps.options import shown
from lps.task import Task

ARCHIVES = {"images_background.zip": 964, "images_evaluation.zip": 659}  # and their characters
TASKS, EACH, DRAWINGS = 100, 12, 20
TEST, VALIDATION = 5, 2  # drawings of each character
SIDE, LARGE = 32, 105
MOST_BYTES = 2**14  # of one image
NETWORK: Network = ("cifar-net", {"dropout": [0.25, 0.25, 0.5], "side": SIDE, "channels": 1})


def characters(tree: Tree, count: int) -> list[list[str]]:
    """The files of the 20 drawings of each character in an archive."""
    paths = [PurePosixPath(name) for name in tree.names()]
    drawings = [path for path in paths if len(path.parts) == 4 and path.suffix == ".png" and path.name[0] != "."]
    root = tree.path.name.removesuffix(".zip")
    found = [
        [str(path) for path in group]
        for folder, group in groupby(drawings, lambda path: path.parent)
        if folder.parts[0] == root
    ]
    if len(found) != count:
        raise unlike(tree.path, "characters", count, len(found))
    for files in found:
        if len(files) != DRAWINGS:
            raise unlike(tree.path, f"drawings of {shown(str(Path(files[0]).parent))}", DRAWINGS, len(files))
    return found


def read_drawing(tree: Tree, name: str) -> Bytes:
    """A drawing of 105x105 black and white pixels as 32x32 with values 0 to 255."""
    large = decode(tree.read(name, MOST_BYTES), tree.path, shown(name), "PNG", (LARGE, LARGE), "L", others=("1",))
    return np.array(Image.fromarray(large).resize((SIDE, SIDE), Image.Resampling.BOX))


def in_four_rotations(drawings: Bytes) -> Examples:
    """Drawings [characters, drawings, 32, 32] in all rotations, labelled by character."""
    turned = np.stack([np.rot90(drawings, quarter, (2, 3)) for quarter in range(4)], 2)
    labels = torch.arange(len(drawings), dtype=torch.uint8).repeat_interleave(4 * drawings.shape[1])
    return Examples(torch.from_numpy(turned.reshape(-1, 1, SIDE, SIDE)), labels)


class Ink:
    """Scale bytes of black ink on white paper to 1 and 0."""

    def __call__(self, images: Tensor) -> Tensor:
        """Map [batch, 1, 32, 32] with values 0..255 to float32."""
        return 1 - images.to(torch.float32).div_(255)


def raw(_request: Request, _number: int) -> Raw:
    """What every task reads."""
    return Raw((1, SIDE, SIDE), (1, SIDE, SIDE), 255, Ink())


def build(request: Request) -> Stream:
    """Build the stream; a task is decoded when it is asked for."""
    if request.download:
        fetch_missing("omniglot", request.data_dir, *ARCHIVES)
    trees = [open_tree("Omniglot", request.data_dir, archive) for archive in ARCHIVES]
    found = [
        (tree, files) for tree, count in zip(trees, ARCHIVES.values(), strict=True) for files in characters(tree, count)
    ]

    def build_task(number: int) -> Task:
        chosen = found[EACH * number : EACH * (number + 1)]
        drawings = np.stack([np.stack([read_drawing(tree, name) for name in files]) for tree, files in chosen])
        orders = random(request.seed, "omniglot", number).permuted(np.tile(np.arange(DRAWINGS), (EACH, 1)), axis=1)
        mixed = np.take_along_axis(drawings, orders[:, :, None, None], 1)
        test, held, kept = np.split(mixed, [TEST, TEST + VALIDATION], 1)
        names = ["/".join(Path(files[0]).parts[1:3]) for _, files in chosen]
        train, validation, judge = map(in_four_rotations, (kept, held, test))
        transform = raw(request, number).transform
        return classification_task(f"omniglot-{number + 1}", names, train, validation, judge, transform)

    return Stream("omniglot-rotation", NETWORK, request.tasks, build_task)


# Not in the paper. The 100 epochs are those of Kang et al., divided among the phases as in the paper; the share that is
# reused is the paper's for permuted MNIST, whose tasks are alike too.
_PAPER: dict[str, Any] = {
    **PAPER_SOLVER,
    "epochs": (20, 60, 20),
    "alpha": 0.01,
    "beta": 0.9,
    "dropout": (0.25, 0.25, 0.5),
}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=TASKS,
    most=TASKS,
    # Few images per task: small batches for enough steps.
    presets={"quick": {**_PAPER, **QUICK, "epochs": (2, 6, 2), "batch_size": 32}, "paper": _PAPER},
)
