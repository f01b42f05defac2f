"""The stream of radio transmitters from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lps.data import rf, stream
from lps.data.rf import UnitPower
from lps.errors import ConfigError, DataError

from tests.data.test_streams import arrays, check_labels, first, sizes


def test_radio_windows_are_cut_from_the_middle_and_have_unit_power() -> None:
    windows = torch.randint(0, 256, (3, 2, 101), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    windows[2] = 127  # the weakest signal there is
    seen = UnitPower(20, 61)(windows)
    assert seen.shape == (3, 2, 61)
    torch.testing.assert_close(seen.square().sum(1).mean(1), torch.ones(3))
    expected = windows[0, :, 20:81].double() - 127.5
    expected /= expected.square().sum(0).mean().sqrt()
    torch.testing.assert_close(seen[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_split_rf(tmp_path: Path) -> None:
    (tmp_path / "rf-ism50").mkdir()
    for part, count in (("train", 141), ("test", 55)):
        labels = np.tile(np.arange(50, dtype=np.uint8), count)
        iq = np.broadcast_to(labels[:, None, None], (len(labels), 2, 32))  # each sample tells the transmitter
        np.savez(tmp_path / "rf-ism50" / f"{part}.npz", iq=iq, labels=labels)
    tasks = stream("split-rf", data_dir=tmp_path, seed=5, options={"window": 16})
    again = stream("split-rf", data_dir=tmp_path / "rf-ism50", seed=5, tasks=2)
    seen: list[int] = []
    for number, task in enumerate(tasks):
        assert sizes(task) == (1_269, 141, 550)
        check_labels(task)
        test = arrays(task.test)
        chosen = [int(test.inputs[test.labels == label][0, 0, 0]) for label in range(10)]
        train = arrays(task.train)
        assert torch.equal(train.inputs[:, 0, 0], torch.tensor(chosen, dtype=torch.uint8)[train.labels])
        assert task.class_names == tuple(f"transmitter {transmitter}" for transmitter in chosen)
        if number < 2:
            assert torch.equal(train.inputs, arrays(again[number].train).inputs)
        seen += chosen
    assert sorted(seen) == list(range(50))
    assert seen != list(range(50))
    assert first(tasks[0]).shape == (8, 2, 16)
    assert first(again[0]).shape == (8, 2, 32)
    with pytest.raises(ConfigError, match="at most the 32 samples of a window, got 33"):
        stream("split-rf", data_dir=tmp_path, options={"window": 33})


def test_captures_of_individual_transmitters(tmp_path: Path) -> None:
    path = tmp_path / "captures.npz"
    signals = np.arange(2 * 5 * 2, dtype=np.int16).reshape(2, 5, 2)
    np.savez(path, iq=signals, transmitter=np.array([1, 3], np.uint8))
    read, transmitters = rf.read_captures(path)
    assert read.shape == (2, 2, 5)
    assert read[1, 0].tolist() == [10, 12, 14, 16, 18]
    assert transmitters.tolist() == [1, 3]
    np.savez(path, iq=signals, transmitter=np.array([1], np.uint8))
    with pytest.raises(DataError, match=r"captures.npz: length of transmitter: expected 2, one per capture, got 1"):
        rf.read_captures(path)
