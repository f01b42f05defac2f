"""split-mnist: five tasks of two digits each, 0 and 1 first, read from the four official idx files of MNIST."""

from __future__ import annotations

from lps.data import mnist
from lps.data.base import Network, Raw, Stream, classification_task, hold_out, of_classes, random
from lps.data.benchmark import QUICK, Benchmark, Request
from lps.data.permuted import DIGITS, PAPER, Permute
from lps.task import Task

# Small: two digits are easy to tell apart.
NETWORK: Network = ("mlp", {"inputs": 784, "hidden": [400, 400], "dropout": 0.5})


def raw(_request: Request, _number: int) -> Raw:
    """What every task reads."""
    return Raw((784,), (1, 28, 28), 255, Permute(None, 255))


def build(request: Request) -> Stream:
    """Build the stream."""
    train, test = mnist.load(request.data_dir, request.download)

    def build_task(number: int) -> Task:
        digits = (2 * number, 2 * number + 1)
        kept, held = hold_out(of_classes(train, digits), random(request.seed, "validation-split", number))
        names = [DIGITS[digit] for digit in digits]
        transform = raw(request, number).transform
        return classification_task(f"mnist-{'-'.join(names)}", names, kept, held, of_classes(test, digits), transform)

    return Stream("split-mnist", NETWORK, request.tasks, build_task)


# Not in the paper: permuted MNIST with five tasks.
_PAPER = {**PAPER, "alpha": 0.2}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=5,
    most=5,
    presets={"quick": {**_PAPER, **QUICK, "epochs": (1, 3, 1), "dropout": 0.2}, "paper": _PAPER},
)
