"""Permuted pixels: every task shows the same images with their pixels in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lps.data.base import Examples, Network, Raw, Stream, classification_task, hold_out, random
from lps.data.benchmark import PAPER_SOLVER, Request
from lps.task import Task

DIGITS = tuple("0123456789")  # the names of the classes

# Table I of the paper for permuted MNIST; batches of 128 and a constant learning rate of 1e-3 are the defaults.
PAPER: dict[str, Any] = {**PAPER_SOLVER, "epochs": (30, 90, 30), "alpha": 0.1, "beta": 0.9, "dropout": 0.5}


def permutation(seed: int, number: int, pixels: int) -> Tensor | None:
    """The order of the pixels in permutation ``number``; None for number 0, which leaves them as they are."""
    return torch.from_numpy(random(seed, "permutation", number).permutation(pixels)) if number else None


@dataclass(frozen=True)
class Permute:
    """Reorder the pixels of flat images and scale them from 0..``top`` to 0..1."""

    order: Tensor | None
    top: int

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, pixels] to float32 of the same shape."""
        scaled = images.to(torch.float32).div_(self.top)
        # After the conversion: choosing columns of floats is more than twice as fast as of bytes.
        return scaled if self.order is None else scaled.index_select(1, self.order)


def permuted_raw(seed: int, number: int, side: int, top: int) -> Raw:
    """Flat square images of 0..``top`` in permutation ``number``."""
    pixels = side * side
    return Raw((pixels,), (1, side, side), top, Permute(permutation(seed, number, pixels), top))


def permuted_stream(
    name: str, network: Network, train: Examples, test: Examples, raw: Callable[[Request, int], Raw], request: Request
) -> Stream:
    """A stream of permutations of one set of flat images; task 1 is not permuted.

    All tasks hold out the same examples, so that they share one copy of the images.
    """
    learn, validation = hold_out(train, random(request.seed, "validation"))

    def build(number: int) -> Task:
        transform = raw(request, number).transform
        return classification_task(f"{name}-{number + 1}", DIGITS, learn, validation, test, transform)

    return Stream(name, network, request.tasks, build)
