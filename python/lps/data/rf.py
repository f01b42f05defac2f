"""split-rf: which of ten radio transmitters sent a signal; 50 transmitters in five tasks.

``train.npz`` and ``test.npz`` each hold ``iq``, uint8 [windows, 2, samples], the I and Q samples of a window of radio
signal as an 8-bit receiver gives them (127.5 is zero), and ``labels``, uint8 [windows], the transmitters 0 to 49; 141
windows per transmitter are for training and 55 for the test, as many as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lps.data.base import Examples, Network, Raw, Stream, classification_task, hold_out, of_classes, random
from lps.data.benchmark import PAPER_SOLVER, QUICK, Benchmark, Request
from lps.data.files import REPLACE, check_labels, missing, read_npz, unlike
from lps.errors import ConfigError
from lps.task import Task

TRANSMITTERS = 50
TRAIN_WINDOWS, TEST_WINDOWS = 141, 55  # per transmitter
NETWORK: Network = ("resnet50-1d", {"channels": 2})

# Table I of the paper.
_PAPER: dict[str, Any] = {**PAPER_SOLVER, "epochs": (20, 60, 20), "alpha": 0.2, "beta": 0.9, "pattern": "column"}
# 1,269 windows per task: so few need small batches for enough steps, and what is left of the columns much retraining.
# Task 1 has nothing to reuse, and gets more columns. The network has running statistics, which must be each task's own.
_QUICK = {
    **_PAPER,
    **QUICK,
    "epochs": ((2, 6, 12), (2, 6, 6)),
    "alpha": (0.4, 0.15),
    "batch_size": 32,
    "window": 256,
    "norms": "per-task",
}
PRESETS = {"quick": _QUICK, "paper": _PAPER}


@dataclass(frozen=True)
class UnitPower:
    """Cut windows, move their zero from 127.5 to 0 and scale each to a mean power (I squared plus Q squared) of 1."""

    start: int
    length: int

    def __call__(self, windows: Tensor) -> Tensor:
        """Map uint8 [batch, 2, samples] to float32 [batch, 2, length]."""
        signal = windows[..., self.start : self.start + self.length].to(torch.float32).sub_(127.5)
        # Never 0: no byte is closer to 127.5 than 0.5.
        power = signal.square().sum((1, 2), keepdim=True).div_(self.length)
        return signal.mul_(power.rsqrt_())


def read(path: Path, windows: int) -> Examples:
    """Read a file with this many windows of each of the 50 transmitters."""
    count = TRANSMITTERS * windows
    arrays = read_npz(path, {"iq": (count, 2, None), "labels": (count,)})
    labels = arrays["labels"]
    check_labels(path, labels, TRANSMITTERS, REPLACE)
    counts = np.bincount(labels, minlength=TRANSMITTERS)
    if (counts != windows).any():
        first = int(np.flatnonzero(counts != windows)[0])
        raise unlike(path, f"windows of transmitter {first}", windows, counts[first], REPLACE)
    return Examples(torch.from_numpy(arrays["iq"]), torch.from_numpy(labels))


def load(data_dir: Path) -> tuple[Examples, Examples]:
    """Read the training and test windows from ``data_dir`` or its folder ``rf-ism50``."""
    folders = (data_dir, data_dir / "rf-ism50")
    folder = next((folder for folder in folders if (folder / "train.npz").exists()), None)
    if folder is None:
        remedy = "pass the directory that holds it with --data-dir, or take synthetic-rf, which needs no files"
        raise missing("split-rf", ("train.npz",), folders, remedy)
    train, test = read(folder / "train.npz", TRAIN_WINDOWS), read(folder / "test.npz", TEST_WINDOWS)
    samples = train.inputs.shape[2]
    if test.inputs.shape[2] != samples or samples == 0:
        got = f"{samples} and {test.inputs.shape[2]}"
        raise unlike(folder, "samples in a window of train.npz and test.npz", "the same, at least 1", got, REPLACE)
    return train, test


def read_captures(path: Path) -> tuple[Tensor, Tensor]:
    """Read captures of individual transmitters: signals, float32 [captures, 2, samples], and the transmitter of each.

    The file holds ``iq``, int16 [captures, samples, 2], and ``transmitter``, uint8 [captures]. There is no benchmark of
    such files: a few captures are too little for tasks, but enough to try a network on devices of one kind.
    """
    arrays = read_npz(path, {"iq": (None, None, 2), "transmitter": (None,)}, iq=np.int16)
    signals, transmitters = arrays["iq"], arrays["transmitter"]
    if len(signals) != len(transmitters):
        raise unlike(path, "length of transmitter", f"{len(signals)}, one per capture", len(transmitters), REPLACE)
    # Turned before they are widened, which takes half the memory.
    return torch.from_numpy(signals).mT.contiguous().to(torch.float32), torch.from_numpy(transmitters)


def middle(name: str, samples: int, window: int | None) -> UnitPower:
    """How to cut windows of ``samples`` samples: to ``window`` from their middle, or not at all."""
    length = samples if window is None else window
    if length > samples:
        raise ConfigError(f"{name}: window: expected at most the {samples} samples of a window, got {length}")
    return UnitPower((samples - length) // 2, length)


def raw(request: Request, _number: int) -> Raw:
    """What every task reads: windows of any length."""

    def transform(windows: Tensor) -> Tensor:
        return middle("radio signal", windows.shape[2], request.own.window)(windows)

    return Raw((2, None), None, 255, transform)


def partition_stream(name: str, train: Examples, test: Examples, request: Request) -> Stream:
    """A stream of five tasks, the 50 transmitters drawn into them at random."""
    transform = middle(name, train.inputs.shape[2], request.own.window)
    order = random(request.seed, "partition").permutation(TRANSMITTERS)

    def build_task(number: int) -> Task:
        chosen = order[10 * number : 10 * number + 10].tolist()
        kept, held = hold_out(of_classes(train, chosen), random(request.seed, "validation-rf", number))
        names = [f"transmitter {transmitter}" for transmitter in chosen]
        return classification_task(f"{name}-{number + 1}", names, kept, held, of_classes(test, chosen), transform)

    return Stream(name, NETWORK, request.tasks, build_task)


def build(request: Request) -> Stream:
    """Build the stream from files."""
    return partition_stream("split-rf", *load(request.data_dir), request)


BENCHMARK = Benchmark(build, raw, tasks=5, most=5, presets=PRESETS)
