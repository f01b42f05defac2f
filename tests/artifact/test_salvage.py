"""A file whose damage is in single tasks gives the others on request, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lps import Lifelong, load
from lps.artifact.one_task import one_task
from lps.errors import ConfigError, FileFormatError
from lps.models import mlp
from torch import Tensor

from tests.artifact.test_write import header_of
from tests.toy import QUICK, toy_task

INPUTS = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    """A file with three tasks, of which each reuses all earlier weights, and their logits when it was written."""
    torch.manual_seed(0)
    net = Lifelong(mlp(inputs=12, hidden=(7, 9), dropout=0.0), features=9)
    for seed in range(3):
        net.learn(toy_task(seed), replace(QUICK, beta=1.0, epochs=(0, 1, 0)))
    path = tmp_path_factory.mktemp("saved") / "model.lps"
    net.save(path)
    net.eval()
    return path, [net(INPUTS, task=task) for task in (1, 2, 3)]


def damaged(path: Path, tensor: str, to: Path) -> Path:
    """A copy with one bit of this tensor flipped."""
    header, data = header_of(path)
    content = bytearray(path.read_bytes())
    content[len(content) - len(data) + header[tensor]["data_offsets"][0]] ^= 1
    to.write_bytes(content)
    return to


@pytest.mark.parametrize(
    ("tensor", "lost"),
    [
        ("net/2/head/weight", {2}),
        ("net/3/mask/1.weight", {3}),
        ("net/3/values/4.weight", {3}),
        ("net/2/values/1.weight", {2, 3}),  # task 3 reuses them
    ],
)
def test_the_tasks_that_the_damage_does_not_reach_answer_as_before(
    saved: tuple[Path, list[Tensor]], tmp_path: Path, tensor: str, lost: set[int]
) -> None:
    path, logits = saved
    broken = damaged(path, tensor, tmp_path / "model.lps")
    task = min(lost)
    with pytest.raises(FileFormatError, match=f"{tensor}, which belongs to task {task}, is damaged.*salvage=True"):
        load(broken)
    net = load(broken, salvage=True)
    assert {number for number, learnt in enumerate(net.learnt, 1) if learnt.damage} == lost
    assert net.active == max({1, 2, 3} - lost)
    for number in (1, 2, 3):
        if number not in lost:
            assert torch.equal(net(INPUTS, task=number), logits[number - 1])
            assert torch.equal(net(INPUTS, task=[number] * 5), load(path)(INPUTS, task=[number] * 5))
            assert torch.equal(one_task(net, number)(INPUTS, task=1), logits[number - 1])
            continue
        asked: list[Callable[[int], object]] = [
            lambda task: net(INPUTS, task=task),
            lambda task: net.serve(INPUTS, [task] * 5),
            net.extract,
            lambda task: one_task(net, task),
        ]
        for ask in asked:
            with pytest.raises(ConfigError, match=f"task {number} .*could not be salvaged: tensor {tensor} damaged"):
                ask(number)


def test_a_salvaged_network_neither_learns_nor_is_saved(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    net = load(damaged(saved[0], "net/2/head/bias", tmp_path / "broken.lps"), salvage=True)
    with pytest.raises(ConfigError, match=r"task 2 .*could not be salvaged"):
        net.learn(toy_task(3), QUICK)
    with pytest.raises(ConfigError, match=r"task 2 .*could not be salvaged"):
        net.save(tmp_path / "again.lps")
    assert not (tmp_path / "again.lps").exists()


def test_unused_bits_of_a_damaged_mask_do_no_harm(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    """Flipped in the last bit of the last byte, which no weight has, a mask still says the same."""
    path, logits = saved
    name = "net/2/mask/1.weight"
    header, data = header_of(path)
    content = bytearray(path.read_bytes())
    content[len(content) - len(data) + header[name]["data_offsets"][1] - 1] ^= 0x80
    broken = tmp_path / "model.lps"
    broken.write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        load(broken)
    net = load(broken, salvage=True)
    assert not any(learnt.damage for learnt in net.learnt)
    assert all(torch.equal(net(INPUTS, task=task), logits[task - 1]) for task in (1, 2, 3))


@pytest.mark.parametrize("tensor", ["net/all/owner/1.weight", "net/all/common/1.bias", "checksum"])
def test_damage_that_every_task_depends_on_is_refused(
    saved: tuple[Path, list[Tensor]], tmp_path: Path, tensor: str
) -> None:
    broken = damaged(saved[0], tensor, tmp_path / "model.lps")
    with pytest.raises(FileFormatError, match="damaged"):
        load(broken, salvage=True)


def test_a_file_without_a_whole_task_is_refused(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    broken = damaged(saved[0], "net/1/values/1.weight", tmp_path / "model.lps")  # every later task reuses them
    with pytest.raises(FileFormatError, match=r"no task is left whole: tensor net/1/values/1.weight damaged"):
        load(broken, salvage=True)


def test_eval_shows_what_is_left(saved: tuple[Path, list[Tensor]], tmp_path: Path) -> None:
    broken = damaged(saved[0], "net/2/head/weight", tmp_path / "model.lps")
    command = [sys.executable, "-m", "lps.eval", str(broken), "--salvage"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert [line.split()[-1] for line in run.stdout.splitlines()[2:5]] == ["ok", "damaged", "ok"]
    assert "task 2" in run.stderr
    assert "net/2/head/weight" in run.stderr
    assert "Traceback" not in run.stderr
