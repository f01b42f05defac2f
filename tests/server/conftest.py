"""Files to serve: three tasks of other classes, the same with another third task, and images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lps import Lifelong, LPSConfig
from lps.models import create

from tests.toy import QUICK, toy_task

CLASSES = (3, 2, 4)


def learnt(*seeds: int) -> Lifelong:
    """A network for inputs of 12 numbers whose task i has ``CLASSES[i]`` classes, learnt with this seed."""
    torch.manual_seed(0)
    net = Lifelong(create("mlp", inputs=12, hidden=[24, 16], dropout=0.1), features=16, quiet=True)
    for seed, classes in zip(seeds, CLASSES, strict=True):
        net.learn(toy_task(seed, classes=classes), QUICK, progress=False)
    return net


@pytest.fixture(scope="session")
def served_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model.lps``, ``other.lps`` (another third task) and ``colour.lps`` (images of 3x32x32)."""
    folder = tmp_path_factory.mktemp("served")
    learnt(0, 1, 2).save(folder / "model.lps")
    learnt(0, 1, 7).save(folder / "other.lps")
    colour = Lifelong(create("cifar-net"), features=512, quiet=True)
    colour.learn(toy_task(0, (3, 32, 32)), LPSConfig(alpha=0.3, epochs=(0, 1, 0)), progress=False)
    colour.save(folder / "colour.lps")
    return folder
