"""mixed: tasks that differ drastically; permuted MNIST in tasks 1, 3 and 5, ten classes of CIFAR-100 in 2 and 4.

Each MNIST task has its own permutation (none is the original order); CIFAR-100 gives classes 0 to 9, then 10 to
19. As in section V.B of the paper, digits are permuted at 28x28, then repeated to three channels and resized to 32x32.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import interpolate

from lps.data import cifar, mnist
from lps.data.base import Raw, Stream, classification_task, hold_out, random
from lps.data.benchmark import QUICK, Benchmark, Request
from lps.data.permuted import DIGITS, Permute, permutation
from lps.task import Task


class AsColour:
    """Permuted digits as colour images on the scale of CIFAR's."""

    def __init__(self, order: Tensor | None) -> None:
        self.permute = Permute(order, 1)  # keeps 0..255, which Colour expects
        self.colour = cifar.Colour()

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, 784] to float32 [batch, 3, 32, 32]."""
        grey = self.permute(images).view(-1, 1, 28, 28)
        # Resizing one channel and repeating it gives the same as the other way round.
        large: Tensor = interpolate(grey, (32, 32), mode="bilinear", align_corners=False)
        return self.colour(large.expand(-1, 3, -1, -1))


def raw(request: Request, number: int) -> Raw:
    """What task ``number``, counted from 0, reads."""
    if number % 2:
        return cifar.raw(request, number)
    return Raw((784,), (1, 28, 28), 255, AsColour(permutation(request.seed, number // 2 + 1, 784)))


def build(request: Request) -> Stream:
    """Build the stream; CIFAR-100 is read only if there is a second task."""
    train, test = mnist.load(request.data_dir, request.download)
    digits, validation = hold_out(train, random(request.seed, "validation"))
    hundred = cifar.load(cifar.CIFAR100, request.data_dir, request.download) if request.tasks > 1 else None

    def build_task(number: int) -> Task:
        if number % 2 == 0 or hundred is None:
            transform = raw(request, number).transform
            return classification_task(f"mnist-{number // 2 + 1}", DIGITS, digits, validation, test, transform)
        return cifar.part_of_hundred(*hundred, first=10 * (number // 2), seed=request.seed, augment=request.augment)

    return Stream("mixed", cifar.NETWORK, request.tasks, build_task)


# Section V.B: among tasks that differ drastically, reusing a fifth is best.
_PAPER = {**cifar.PAPER, "alpha": 0.2, "beta": 0.2}
# As in split-cifar: a task of CIFAR-100 has a twelfth of the images of MNIST, and gets three times as many epochs.
_QUICK = {
    **_PAPER,
    **QUICK,
    "epochs": tuple((3, 9, 3) if number % 2 else (1, 3, 1) for number in range(5)),
    "batch_size": 32,
    "channels_last": True,
}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=5,
    most=5,
    presets={"quick": _QUICK, "paper": _PAPER},
    augments=True,  # the images of CIFAR-100; permuted digits stay as they are
)
