"""Parameters with ``requires_grad=False`` stay as they are: every method, every task, every way to use the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lps import Lifelong, load
from lps.artifact.one_task import one_task
from lps.deploy.exporters import EXPORTERS
from lps.errors import ConfigError, FileFormatError
from lps.methods import METHODS
from safetensors import safe_open
from torch import Tensor, nn

from tests.command import ENVIRONMENT
from tests.helpers import same_bits
from tests.toy import QUICK, answers, inputs_of, toy_mlp, toy_task

TASKS = [toy_task(1), toy_task(2), toy_task(3)]
STEM = ["0.weight", "0.bias"]  # a whole layer, as of a pretrained network
PLACES = {"stem": STEM, "middle": ["2.weight"], "last": ["4.weight", "4.bias"]}


def backbone(names: list[str]) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 16), nn.Dropout(0.1))
    for name in names:
        made.get_parameter(name).requires_grad_(False)
    return made


def values(net: Lifelong, names: list[str]) -> list[Tensor]:
    return [net.backbone.get_parameter(name).detach().clone() for name in names]


def learnt(method: str, names: list[str]) -> Lifelong:
    kind = METHODS[method]
    net = Lifelong(backbone(names), 16, norms=kind.reads.norms or "per-task")
    learner = kind(net, QUICK)
    learner.check(TASKS)
    for task in TASKS:
        learner.learn(task)
    return net


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_it_stays_with_every_method_and_is_in_the_file_once(method: str, place: str, tmp_path: Path) -> None:
    names = PLACES[place]
    before = values(Lifelong(backbone(names), 16), names)
    net = learnt(method, names)
    for number in (1, 2, 3):
        net.activate(number)
        assert all(map(same_bits, values(net, names), before))
    assert not any(partition.name in names for partition, _ in net.prunable())
    net.save(tmp_path / "model.lps")
    with safe_open(tmp_path / "model.lps", framework="pt") as file:
        tensors = list(file.keys())
    for name in names:
        assert [tensor for tensor in tensors if tensor.endswith(f"/{name}")] == [f"net/all/common/{name}"]
    # Into a backbone in which nothing is frozen: the file says what is.
    twin = load(tmp_path / "model.lps", backbone([]))
    assert twin.frozen == set(names)
    assert all(map(same_bits, answers(twin, TASKS), answers(net, TASKS)))
    kind = METHODS[method]
    if not (kind.at_once or kind.name in ("wsn", "supsup", "hat", "lwf", "gem", "dgr", "ewc", "si", "single")):
        kind(twin, QUICK).learn(toy_task(4))
        assert all(map(same_bits, values(twin, names), before))


@pytest.mark.parametrize("method", ["wsn", "ewc", "si", "lwf", "gem", "dgr", "single", "hat", "supsup"])
def test_a_method_with_a_memory_goes_on(method: str, tmp_path: Path) -> None:
    kind = METHODS[method]
    net = Lifelong(backbone(STEM), 16, norms=kind.reads.norms or "per-task")
    learner, before = kind(net, QUICK), values(net, STEM)
    learner.learn(TASKS[0])
    net.save(tmp_path / "model.lps")
    again = kind(load(tmp_path / "model.lps", backbone([])), QUICK)
    again.load_memory(learner.memory)
    again.learn(TASKS[1])
    assert all(map(same_bits, values(again.net, STEM), before))


def test_biases_and_norms() -> None:
    """Frozen one by one, with norms of every task's own and with the paper's."""
    for norms in ("per-task", "frozen"):
        made = toy_mlp()
        names = ["0.bias", "1.weight"]
        for name in names:
            made.get_parameter(name).requires_grad_(False)
        net = Lifelong(made, 16, norms=norms)
        before = values(net, names)
        for task in TASKS:
            net.learn(task, QUICK)
        assert all(map(same_bits, values(net, names), before))
        assert not net.private_names & set(names)
        assert not torch.equal(net.backbone.get_parameter("1.bias"), torch.zeros(24))  # which is not frozen


def test_any_optimiser_leaves_it() -> None:
    net = Lifelong(backbone(STEM), 16)
    before = values(net, STEM)
    for task in TASKS[:2]:
        net.learn(task, QUICK, optimizer=lambda some: torch.optim.SGD(some, lr=0.05, weight_decay=0.1))
    assert all(map(same_bits, values(net, STEM), before))


IN_A_NEW_PROCESS = """
import sys, torch, lps
from tests.test_frozen import TASKS, backbone, answers
net = lps.load(sys.argv[1], backbone([]))
inputs = TASKS[1].test.inputs
torch.save([*answers(net, TASKS), net.extract(2)(inputs), net.serve(inputs, [2] * len(inputs))], sys.argv[2])
"""


def test_a_new_process_cut_outs_and_exports_answer_alike(tmp_path: Path) -> None:
    net = learnt("lps", STEM)
    want, inputs = answers(net, TASKS), inputs_of(TASKS[1])
    net.save(tmp_path / "model.lps")
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(tmp_path / "model.lps"), str(tmp_path / "answers.pt")]
    subprocess.run(command, cwd=Path(__file__).parents[1], env=ENVIRONMENT, check=True)
    *same, cut, served = torch.load(tmp_path / "answers.pt")
    assert all(map(same_bits, same, want))
    alone = one_task(net, 2)
    assert alone.frozen == set(STEM)
    assert torch.equal(alone(inputs, task=1), want[1])
    EXPORTERS["torch"].write(net, 2, tmp_path / "task.pt2")
    exported = torch.export.load(tmp_path / "task.pt2").module()(inputs)
    for got in (cut, served, exported):
        torch.testing.assert_close(got, want[1], rtol=1e-4, atol=1e-4)


def test_a_state_dict_goes_into_a_network_with_the_same_frozen() -> None:
    net = learnt("lps", STEM)
    twin = Lifelong(backbone(STEM), 16, norms="per-task")
    twin.load_state_dict(net.state_dict())
    assert all(map(same_bits, answers(twin, TASKS), answers(net, TASKS)))
    with pytest.raises(ConfigError, match=r"frozen: the state has \['0.bias', '0.weight'\], this network \[\]"):
        Lifelong(backbone([]), 16, norms="per-task").load_state_dict(net.state_dict())


def test_the_file_has_the_version_that_it_needs(tmp_path: Path) -> None:
    for names, version in (([], 2), (STEM, 3)):
        net = Lifelong(backbone(names), 16)
        net.learn(TASKS[0], QUICK)
        net.save(tmp_path / "model.lps")
        with safe_open(tmp_path / "model.lps", framework="pt") as file:
            assert f'"version": {version},' in file.metadata()["manifest"]
            assert ('"frozen": [' in file.metadata()["manifest"]) == bool(names)


def test_what_is_frozen_is_decided_when_the_network_is_made(tmp_path: Path) -> None:
    net = Lifelong(backbone([]), 16)
    net.backbone.get_parameter("0.weight").requires_grad_(False)
    with pytest.raises(
        ConfigError, match=r"0.weight: expected requires_grad=True, as when the network was made, got F"
    ):
        net.learn(TASKS[0], QUICK)
    net = Lifelong(backbone(["0.bias"]), 16)
    net.backbone.requires_grad_(True)
    with pytest.raises(ConfigError, match=r"0.bias: expected requires_grad=False, as when the network was made"):
        net.learn(TASKS[0], QUICK)
    assert not net.learnt
    with pytest.raises(ConfigError, match=r"frozen: expected names of the backbone's parameters, got 9.weight"):
        Lifelong(backbone([]), 16, frozen=["9.weight"])
    with pytest.raises(ConfigError, match=r"to prune that is not frozen \(requires_grad=False\), got none"):
        Lifelong(backbone([]).requires_grad_(False), 16)
    net = learnt("lps", STEM)
    net.save(tmp_path / "model.lps")
    with pytest.raises(FileFormatError, match="the backbone does not fit the file"):
        load(tmp_path / "model.lps", toy_mlp())


def test_methods_of_units_refuse_a_frozen_bias_beside_a_weight_that_is_not() -> None:
    net = Lifelong(backbone(["2.bias"]), 16, norms="per-task")
    with pytest.raises(ConfigError, match=r"hat: layer 2: .* got a frozen bias"):
        METHODS["hat"](net, QUICK).check(TASKS)
