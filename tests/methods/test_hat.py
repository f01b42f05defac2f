"""Hard Attention to the Task: gates, what they freeze, and the networks that can have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError, FileFormatError
from lps.methods.chain import find_chain
from lps.methods.hat import HAT, WEIGHTS, HATLearner
from lps.methods.options import HATOptions
from torch import Tensor, nn

from lps_kernels import unpack_bits
from lps_kernels.owner import TASK_BITS
from tests.toy import QUICK, answers, toy_convnet, toy_task

CONFIG = replace(QUICK, epochs=(2, 6, 2))
TASKS = [toy_task(1), toy_task(2), toy_task(3, classes=4)]


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.ReLU())


def convolutions() -> nn.Sequential:
    first = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, nn.Conv2d(8, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 16), nn.ReLU())


def make(backbone: Callable[[], nn.Module] = chain, features: int = 16) -> HAT:
    torch.manual_seed(0)
    return HAT(Lifelong(backbone(), features, norms="per-task"), CONFIG)


def used(method: HAT) -> list[Tensor]:
    return [layer.used() for layer in find_chain(method.net, "hat")]


def test_weights_between_units_in_use_never_change() -> None:
    method = make()
    for task in TASKS[:2]:
        method.learn(task)
    before = {name: weight.clone() for name, weight in method.memory[WEIGHTS].items()}
    first, second = used(method)
    assert not first.all()
    assert not second.all()
    method.learn(TASKS[2])
    for name, frozen in (("0.weight", first[:, None].expand(32, 12)), ("3.weight", second[:, None] & first)):
        same = method.memory[WEIGHTS][name] == before[name]
        assert same[frozen].all()
        assert not same[~frozen].all()


@pytest.mark.parametrize(("backbone", "shape"), [(chain, (12,)), (convolutions, (3, 8, 8))])
def test_gates_are_binary_and_old_tasks_bit_identical(
    backbone: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    method = make(backbone)
    tasks = [toy_task(1, shape), toy_task(2, shape)]
    reports = [method.learn(tasks[0])]
    before = answers(method.net, tasks[:1])
    reports.append(method.learn(tasks[1]))
    assert torch.equal(answers(method.net, tasks[:1])[0], before[0])
    layers = find_chain(method.net, "hat")
    for number, task in enumerate(tasks, 1):
        # In training, gates of 0 and 1 were in the place of the masks.
        assert task.validation is not None
        assert reports[number - 1].accuracy == method.net.accuracy(number, task.validation)
        units: Tensor | None = None
        for layer in layers:
            partition = layer.partition
            runs_with = unpack_bits(partition.mask(number), partition.shape) | (partition.owner & TASK_BITS == number)
            rows = runs_with.flatten(1).any(1)
            assert torch.equal(runs_with, layer.between(rows, units))
            if layer.module.bias is not None:
                bias = method.net.private_of(number)[partition.name.replace("weight", "bias")]
                assert (bias[~rows] == 0).all()
            units = rows


def learner(method: HAT) -> HATLearner:
    with method.net.transaction() as draft:
        found = method.learner(TASKS[0], method.task_config(1), draft)
        assert isinstance(found, HATLearner)
        found.close()
    return found


def test_a_slope_is_compensated_for() -> None:
    """The gradient is smax times that of a sigmoid with the slope 1."""
    found = learner(make())
    found.slope = 7.0
    embedding = found.embeddings[0]
    with torch.no_grad():
        embedding.copy_(torch.linspace(-1, 1, 32))  # of larger ones a sigmoid in fp32 keeps few digits
    torch.sigmoid(found.slope * embedding).sum().backward()  # type: ignore[no-untyped-call]
    found.before_update()
    assert embedding.grad is not None
    plain = torch.sigmoid(embedding) * (1 - torch.sigmoid(embedding))
    torch.testing.assert_close(embedding.grad, 400 * plain.detach(), rtol=1e-3, atol=1e-3)


def test_opening_units_in_use_costs_nothing() -> None:
    found = learner(make())
    found.slope = 1.0
    found.used = [torch.arange(32) < 30, torch.arange(16) < 15]
    with torch.no_grad():
        for embedding in found.embeddings:
            embedding.zero_()
        found.embeddings[0][31] = 100.0
    cost = found.objective(torch.tensor(2.0), torch.zeros(0))
    assert float(cost.detach()) == pytest.approx(2.0 + 0.75 * (0.5 + 1.0 + 0.5) / 3)


def test_a_cost_keeps_units_free() -> None:
    open_units = []
    for cost in (0.0, 20.0):
        method = HAT(make().net, CONFIG, HATOptions(c=cost))
        method.learn(TASKS[0])
        open_units.append(sum(int(units.sum()) for units in used(method)))
    assert open_units[1] < open_units[0] / 2


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


SHARED = nn.Linear(12, 12)


@pytest.mark.parametrize(
    ("backbone", "features", "message"),
    [
        (nn.Sequential(Residual(), nn.ReLU()), 12, "hat: layer 0: expected one nn.Sequential .*, got Residual"),
        (Residual(), 12, "hat: layer backbone: .*, got Residual"),
        (toy_convnet(), 16, "hat: layer 1: .*, got BatchNorm2d"),
        (nn.Sequential(SHARED, nn.ReLU(), SHARED), 12, "hat: layer 2: .*, got a weight that is used twice"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()), 4, "hat: layer 0: .*, got a convolution in 2"),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.Linear(6, 5), nn.Flatten()), 20, "hat: layer 1: .* 6 inputs after 4"),
        (nn.Sequential(nn.Linear(3, 4), nn.Flatten()), 20, "hat: layer of the features: .*, got 20 features after 4"),
        (nn.Sequential(nn.Linear(3, 4), nn.MaxPool1d(2)), 2, "hat: layer 1: .*, got MaxPool1d over units"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), 4, "hat: layer 1: .*, got Sigmoid"),
    ],
)
def test_other_networks_are_refused(backbone: nn.Module, features: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(lambda: backbone, features).check(TASKS)


def test_an_excluded_layer_is_refused() -> None:
    net = Lifelong(chain(), 16, norms="per-task", exclude=["3.weight"])
    with pytest.raises(ConfigError, match=r"hat: layer 3: .*, got one that is excluded"):
        HAT(net, CONFIG).learn(TASKS[0])


def test_another_memory_is_refused() -> None:
    method = make()
    method.learn(TASKS[0])
    for memory in ({}, {WEIGHTS: {"0.weight": torch.zeros(32, 12)}}, {WEIGHTS: {"0.weight": 1, "3.weight": 2}}):
        with pytest.raises(FileFormatError, match="weights"):
            method.load_memory(memory)
