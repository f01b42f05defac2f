"""One flipped bit anywhere in a file is noticed: 1,000 places of a model and 1,000 of the state of a task."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lps
import pytest
import torch
from lps import Lifelong
from lps.errors import FileFormatError, StoppedError
from lps.runs.checkpoint import Checkpoint

from tests.artifact.test_damage import small_mlp
from tests.runs.test_checkpoint import StopAt
from tests.toy import QUICK, toy_task

PLACES = 1000
CONFIG = replace(QUICK, epochs=(1, 1, 0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A network of two tasks, and the state of its third one in the middle of ADMM."""
    directory = tmp_path_factory.mktemp("bits")
    torch.manual_seed(0)
    net = Lifelong(small_mlp(), features=9)
    for seed in range(2):
        net.learn(toy_task(seed), CONFIG)
    net.save(directory / "model.lps")
    checkpoint = Checkpoint(directory / "state")
    with pytest.raises(StoppedError):
        net.learn(toy_task(2), CONFIG, listener=StopAt(checkpoint, 7), checkpoint=checkpoint)
    (state,) = (directory / "state").iterdir()
    return directory / "model.lps", state


def damaged(content: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """The content with one bit flipped, at places that are spread evenly over it and drawn within each stretch."""
    draw, bits = random.Random(seed), 8 * len(content)
    for index in range(PLACES):
        place = draw.randrange(index * bits // PLACES, (index + 1) * bits // PLACES)
        copy = bytearray(content)
        copy[place // 8] ^= 1 << place % 8
        yield place, bytes(copy)


def unnoticed(path: Path, content: bytes, read: Callable[[Path], object], seed: int) -> list[int]:
    """The places whose bit can be flipped without a refusal that names the file."""
    places = []
    for place, copy in damaged(content, seed):
        path.write_bytes(copy)
        try:
            read(path)
        except FileFormatError as error:
            message = str(error)
            if message.isprintable() and len(message) < 500 and str(path) in message:
                continue
        places.append(place)
    return places


def test_of_a_model(files: tuple[Path, Path], tmp_path: Path) -> None:
    content = files[0].read_bytes()
    assert unnoticed(tmp_path / "model.lps", content, lps.load, seed=1) == []


def test_of_a_state(files: tuple[Path, Path], tmp_path: Path) -> None:
    content = files[1].read_bytes()
    path = tmp_path / files[1].name
    assert unnoticed(path, content, lambda path: Checkpoint(path.parent).load(), seed=2) == []


def test_a_state_before_the_damaged_one_is_taken(files: tuple[Path, Path], tmp_path: Path) -> None:
    """As a kill between writing a state and deleting the one before leaves them."""
    content = files[1].read_bytes()
    (tmp_path / "state-1.safetensors").write_bytes(content)
    whole = Checkpoint(tmp_path).load()
    assert whole is not None
    for _, copy in list(damaged(content, 3))[::50]:
        (tmp_path / "state-2.safetensors").write_bytes(copy)
        state = Checkpoint(tmp_path).load()
        assert state is not None
        assert state["position"] == whole["position"]
        assert torch.equal(state["learner"]["v"][0], whole["learner"]["v"][0])
