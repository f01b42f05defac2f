"""What a network says of itself: what is split among tasks and what is not, what is owned, and what was learnt."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lps import Lifelong, load
from lps.artifact.one_task import one_task
from lps.inventory import FROZEN, SHARED, SPLIT, entries
from lps.methods import METHODS
from lps.runs.metrics import capacity, density
from torch import Tensor, nn
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized

from tests.toy import QUICK, toy_convnet, toy_mlp, toy_net, toy_task


class Everything(nn.Module):
    """Layers that can be split, and whatever cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(12, 24).requires_grad_(False)
        self.rnn = nn.LSTM(24, 24, batch_first=True)
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24, bias=False)
        self.b.weight = self.a.weight
        self.up = nn.ConvTranspose1d(1, 1, 1)
        self.new, self.old = parametrized(nn.Linear(24, 24)), weight_norm(nn.Linear(24, 16))
        self.norm, self.scale, self.out = nn.LayerNorm(24), nn.Parameter(torch.ones(24)), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(self.stem(x)[:, None])
        y = self.up(self.b(self.a(states)))[:, -1]
        features: Tensor = self.out(self.old(self.norm(self.new(y)) * self.scale))
        return features


def everything() -> Lifelong:
    return Lifelong(Everything(), 16, exclude=["out.*"], quiet=True)


def test_every_parameter_has_a_reason() -> None:
    found = {entry.name: (entry.fate, entry.why) for entry in entries(everything())}
    assert found == {
        "scale": (SHARED, "Everything"),
        "stem.weight": (FROZEN, "requires_grad=False"),
        "stem.bias": (FROZEN, "requires_grad=False"),
        **{f"rnn.{kind}_{side}h_l0": (SHARED, "LSTM") for kind in ("weight", "bias") for side in "ih"},
        "a.weight": (SPLIT, "tied with b.weight"),
        "a.bias": (SHARED, "biases and norms"),
        "up.weight": (SHARED, "ConvTranspose1d"),
        "up.bias": (SHARED, "biases and norms"),
        "new.bias": (SHARED, "biases and norms"),
        "new.parametrizations.weight.original0": (SHARED, "parametrized by WeightNorm"),
        "new.parametrizations.weight.original1": (SHARED, "parametrized by WeightNorm"),
        "old.bias": (SHARED, "biases and norms"),
        "old.weight_g": (SHARED, "weight norm"),
        "old.weight_v": (SHARED, "weight norm"),
        "norm.weight": (SHARED, "biases and norms"),
        "norm.bias": (SHARED, "biases and norms"),
        "out.weight": (SHARED, "excluded"),
        "out.bias": (SHARED, "excluded"),
    }


def test_wrapping_says_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Lifelong(Everything(), 16)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(
        "lps: 11.7 % of 7,098 parameters, in 2 layers (1 of them tied), are split among tasks; learnt "
    )
    assert "with task 1, then frozen: LSTM 67.6 %, parametrized by WeightNorm 8.5 %, weight norm 5.6 %, " in err
    assert err.endswith("; frozen: requires_grad=False 4.4 % (net.summary() lists them)\n")
    Lifelong(toy_convnet(), 16)  # with running statistics: norms per task
    assert capsys.readouterr().err == (
        "lps: 97.7 % of 1,892 parameters, in 3 layers, are split among tasks; a copy per task: biases and norms 2.3 % "
        "(net.summary() lists them)\n"
    )
    Lifelong(toy_mlp(), 16, norms="network")
    assert capsys.readouterr().err.startswith("lps: each task has a network of its own, of 760 parameters; a copy per")


def test_it_is_silent_where_asked_and_where_nobody_wrapped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = Lifelong(toy_mlp(), 16, quiet=True)
    net.learn(toy_task(1), QUICK, progress=False)
    net.save(tmp_path / "model.lps")
    load(tmp_path / "model.lps", toy_mlp())
    one_task(net, 1)
    net.blank_copy().load_state_dict(net.state_dict())
    assert capsys.readouterr() == ("", "")
    closed = io.StringIO()
    closed.close()
    with redirect_stderr(closed):
        Lifelong(toy_mlp(), 16)


def test_the_summary_has_a_line_per_parameter() -> None:
    net = everything()
    lines = net.summary().splitlines()
    assert len(lines) == len(list(net.backbone.parameters())) + 2
    assert lines[0].split() == ["parameter", "shape", "number", "what", "becomes", "of", "it", "why", "free"]
    (line,) = (line for line in lines if line.startswith("a.weight"))
    assert line.split() == [
        "a.weight",
        "24x24",
        "576",
        "split",
        "among",
        "tasks",
        "tied",
        "with",
        "b.weight",
        "100.0",
        "%",
    ]
    net.learn(toy_task(1), QUICK, progress=False)
    (line,) = (line for line in net.summary().splitlines() if line.startswith("a.weight"))
    assert line.endswith("80.0 %")


def test_capacity_adds_up() -> None:
    net = toy_net()
    assert net.capacity().free == 1
    for number in (1, 2):
        net.learn(toy_task(number), QUICK, progress=False)
    found = net.capacity()
    for layer, (partition, _) in zip(found.layers, net.prunable(), strict=True):
        assert (layer.name, layer.weights) == (partition.name, partition.owner.numel())
        assert layer.owned == (partition.owned_by(1), partition.owned_by(2))
        assert layer.free == int(partition.free().sum())
    total = found.total
    assert total.weights == sum(layer.weights for layer in found.layers)
    assert [count / total.weights for count in total.owned] == capacity(net)
    assert found.free == pytest.approx(0.6, abs=0.01)
    assert str(found).splitlines()[0].split() == ["layer", "weights", "task", "1", "task", "2", "free"]
    assert str(found).splitlines()[-1].split()[:2] == ["all", "672"]


def test_tasks_are_listed_also_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = toy_net()
    reports = [net.learn(toy_task(number), QUICK) for number in (1, 2)]
    tested = [net.accuracy(number, toy_task(number).test) for number in (1, 2)]
    assert [report.test for report in reports] == tested
    assert capsys.readouterr().err.endswith(f"  test {100 * tested[1]:.2f} %\n")
    net.save(tmp_path / "model.lps")
    for each in (net, load(tmp_path / "model.lps", toy_mlp())):
        assert [(task.number, task.name, task.classes) for task in each.tasks] == [
            (1, "clouds-1", 3),
            (2, "clouds-2", 3),
        ]
        assert [task.validation for task in each.tasks] == [report.accuracy for report in reports]
        assert [task.accuracy for task in each.tasks] == tested
        assert [task.share for task in each.tasks] == capacity(net)
        assert [task.density for task in each.tasks] == density(net)
    net.metadata.accuracy = [0.5, 0.25]
    assert [task.accuracy for task in net.tasks] == [0.5, 0.25]
    alone = one_task(net, 2)
    assert [(task.validation, task.accuracy) for task in alone.tasks] == [(reports[1].accuracy, 0.25)]


def test_tasks_without_examples_and_tasks_that_failed_have_no_accuracy() -> None:
    net = toy_net()
    plain = toy_task(1)
    net.learn(replace(plain, validation=None, test=None), QUICK, progress=False)
    assert net.metadata.validation == [None]
    assert net.metadata.accuracy is None
    net.learn(toy_task(2), QUICK, progress=False)
    with pytest.raises(ArithmeticError):
        net.learn(toy_task(3), replace(QUICK, lr=1e30), progress=False)
    assert [task.validation is None for task in net.tasks] == [True, False]
    assert [task.accuracy is None for task in net.tasks] == [True, False]


def test_methods_with_a_network_per_task() -> None:
    net = Lifelong(toy_mlp(), 16, norms="network", quiet=True)
    METHODS["single"](net, QUICK).learn(toy_task(1))
    assert [(task.share, task.density) for task in net.tasks] == [(1, 1)]
    assert net.capacity().layers == ()
    assert net.summary().splitlines()[-1].startswith("each task has a network of its own")
