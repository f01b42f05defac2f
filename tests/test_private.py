"""``norms="per-task"``: every task has its own biases and norms, also in files, exports and serving."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lps import Lifelong, load
from lps.artifact.one_task import one_task
from lps.errors import ConfigError
from lps.private import find_private
from torch import nn

from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_task


def convnet(norms: str) -> Lifelong:
    torch.manual_seed(0)
    return Lifelong(toy_convnet(), 16, norms=norms)


TASKS = [toy_task(number, (3, 8, 8)) for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def net() -> Lifelong:
    net = convnet("per-task")
    for task in TASKS:
        net.learn(task, QUICK)
    return net.eval()


def test_what_is_private() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LayerNorm(4), nn.Embedding(3, 4))
    names = {"0.bias", "2.weight", "2.bias"} | {f"1.{name}" for name in backbone[1].state_dict()}
    assert find_private(backbone, "per-task") == names
    attention = find_private(nn.MultiheadAttention(8, 2), "per-task")
    assert attention == {"in_proj_bias", "out_proj.bias"}


def test_no_task_changes_those_of_another(net: Lifelong) -> None:
    again, kept = convnet("per-task"), []
    for number, task in enumerate(TASKS, start=1):
        again.learn(task, QUICK)
        kept.append(answers(again, TASKS[:number])[-1])
    assert all(torch.equal(a, b) for a, b in zip(answers(again, TASKS), kept, strict=True))
    assert [task.digest for task in again.learnt] == [again.digest(number) for number in (1, 2, 3)]
    values = [net.private_of(number) for number in (1, 2, 3)]
    for name in ("1.running_mean", "1.weight", "3.bias"):
        assert not torch.equal(values[0][name], values[1][name])
        assert not torch.equal(values[1][name], values[2][name])


def test_frozen_norms_are_those_of_task_1() -> None:
    net = convnet("frozen")
    net.learn(TASKS[0], QUICK)
    before = {name: tensor.clone() for name, tensor in net.common_tensors()}
    net.learn(TASKS[1], QUICK)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.common_tensors())
    assert not net.private_names
    assert dict(net.tensors_of(2)).keys() == before.keys()


def test_private_norms_are_used_in_every_way_to_run_a_task(net: Lifelong, tmp_path: Path) -> None:
    """From the file, from a file of one task, cut out, and with a task per example."""
    expected = answers(net, TASKS)
    net.save(tmp_path / "model.lps")
    loaded = load(tmp_path / "model.lps", toy_convnet())
    assert all(torch.equal(a, b) for a, b in zip(answers(loaded, TASKS), expected, strict=True))
    for number, task in enumerate(TASKS, start=1):
        inputs = inputs_of(task)
        assert torch.equal(one_task(net, number)(inputs, task=1), expected[number - 1])
        largest = expected[number - 1].abs().max().item()
        for other in (net.extract(number)(inputs), net.serve(inputs, [number] * len(inputs))):
            torch.testing.assert_close(other, expected[number - 1], rtol=1e-4, atol=1e-5 * largest)
    mixed = torch.cat([inputs_of(task)[:5] for task in TASKS])
    served = net.serve(mixed, [1] * 5 + [2] * 5 + [3] * 5)
    torch.testing.assert_close(served, torch.cat([logits[:5] for logits in expected]), rtol=1e-4, atol=1e-4)


def test_a_loaded_network_learns_the_next_task_as_the_original_does(tmp_path: Path) -> None:
    net = convnet("per-task")
    net.learn(TASKS[0], QUICK)
    net.save(tmp_path / "model.lps")
    loaded = load(tmp_path / "model.lps", toy_convnet())
    for each in (net, loaded):
        each.learn(TASKS[1], QUICK)
    assert loaded.learnt[1].digest == net.learnt[1].digest


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="norms: expected one of frozen, per-task, network, got mine"):
        Lifelong(toy_convnet(), 16, norms="mine")


def test_networks_with_running_statistics_have_norms_per_task_by_default() -> None:
    assert Lifelong(toy_convnet(), 16).norms == "per-task"
    for norm in (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU()):
        assert Lifelong(nn.Sequential(nn.Linear(3, 4), norm), 4).norms == "frozen"
