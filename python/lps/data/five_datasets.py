"""five-datasets: CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, one task of ten classes each, in this order.

The tasks and their order are those of S. Ebrahimi et al., "Adversarial Continual Learning", 2020, and of later papers.
As there, grey images of 28x28 are padded with black to 32x32 and repeated to three channels. Unlike there, all images
have the scale of CIFAR-10's (as in ``mixed``: the first layers are largely frozen after task 1 and should see one
scale), and notMNIST is the author's archive, of which a tenth, chosen by the seed, is the test part.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from torch.nn.functional import pad

from lps.data import cifar, mnist, notmnist, svhn
from lps.data.base import Examples, Raw, Stream, classification_task, hold_out, random
from lps.data.benchmark import QUICK, Benchmark, Request
from lps.data.permuted import DIGITS
from lps.task import Task

FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

# Names of the tasks and of their classes.
SETS = {
    "cifar10": cifar.CIFAR10_NAMES,
    "mnist": DIGITS,
    "svhn": DIGITS,
    "fashion-mnist": FASHION_NAMES,
    "notmnist": notmnist.LETTERS,
}


class PaddedColour:
    """Grey images as colour images on the scale of CIFAR's."""

    def __init__(self) -> None:
        self.colour = cifar.Colour()

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, 784] to float32 [batch, 3, 32, 32]."""
        return self.colour(pad(images.view(-1, 1, 28, 28), (2, 2, 2, 2)).expand(-1, 3, -1, -1))


def raw(request: Request, number: int) -> Raw:
    """What task ``number``, counted from 0, reads."""
    if list(SETS)[number] in ("cifar10", "svhn"):
        return cifar.raw(request, number)
    return Raw((784,), (1, 28, 28), 255, PaddedColour())


def load(name: str, data_dir: Path, download: bool, seed: int) -> tuple[Examples, Examples]:
    """Read the training and test images of one of the sets."""
    if name == "cifar10":
        return cifar.load(cifar.CIFAR10, data_dir, download)
    if name == "mnist":
        return mnist.load(data_dir, download)
    if name == "svhn":
        return svhn.load(data_dir, download)
    if name == "fashion-mnist":
        # In a folder of their own: the files have the same names as those of MNIST.
        return mnist.load_like("Fashion-MNIST", (data_dir / "fashion-mnist",), download)
    return notmnist.load(data_dir, download, seed)


def build(request: Request) -> Stream:
    """Build the stream; a set is read when its task is."""

    def build_task(number: int) -> Task:
        name = list(SETS)[number]
        train, test = load(name, request.data_dir, request.download, request.seed)
        kept, held = hold_out(train, random(request.seed, f"validation-{name}"))
        return classification_task(name, SETS[name], kept, held, test, raw(request, number).transform)

    return Stream("five-datasets", cifar.NETWORK, request.tasks, build_task)


# Not in the paper. The 100 epochs are those of Kang et al., "Forget-free Continual Learning with Winning Subnetworks",
# 2022, divided among the phases as in the paper; tasks that differ drastically share little, as in section V.B.
_PAPER = {**cifar.PAPER, "epochs": (20, 60, 20), "alpha": 0.2, "beta": 0.2}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=5,
    most=5,
    presets={"quick": {**_PAPER, **QUICK, "epochs": (1, 3, 1)}, "paper": _PAPER},
)
