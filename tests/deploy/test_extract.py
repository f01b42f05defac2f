"""Cutting a task out: it gives the logits of the whole network, which does not change."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from lps import Lifelong, Listener, Row
from lps.errors import ConfigError
from lps.methods.lps.config import PATTERNS, SHARINGS
from torch import nn

from lps_kernels.layers import StructuredLinear
from tests.cutouts import assert_same_answers, classes_in, fabricate, prune, sizes
from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_mlp, toy_net, toy_task


def wide_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(300, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("make", [toy_mlp, toy_convnet])
def test_learnt_tasks_answer_as_in_the_whole_network(make: Any, pattern: str, sharing: str) -> None:
    torch.manual_seed(0)
    shape = (12,) if make is toy_mlp else (3, 8, 8)
    net = Lifelong(make(), features=16, pattern=pattern, sharing=sharing)
    tasks = [toy_task(seed, shape) for seed in (1, 2, 3)]
    for task in tasks:
        net.learn(task, QUICK)
    before, digests = answers(net, tasks), [net.digest(number) for number in (1, 2, 3)]
    for number, task in enumerate(tasks, 1):
        for portable in (False, True):
            assert_same_answers(net, net.extract(number, portable=portable), inputs_of(task), number)
    assert [net.digest(number) for number in (1, 2, 3)] == digests
    assert all(torch.equal(a, b) for a, b in zip(answers(net, tasks), before, strict=True))


def test_the_network_is_left_as_it_was() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    net.learn(toy_task(2), QUICK)
    net.activate(1)
    net.train()
    modes = [module.training for module in net.modules()]
    state = copy.deepcopy(net.state_dict())
    wants_grad = [parameter.requires_grad for parameter in net.parameters()]
    random = torch.get_rng_state()
    net.extract(2)
    assert net.active == 1
    assert [module.training for module in net.modules()] == modes
    assert [parameter.requires_grad for parameter in net.parameters()] == wants_grad
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    net.learn(toy_task(3), QUICK)


@pytest.mark.parametrize("portable", [False, True])
def test_what_is_cut_out_stands_alone(portable: bool) -> None:
    net = fabricate(wide_mlp(), 64, density=0.05, beta=0.1, input_shape=(300,))
    cutout = net.extract(2, portable=portable)
    assert not any(name.split(".")[0] == "lps" for name in classes_in(cutout))
    assert not any(module.training for module in cutout.modules())
    assert not any(parameter.requires_grad for parameter in cutout.parameters())
    x = torch.randn(5, 300)
    expected = cutout(x)
    assert not expected.requires_grad
    twin = copy.deepcopy(cutout)
    del net
    with torch.no_grad():
        for tensor in cutout.state_dict().values():
            tensor.zero_()
    assert torch.equal(twin(x), expected)
    cutout.load_state_dict(twin.state_dict())
    assert torch.equal(cutout(x), expected)


def test_filters_vanish_with_all_that_reads_them() -> None:
    net = fabricate(toy_mlp(norm=False), 16, density=1, tasks=1, input_shape=(12,))
    prune(net, "0", rows=range(10))  # constant outputs (bias only): they move into the next bias
    prune(net, "3", columns=[20, 21])  # live, but no layer reads them
    prune(net, "3", rows=[0, 5])
    x = torch.randn(9, 12)
    for portable in (False, True):
        cutout = net.extract(1, portable=portable)
        assert sizes(cutout) == {"0": [12, 12], "3": [14, 12], "head": [5, 14]}
        assert_same_answers(net, cutout, x, 1)
    portable_layer = net.extract(1, portable=True).network.get_submodule("backbone.3")
    assert isinstance(portable_layer, nn.Linear)
    assert portable_layer.weight.shape == (14, 12)


@pytest.mark.parametrize(("pattern", "format"), [("irregular", "sparse"), ("column", "structured")])
def test_each_pattern_gets_its_format(pattern: str, format: str) -> None:
    net = fabricate(wide_mlp(), 64, pattern=pattern, density=0.1, tasks=1, input_shape=(300,))
    cutout = net.extract(1)
    assert cutout.layers[0].format == format
    held, dense = cutout.weight_bytes()
    assert held < dense / 4
    assert_same_answers(net, cutout, torch.randn(33, 300), 1)
    assert_same_answers(net, cutout, torch.randn(1, 300), 1)


def test_a_dense_task_is_held_no_worse_than_dense() -> None:
    net = fabricate(wide_mlp(), 64, density=1, tasks=1, input_shape=(300,))
    cutout = net.extract(1)
    assert {layer.format for layer in cutout.layers} <= {"dense", "packed"}
    assert all(layer.seconds <= layer.dense_seconds for layer in cutout.layers)
    assert_same_answers(net, cutout, torch.randn(4, 300), 1)


def test_relus_and_norms_go_into_our_layers() -> None:
    net = fabricate(wide_mlp(), 64, pattern="column", density=0.1, tasks=1)
    names = dict(net.extract(1).network.named_modules())
    assert isinstance(names["backbone.0"], StructuredLinear)
    assert names["backbone.0"].relu
    assert "backbone.1" not in names
    net = fabricate(toy_convnet(), 16, density=0.5, tasks=1)
    network = net.extract(1, portable=True).network
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_a_portable_linear_selects_the_inputs_it_reads() -> None:
    net = fabricate(wide_mlp(), 64, pattern="column", density=0.1, tasks=1, input_shape=(300,))
    cutout = net.extract(1, portable=True)
    first = cutout.network.get_submodule("backbone.0")
    assert cutout.layers[0].format == "gather"
    assert first.get_buffer("columns").numel() == first.get_parameter("weight").shape[1] < 150
    assert_same_answers(net, cutout, torch.randn(4, 300), 1)


@pytest.mark.parametrize("shape", [(300,), (3, 8, 8)])
def test_a_portable_network_can_be_exported(shape: tuple[int, ...]) -> None:
    backbone, features = (wide_mlp(), 64) if len(shape) == 1 else (toy_convnet(), 16)
    net = fabricate(backbone, features, pattern="column", density=0.2, input_shape=shape)
    cutout = net.extract(2, portable=True)
    assert {name.split(".")[0] for name in classes_in(cutout.network)} == {"torch"}
    x = torch.randn(4, *shape)
    exported = torch.export.export(cutout, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert all(str(node.target).startswith("aten.") for node in exported.graph.nodes if node.op == "call_function")
    more = torch.randn(7, *shape)
    assert torch.allclose(exported.module()(more), cutout(more), rtol=1e-5, atol=1e-5)


def test_float64_stays_with_torch() -> None:
    net = fabricate(toy_convnet().double(), 16, density=0.3, input_shape=(3, 8, 8))
    cutout = net.extract(2)
    assert {name.split(".")[0] for name in classes_in(cutout.network)} == {"torch"}
    assert_same_answers(net, cutout, torch.randn(4, 3, 8, 8, dtype=torch.float64), 2)


def test_the_summary_is_a_table_with_totals_and_notes() -> None:
    backbone = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30), nn.Linear(30, 8))
    net = fabricate(backbone, 8, pattern="filter", density=0.5, tasks=1)
    text = net.extract(1).summary()
    lines = text.splitlines()
    assert lines[0].split() == ["layer", "format", "shape", "density", "bytes", "dense", "bytes", "speed-up"]
    assert [line.split()[0] for line in lines[1:5]] == ["0", "2", "head", "all"]
    assert "8x30 -> " in lines[2]
    assert lines[5] == "1 keeps its shape: LayerNorm is not known to work channel by channel"
    assert len({len(line) for line in lines[:5]}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": 0}, "task: expected 1 to 2, got 0"),
        ({"task": 3}, "task: expected 1 to 2, got 3"),
        ({"task": 1, "batch_size": 0}, "extract: batch_size: expected a whole number of at least 1, got 0"),
        ({"task": 1, "batch_size": 1.5}, "extract: batch_size: expected a whole number of at least 1, got 1.5"),
    ],
)
def test_what_cannot_be_cut_out_is_refused(arguments: dict[str, Any], message: str) -> None:
    net = fabricate(toy_mlp(), 16)
    with pytest.raises(ConfigError, match=message):
        net.extract(**arguments)


def test_nothing_is_cut_out_while_a_task_is_learnt() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)

    class Impatient(Listener):
        def row(self, row: Row) -> None:
            net.extract(1)

    with pytest.raises(ConfigError, match="extract: task 2 is being learnt; wait until it is done"):
        net.learn(toy_task(2), QUICK, listener=Impatient())
    assert_same_answers(net, net.extract(1), torch.randn(3, 12), 1)


def test_shapes_that_are_no_shapes_are_done_without(caplog: pytest.LogCaptureFixture) -> None:
    net = fabricate(toy_convnet(), 16, input_shape=(3, 8, 8))
    for wrong in ([4, 8, 8], ["a"], "abc", 7):
        net.metadata.input_shape = wrong  # type: ignore[assignment]
        with caplog.at_level(logging.INFO, "lps.extract"):
            assert_same_answers(net, net.extract(1), torch.randn(2, 3, 8, 8), 1)
        assert f"a trial input of shape {wrong} failed" in caplog.text
