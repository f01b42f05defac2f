"""Several threads on one network: each gets the logits of its own task."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier, Thread

import pytest
import torch
from lps import Lifelong, Listener
from lps.errors import ConfigError
from torch import Tensor, fx, nn

from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_net, toy_task

THREADS, CALLS = 4, 300


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_every_thread_gets_the_logits_of_its_task(norms: str) -> None:
    torch.manual_seed(0)
    net = Lifelong(toy_convnet(), 16, norms=norms)
    tasks = [toy_task(number, (3, 8, 8)) for number in (1, 2, 3)]
    for task in tasks:
        net.learn(task, QUICK)
    expected, inputs = answers(net, tasks), [inputs_of(task) for task in tasks]
    start = Barrier(THREADS)

    def call(seed: int) -> int:
        draw, wrong = random.Random(seed), 0
        start.wait()
        with torch.no_grad():
            for _ in range(CALLS):
                task = draw.randint(1, 3)
                if draw.random() < 0.1:
                    answer = net.serve(inputs[task - 1], [task] * 60)
                    wrong += not torch.allclose(answer, expected[task - 1], rtol=1e-3, atol=1e-4)
                else:
                    wrong += not torch.equal(net(inputs[task - 1], task=task), expected[task - 1])
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(call, range(THREADS))) == 0


@pytest.mark.slow
def test_four_threads_with_5000_calls_each_of_random_tasks() -> None:
    net = toy_net()
    tasks = [toy_task(number) for number in (1, 2, 3)]
    for task in tasks:
        net.learn(task, QUICK)
    inputs = [inputs_of(task) for task in tasks]
    expected = answers(net, tasks)

    def call(seed: int) -> int:
        draw = random.Random(seed)
        with torch.no_grad():
            numbers = [draw.randint(1, 3) for _ in range(5000)]
            return sum(not torch.equal(net(inputs[task - 1], task=task), expected[task - 1]) for task in numbers)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(call, range(THREADS))) == [0, 0, 0, 0]  # and none was refused


def test_a_call_that_fails_lets_the_others_go_on() -> None:
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    net.eval()
    with pytest.raises(RuntimeError):
        net(torch.zeros(1, 13), task=1)
    done: list[Tensor] = []
    thread = Thread(target=lambda: done.append(net(torch.zeros(1, 12), task=2)), daemon=True)
    thread.start()
    thread.join(10)
    assert len(done) == 1


def test_another_threads_task_is_refused_while_one_is_learnt() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    errors: list[str] = []

    class Meanwhile(Listener):
        def step(self, phase: str, examples: int) -> None:
            thread = Thread(target=ask)
            thread.start()
            thread.join()

    def ask() -> None:
        for task in (1, [1]):
            try:
                net(torch.zeros(1, 12), task=task)
            except ConfigError as error:
                errors.append(str(error))

    net.learn(toy_task(2), QUICK, listener=Meanwhile())
    assert set(errors) == {
        "Lifelong: task: expected 2, which is being learnt, got 1",
        "Lifelong: task: a task per example is not available during learn()",
    }
    assert len(errors) == 50


def test_a_copy_has_a_switch_of_its_own() -> None:
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    twin = deepcopy(net)
    net.activate(1)
    assert (net.active, twin.active) == (1, 2)


def test_a_call_that_comes_while_learning_begins_never_writes_into_the_backbone() -> None:
    """Asked for just before, and let in just after, the learner has the backbone."""
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    net.activate(2)
    with net.transaction() as draft:
        weights = [weight.detach().clone() for _, weight in net.prunable()]
        for call in (lambda: net._switch.enter(1, net._write), lambda: net._switch.change(1, net._write)):
            with pytest.raises(ConfigError, match=f"expected {draft.number}, which is being learnt, got 1"):
                call()
        assert all(torch.equal(a, b) for a, (_, b) in zip(weights, net.prunable(), strict=True))
    assert net.active == 2


def test_gradients_of_the_inputs_are_those_of_the_task_that_ran() -> None:
    """A backward pass reads the weights once more, whatever has run meanwhile."""
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    net.eval()
    x = inputs_of(toy_task(1)).clone().requires_grad_()
    logits = net(x, task=1)
    (expected,) = torch.autograd.grad(logits.sum(), x, retain_graph=True)
    net(x.detach(), task=2)
    (found,) = torch.autograd.grad(logits.sum(), x)
    assert torch.equal(found, expected)
    net.activate(1)
    (plain,) = torch.autograd.grad(net.heads[0](net.backbone(x)).sum(), x)
    assert torch.equal(found, plain)


class Meanwhile(nn.Module):
    """Lets another thread do something while it is copied, or traced by torch.fx."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = self.traced = lambda: None

    def __deepcopy__(self, memo: dict[int, object]) -> Meanwhile:
        in_a_thread(self.copied)
        twin = Meanwhile()
        twin.traced = self.traced
        return twin

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            in_a_thread(self.traced)
        return x


def in_a_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


@pytest.fixture
def watched() -> tuple[Lifelong, Meanwhile]:
    meanwhile = Meanwhile()
    torch.manual_seed(0)
    net = Lifelong(nn.Sequential(*toy_convnet(), meanwhile), 16)
    for number in (1, 2):
        net.learn(toy_task(number, (3, 8, 8)), QUICK)
    return net.eval(), meanwhile


def test_a_copy_made_while_another_thread_switches_has_the_weights_of_its_task(
    watched: tuple[Lifelong, Meanwhile],
) -> None:
    net, meanwhile = watched
    expected = answers(net, [toy_task(1, (3, 8, 8)), toy_task(2, (3, 8, 8))])
    net.activate(1)
    meanwhile.copied = lambda: net.activate(2)
    twin = deepcopy(net)
    x = inputs_of(toy_task(2, (3, 8, 8)))
    assert twin.active == 2
    assert torch.equal(twin(x), expected[1])


def test_a_network_answers_while_another_thread_cuts_a_task_out(watched: tuple[Lifelong, Meanwhile]) -> None:
    net, meanwhile = watched
    task, found = toy_task(1, (3, 8, 8)), list[Tensor]()
    (expected,) = answers(net, [task])
    meanwhile.traced = lambda: found.append(net(inputs_of(task), task=1))
    net.extract(1)
    assert len(found) == 1
    assert torch.equal(found[0], expected)
