"""One task per example of a batch, from one copy of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lps import Lifelong, LPSConfig, LPSError
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers import same_bits
from tests.toy import QUICK, toy_convnet, toy_mlp, toy_task

CLOSE = 1e-5  # sums of at most 48 products in another order


def learnt(backbone: nn.Module, shape: tuple[int, ...], classes: tuple[int, ...] = (3, 3, 3), **modes: Any) -> Lifelong:
    torch.manual_seed(0)
    net = Lifelong(backbone, features=16, **modes)
    for seed, count in enumerate(classes):
        net.learn(toy_task(seed, shape, classes=count), QUICK)
    return net.eval()


class Attentive(nn.Module):
    """Its first weight is used by torch's attention, which does not call nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.last = nn.Linear(12, 16)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x, x, x)
        result: Tensor = self.last(seen.mean(1))
        return result


class Named(nn.Module):
    """Passes its weights in a list and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = linear(x, torch.cat([self.first.weight, self.second.weight])).relu()
        return linear(input=hidden, weight=self.last.weight, bias=self.last.bias)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lists and keywords": (Named, (12,)),
    "mlp": (toy_mlp, (12,)),
    "convolutions": (toy_convnet, (3, 8, 8)),
    "attention": (Attentive, (2, 12)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("pattern", ["irregular", "column"])
def test_each_example_is_answered_by_its_own_task(name: str, pattern: str) -> None:
    make, shape = NETWORKS[name]
    net = learnt(make(), shape, pattern=pattern)
    x = torch.randn(7, *shape)
    tasks = [3, 1, 1, 2, 3, 1, 2]
    with torch.no_grad():
        alone = {task: net(x, task=task) for task in (1, 2, 3)}
        want = torch.stack([alone[task][row] for row, task in enumerate(tasks)])
        torch.testing.assert_close(net(x, task=tasks), want, rtol=CLOSE, atol=CLOSE)
        torch.testing.assert_close(net(x, task=torch.tensor(tasks)), want, rtol=CLOSE, atol=CLOSE)
        torch.testing.assert_close(net(x, task=np.array(tasks)), want, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_of_each_task_are_served_with_it(name: str) -> None:
    make, shape = NETWORKS[name]
    net = learnt(make(), shape, norms="per-task")
    x, tasks = torch.randn(7, *shape), [3, 1, 1, 2, 3, 1, 2]
    with torch.no_grad():
        want = torch.stack([net(x, task=task)[row] for row, task in enumerate(tasks)])
        for active in (1, 2, 3):
            net.activate(active)
            torch.testing.assert_close(net(x, task=tasks), want, rtol=CLOSE, atol=CLOSE)


def test_serving_writes_nothing_and_leaves_the_active_task_alone() -> None:
    net = learnt(toy_mlp(), (12,))
    x = torch.randn(4, 12)
    with torch.no_grad():
        before, weights = net(x, task=2), copy.deepcopy(net.state_dict())
        pointers = [parameter.data_ptr() for parameter in net.parameters()]
        net(x, task=[1, 3, 1, 3])
        assert same_bits(net(x), before)
    assert all(same_bits(tensor, weights[key]) for key, tensor in net.state_dict().items())
    assert [parameter.data_ptr() for parameter in net.parameters()] == pointers


def test_what_is_served_keeps_its_bits_after_a_later_task() -> None:
    net = learnt(toy_mlp(), (12,))
    x, tasks = torch.randn(6, 12), [1, 2, 3, 3, 2, 1]
    before = net(x, task=tasks)
    net.learn(toy_task(9), LPSConfig(alpha="rest", beta=0.5, epochs=(1, 2, 1), batch_size=32, lr=1e-2))
    assert same_bits(net.eval()(x, task=tasks), before)


def test_fewer_classes_are_filled_with_minus_infinity() -> None:
    net = learnt(toy_mlp(), (12,), classes=(3, 5))
    logits = net(torch.randn(3, 12), task=[2, 1, 2])
    assert logits.shape == (3, 5)
    assert bool((logits[1, 3:] == -torch.inf).all())
    assert bool(logits.isfinite()[[0, 2]].all())
    assert bool(logits.softmax(1).isfinite().all())


def test_serving_allocates_no_network_of_its_own() -> None:
    net = learnt(toy_mlp(), (12,))
    largest = 0

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():  # type: ignore[no-untyped-call]
        net(torch.randn(2, 12), task=[1, 2])
    smallest_weight = min(weight.numel() for _, weight in net.prunable())
    assert largest < smallest_weight


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([1, 2], "Lifelong: task: expected a whole number or a name for each of the 3 examples, got 2"),
        (
            [1, 2.0, 1],
            "Lifelong: task: expected a whole number or a name for each of the 3 examples, got something else",
        ),
        ([1, 4, 1], "Lifelong: task: expected 1 to 3, got 4"),
        ([0, 1, 1], "Lifelong: task: expected 1 to 3, got 0"),
        (
            torch.tensor(1),
            "Lifelong: task: expected a whole number or a name for each of the 3 examples, got something else",
        ),
        (1.0, "Lifelong: task: expected a whole number or a name for each of the 3 examples, got something else"),
    ],
)
def test_bad_tasks_are_refused_in_one_sentence(tasks: Any, sentence: str) -> None:
    net = learnt(toy_mlp(), (12,))
    with pytest.raises(LPSError) as refusal:
        net(torch.randn(3, 12), task=tasks)
    assert str(refusal.value) == sentence


def test_under_autocast_other_dtypes_are_served_too() -> None:
    net = learnt(toy_mlp(), (12,))
    x = torch.randn(4, 12)
    with torch.autocast("cpu", torch.bfloat16):
        got = net(x, task=[1, 2, 2, 1])
    want = net(x, task=[1, 2, 2, 1])
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)


def test_an_empty_batch_gives_an_empty_answer() -> None:
    net = learnt(toy_mlp(), (12,))
    assert net(torch.randn(0, 12), task=[]).numel() == 0


def test_rows_of_one_task_need_not_be_neighbours() -> None:
    net = learnt(toy_mlp(), (12,))
    x = torch.randn(8, 12)
    grouped = net(x, task=[1, 1, 1, 1, 2, 2, 2, 2])
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    mixed = net(x[order], task=[1, 2] * 4)
    assert all(same_bits(mixed[at], grouped[row]) for at, row in enumerate(order))
