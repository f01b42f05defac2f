"""A ResNet learns three tasks from images in folders: one per task, in it `train` and `test`, in these one per class.

The images are made here: coloured discs, stripes and crosses. For folders like these nothing has to be written at all
(`lps train --benchmark folder --data-dir DIR`); this is the same with a data set class, a network and augmentation of
your own.

    python examples/resnet_folders.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lps
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

SIDE = 24
TASKS = {"colour": ("red", "green", "blue"), "shape": ("disc", "stripes", "cross"), "place": ("left", "right")}


def draw(task: str, kind: str, random: np.random.Generator) -> Image.Image:
    """A picture of this class; what the task does not ask for is drawn at random."""
    colour = kind if task == "colour" else random.choice(TASKS["colour"])
    shape = kind if task == "shape" else random.choice(TASKS["shape"])
    place = kind if task == "place" else random.choice(TASKS["place"])
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE // 2
    x = x + (SIDE // 5 if place == "left" else -SIDE // 5) + random.integers(-1, 2)
    inside = {"disc": x**2 + y**2 < 36, "stripes": (abs(x) < 6) & (y % 4 < 2), "cross": (abs(x) < 2) | (abs(y) < 2)}[
        shape
    ]
    inside &= abs(x) < 7
    pixels = random.integers(0, 90, (SIDE, SIDE, 3))
    pixels[inside, TASKS["colour"].index(colour)] += 150
    return Image.fromarray(pixels.astype(np.uint8))


def make_images(folder: Path) -> None:
    """Write 60 training and 30 test images of every class."""
    random = np.random.default_rng(0)
    for task, kinds in TASKS.items():
        for part, count in (("train", 60), ("test", 30)):
            for kind in kinds:
                place = folder / task / part / kind
                place.mkdir(parents=True)
                for number in range(count):
                    draw(task, kind, random).save(place / f"{number}.png")


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images of a folder per class, read when they are asked for; torchvision's class of this name works too."""

    def __init__(self, folder: Path) -> None:
        self.classes = sorted(path.name for path in folder.iterdir())
        self.files = [(path, label) for label, kind in enumerate(self.classes) for path in (folder / kind).iterdir()]
        self.files.sort()

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image as floats around 0 and the number of its class."""
        path, label = self.files[index]
        with Image.open(path) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB")))
        return pixels.permute(2, 0, 1).float() / 128 - 1, label


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Half as high and wide with a stride of 2."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(width: int = 16) -> nn.Module:
    """A small ResNet without its last layer: every task gets a head of its own."""
    stem = (nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    blocks = (Block(width, width, 2), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def main(folder: Path) -> None:
    """Make the images, learn the tasks, and answer from the one file."""
    folder.mkdir(parents=True, exist_ok=True)
    images = folder / "images"
    make_images(images)

    torch.manual_seed(0)
    # Batch normalisation has running statistics; every task gets its own copy of them by default.
    net = lps.Lifelong(resnet(), features=64)
    config = lps.LPSConfig(
        alpha=0.3, beta="auto", solver="straight-through", epochs=(2, 5, 2), schedule="cosine", batch_size=30, lr=3e-3
    )
    for name in TASKS:
        train, test = ImageFolder(images / name / "train"), ImageFolder(images / name / "test")
        names = tuple(train.classes)
        net.learn(lps.Task(name, len(names), train, test, class_names=names), config)
        print(f"{name}: {100 * net.accuracy(len(net.learnt), test):.1f} % of the test images")
    net.save(folder / "model.lps")

    # In another process: the file holds weights alone, so the network is made the same way first.
    again = lps.load(folder / "model.lps", resnet()).eval()
    print("after all three tasks:")
    for number, name in enumerate(TASKS, 1):
        test = ImageFolder(images / name / "test")
        print(f"  {name}: {100 * again.accuracy(number, test):.1f} %")
    pixels, label = ImageFolder(images / "shape" / "test")[0]
    logits = again(pixels[None], task=2)
    print(f"an image of {class_name(again, 2, label)} is seen as {class_name(again, 2, int(logits.argmax()))}")


def class_name(net: lps.Lifelong, task: int, label: int) -> str:
    """The name of a class, from the file."""
    return net.learnt[task - 1].class_names[label]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
