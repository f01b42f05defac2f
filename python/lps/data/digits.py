"""permuted-digits: small real handwritten digits that come with the package.

1,797 images of 8x8 pixels with values 0 to 16, in the order in which scikit-learn's ``load_digits`` gives them: the
test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
1998, https://doi.org/10.24432/C50P49, licensed CC BY 4.0. Stored as bytes in ``digits.npz``; nothing else was changed.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from lps.data.base import Examples, Raw, Stream
from lps.data.benchmark import QUICK, Benchmark, Request
from lps.data.files import read_npz
from lps.data.permuted import PAPER, permuted_raw, permuted_stream
from lps_kernels.owner import MAX_TASKS


def load() -> tuple[Examples, Examples]:
    """Read the images as flat rows: 1,437 for training; for the test every fifth image of each class, 360 in all."""
    with resources.as_file(resources.files("lps.data") / "digits.npz") as path:
        arrays = read_npz(path, {"images": (1797, 64), "labels": (1797,)})
    # By class: the images come writer by writer in rows of 0 to 9, so that every fifth of all would favour some digits.
    by_class = np.argsort(arrays["labels"], kind="stable")
    test = np.zeros(1797, bool)
    test[by_class[::5]] = True
    everything = Examples(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))
    train, judge = (Examples(*(part[chosen] for part in everything)) for chosen in (~test, test))
    return train, judge


def raw(request: Request, number: int) -> Raw:
    """What task ``number``, counted from 0, reads."""
    return permuted_raw(request.seed, number, side=8, top=16)


def build(request: Request) -> Stream:
    """Build the stream; it needs no files."""
    network = ("mlp", {"inputs": 64, "hidden": [256, 256], "dropout": 0.2})
    return permuted_stream("permuted-digits", network, *load(), raw, request)


# A network so small gains nothing from a second thread, and waits for it when the other core is busy.
_QUICK = {**QUICK, "epochs": (20, 60, 20), "alpha": 0.2, "dropout": 0.2, "threads": 1}

BENCHMARK = Benchmark(
    build,
    raw,
    tasks=5,
    most=MAX_TASKS,
    presets={"quick": _QUICK, "paper": {**PAPER, "alpha": 0.2}},  # not in the paper: permuted MNIST with five tasks
)
