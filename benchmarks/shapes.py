"""Shapes of the prunable weights of the paper's three networks, and one layer that no cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

Shape = tuple[int, ...]

# 784-2000-2000; the head is not prunable.
MLP: tuple[Shape, ...] = ((2000, 784), (2000, 2000))

# Two pairs of 3x3 convolutions, then 64 channels of 5x5 into 512 features.
CIFAR: tuple[Shape, ...] = ((32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (512, 1600))


def _resnet50_1d() -> Iterator[Shape]:
    """The 53 convolutions of ResNet50 in one dimension, for signals of two channels."""
    channels, expansion = 64, 4
    yield (channels, 2, 7)
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            yield (width, channels, 1)
            yield (width, width, 3)
            yield (width * expansion, width, 1)
            if block == 0:
                yield (width * expansion, channels, 1)
            channels = width * expansion


RESNET50_1D: tuple[Shape, ...] = tuple(_resnet50_1d())

# 256 MB in fp32, eight times the last-level cache of the machine that the bounds were set on.
LARGE: tuple[Shape, ...] = ((8000, 8000),)

NETWORKS: dict[str, tuple[Shape, ...]] = {"mlp": MLP, "cifar": CIFAR, "resnet50-1d": RESNET50_1D, "64m": LARGE}


def weights(shapes: tuple[Shape, ...]) -> int:
    """How many weights layers of these shapes have together."""
    return sum(prod(shape) for shape in shapes)
