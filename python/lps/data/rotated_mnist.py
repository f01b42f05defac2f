"""rotated-mnist: ten tasks of MNIST, each with all its images turned by one angle.

Task 1 shows the images as they are. The angle of every later task is drawn evenly from 0 to 180 degrees, anticlockwise,
by the seed of the stream and the number of the task alone, so that more tasks leave the first ones as they are. (In
Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017, angles are of that range too, but grow
from task to task.) Pixels are interpolated bilinearly around the centre; what moves in from outside is black.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from lps.data import mnist
from lps.data.base import Raw, Stream, random
from lps.data.benchmark import Benchmark, Request
from lps.data.permuted import permuted_stream
from lps_kernels.owner import MAX_TASKS


def angle(seed: int, number: int) -> float:
    """By how many degrees task ``number``, counted from 0, turns its images anticlockwise."""
    return random(seed, "rotation", number).uniform(0, 180) if number else 0.0


@dataclass(frozen=True)
class Rotate:
    """Turn flat images of 28x28 anticlockwise by some degrees, and scale them from 0..255 to 0..1."""

    degrees: float

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [batch, 784] to float32 of the same shape."""
        scaled = images.to(torch.float32).div_(255)
        if self.degrees == 0:
            return scaled
        cosine, sine = (function(math.radians(self.degrees)) for function in (math.cos, math.sin))
        # Where each new pixel comes from; rows grow downwards, so that this turns anticlockwise.
        matrix = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]], device=images.device)
        grid = affine_grid(matrix.expand(len(images), 2, 3), [len(images), 1, 28, 28], align_corners=False)
        turned: Tensor = grid_sample(scaled.view(-1, 1, 28, 28), grid, mode="bilinear", align_corners=False)
        return turned.flatten(1)


def raw(request: Request, number: int) -> Raw:
    """What task ``number``, counted from 0, reads."""
    return Raw((784,), (1, 28, 28), 255, Rotate(angle(request.seed, number)))


def build(request: Request) -> Stream:
    """Build the stream; all tasks share one copy of the images."""
    return permuted_stream(
        "rotated-mnist", mnist.NETWORK, *mnist.load(request.data_dir, request.download), raw, request
    )


# Not in the paper: the settings of permuted MNIST.
BENCHMARK = Benchmark(build, raw, tasks=10, most=MAX_TASKS, presets=mnist.BENCHMARK.presets)
