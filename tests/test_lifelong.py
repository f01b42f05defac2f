"""Lifelong around a backbone: prunable weights, switching tasks, compile, autocast and copies."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError, DivergedError
from lps.methods import METHODS
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from tests.toy import QUICK, answers, inputs_of, toy_mlp, toy_net, toy_task


class Attention(nn.Module):
    """Twelve inputs as three tokens of four, with tied output layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.first = nn.Linear(12, 12, bias=False)
        self.second = nn.Linear(12, 12, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, 3, 4)
        mixed = self.norm(tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0])
        hidden: Tensor = self.second(torch.relu(self.first(mixed.flatten(1))))
        return hidden


def names(net: Lifelong) -> list[str]:
    return [partition.name for partition, _ in net.prunable()]


def test_prunable_weights_are_found() -> None:
    backbone = nn.ModuleDict(
        {
            "conv1": nn.Conv1d(2, 3, 3),
            "conv2": nn.Conv2d(2, 3, 3, bias=False),
            "conv3": nn.Conv3d(2, 3, 3),
            "attention": nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
            "norm": nn.BatchNorm1d(3),
            "embedding": nn.Embedding(5, 4),
        }
    )
    found = ["conv1.weight", "conv2.weight", "conv3.weight"]
    projections = [f"attention.{name}_proj_weight" for name in "qkv"]
    assert names(Lifelong(backbone, 1)) == [*found, *projections, "attention.out_proj.weight"]


def test_a_tied_weight_is_one_partition() -> None:
    net = Lifelong(Attention(), features=12)
    assert names(net) == ["attention.in_proj_weight", "attention.out_proj.weight", "first.weight"]
    places = {partition.name: partition.places for partition, _ in net.prunable()}
    assert places["first.weight"] == (("first", "weight"), ("second", "weight"))


def test_excluded_weights_are_learnt_with_task_1_and_then_frozen() -> None:
    net = Lifelong(toy_mlp(), features=16, exclude=["0.*"])
    assert names(net) == ["4.weight"]
    excluded = net.backbone.get_parameter("0.weight")
    initial = excluded.detach().clone()
    net.learn(toy_task(1), QUICK)
    learnt = excluded.detach().clone()
    assert not torch.equal(learnt, initial)
    net.learn(toy_task(2), QUICK)
    assert torch.equal(excluded, learnt)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lifelong(nn.ReLU(), 3), "backbone: expected a Linear, Conv or attention layer to prune, got none"),
        (lambda: Lifelong(toy_mlp(), 16, exclude=["9.*"]), r"exclude: expected patterns of .*4.weight.*, got 9\.\*"),
        (lambda: Lifelong(toy_mlp().bfloat16(), 16), "0.weight: expected float32 or float64, got torch.bfloat16"),
        (lambda: Lifelong(nn.LazyLinear(4), 4), "weight: expected initialised weights, got a lazy layer"),
        (lambda: Lifelong(toy_mlp(), 16, pattern="row"), "pattern: expected one of irregular, .*, got row"),
        (lambda: Lifelong(toy_mlp(), 16, sharing="all"), "sharing: expected one of elementwise, structured, got all"),
        (lambda: toy_net()(torch.zeros(1, 12)), "task: expected at least one learnt task, got none"),
        (lambda: toy_net()(torch.zeros(1, 12), task=1), "task: expected at least one learnt task, got none"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_task_that_was_not_learnt_is_refused() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    for task in (0, 2, -1):
        with pytest.raises(ConfigError, match=f"task: expected 1 to 1, got {task}"):
            net(torch.zeros(1, 12), task=task)


def test_without_an_argument_the_task_stays() -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    for task in tasks:
        net.learn(task, QUICK)
    net.eval()
    x = inputs_of(tasks[0])
    second, first = net(x), net(x, task=1)
    assert torch.equal(net(x), first)
    assert torch.equal(net(x, task=2), second)
    assert not torch.equal(first, second)


def test_attention_with_tied_weights_learns_without_forgetting() -> None:
    torch.manual_seed(0)
    net = Lifelong(Attention(), features=12)
    tasks = [toy_task(number) for number in (1, 2, 3)]
    kept = []
    for number, task in enumerate(tasks, start=1):
        net.learn(task, QUICK)
        assert torch.equal(net.backbone.first.weight, net.backbone.second.weight)  # type: ignore[arg-type,union-attr]
        assert net.accuracy(number, task.test) > 0.5  # chance is 1/3
        kept.append(answers(net, tasks[:number])[-1])
    assert all(torch.equal(a, b) for a, b in zip(answers(net, tasks), kept, strict=True))


def test_statistics_and_norms_are_frozen_after_task_1() -> None:
    net = toy_net()
    before = {name: tensor.detach().clone() for name, tensor in net.common_tensors()}
    net.learn(toy_task(1), QUICK)
    after = {name: tensor.detach().clone() for name, tensor in net.common_tensors()}
    assert {"0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "4.bias"} < set(after)
    assert not any(torch.equal(before[name], after[name]) for name in before)
    net.train()
    assert not net.backbone.get_submodule("1").training
    assert net.backbone.get_submodule("3").training, "dropout follows train()"
    net(torch.randn(8, 12) * 5 + 3)
    net.learn(toy_task(2), QUICK)
    assert all(torch.equal(after[name], tensor) for name, tensor in net.common_tensors())


def test_learn_leaves_eval_mode_and_nothing_to_train() -> None:
    for training in (True, False):
        net = toy_net().train(training)
        net.learn(toy_task(1), QUICK)
        assert not any(module.training for module in net.modules())
        assert not any(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_dropout_does_not_answer_at_random_after_learning(method: str) -> None:
    """The line after ``learn`` gives what the file gives."""
    kind = METHODS[method]
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 16), nn.ReLU())
    learner = kind(Lifelong(backbone, 16, norms=kind.reads.norms or "frozen").train(), QUICK)
    tasks = [toy_task(1), toy_task(2)]
    learner.check(tasks)
    for task in tasks:
        learner.learn(task)
        first, second = (learner.predict(inputs_of(task), len(learner.learnt)) for _ in range(2))
        assert torch.equal(first, second)
        assert not any(module.training for module in learner.net.modules())


def test_a_failure_leaves_the_mode() -> None:
    for training in (True, False):
        net = toy_net().train(training)
        with pytest.raises(DivergedError):
            net.learn(toy_task(1), replace(QUICK, lr=1e30))
        assert net.training is training


def test_a_copy_is_a_network_of_its_own() -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2), toy_task(3)]
    for task in tasks[:2]:
        net.learn(task, QUICK)
    before = answers(net, tasks[:2])
    twin = copy.deepcopy(net)
    twin.learn(tasks[2], QUICK)
    assert len(net.learnt) == 2
    assert len(twin.learnt) == 3
    for other in (net, twin):
        assert all(torch.equal(a, b) for a, b in zip(answers(other, tasks[:2]), before, strict=True))
    net.learn(tasks[2], QUICK)
    assert net.digest(3) == twin.digest(3)


def test_compiled_once_for_all_tasks() -> None:
    net, tasks = toy_net(), [toy_task(number) for number in range(1, 12)]
    for task in tasks:
        net.learn(task, replace(QUICK, alpha=0.05))
    expected = answers(net, tasks)
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=counter)
    with torch.no_grad():
        for number, task in enumerate(tasks, start=1):
            torch.testing.assert_close(compiled(inputs_of(task), task=number), expected[number - 1])
    # The backbone alone is compiled; the second entry allows for a recompilation with a dynamic batch size.
    assert 1 <= counter.frame_count <= 2


def test_learns_with_a_compiled_backbone() -> None:
    plain, compiled = toy_net(), toy_net()
    torch._dynamo.reset()
    compiled.backbone.compile(backend="aot_eager")
    for net in (plain, compiled):
        for number in (1, 2):
            net.learn(toy_task(number), QUICK)
    tasks = [toy_task(1), toy_task(2)]
    for a, b in zip(answers(plain, tasks), answers(compiled, tasks), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)  # a few dozen steps, which differ by rounding


def test_autocast_to_learn_and_to_answer() -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    with torch.autocast("cpu", torch.bfloat16):
        for task in tasks:
            net.learn(task, QUICK)
    exact = answers(net, tasks)
    with torch.autocast("cpu", torch.bfloat16):
        rough = answers(net, tasks)
    assert all(logits.dtype == torch.bfloat16 for logits in rough)
    for a, b in zip(exact, rough, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=0.1, atol=0.1)  # bf16 has 8 bits of mantissa
    assert net.accuracy(1, tasks[0].test) > 0.7


def test_channels_last_weights_can_be_switched() -> None:
    torch.manual_seed(0)
    net = Lifelong(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)), features=8)
    tasks = [toy_task(1, (3, 8, 8)), toy_task(2, (3, 8, 8))]
    for task in tasks:
        net.learn(task, QUICK)
    expected = answers(net, tasks)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net._switch.forget()
    for a, b in zip(answers(net, tasks), expected, strict=True):
        torch.testing.assert_close(a, b)
    net.learn(toy_task(3, (3, 8, 8)), QUICK)


def test_a_loaded_state_dict_is_not_taken_for_the_active_task() -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    for task in tasks:
        net.learn(task, QUICK)
    expected = answers(net, tasks)
    net(inputs_of(tasks[0]), task=1)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net(inputs_of(tasks[1]), task=2)
    net.load_state_dict(state)
    assert torch.equal(net(inputs_of(tasks[1]), task=2), expected[1])


def test_an_interrupted_switch_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    for task in tasks:
        net.learn(task, QUICK)
    expected = answers(net, tasks)
    second = list(net.prunable())[1][0]
    with monkeypatch.context() as patch:
        patch.setattr(second, "compose", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            net(inputs_of(tasks[0]), task=1)
    assert torch.equal(net(inputs_of(tasks[1]), task=2), expected[1])


def test_accuracy_leaves_the_mode_of_every_module() -> None:
    net, task = toy_net(), toy_task(1)
    net.learn(task, QUICK)
    net.backbone.get_submodule("3").eval()  # a user's choice
    modes = {name: module.training for name, module in net.named_modules()}
    net.accuracy(1, task.test)
    assert modes == {name: module.training for name, module in net.named_modules()}


def test_one_example_without_a_batch() -> None:
    net = Lifelong(nn.Linear(12, 16), features=16)
    net.learn(toy_task(1), QUICK)
    net.eval()
    x = torch.randn(12)
    torch.testing.assert_close(net(x, task=1), net(x[None], task=1)[0])
