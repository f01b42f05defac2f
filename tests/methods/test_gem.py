"""Gradient episodic memory: the projection, the remembered gradients and examples."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from lps import Arrays, Lifelong
from lps.errors import ConfigError, FileFormatError
from lps.methods.gem import GEM, INPUTS, LABELS, WEIGHTS, GEMLearner, correction
from lps.methods.options import GEMOptions
from torch import nn
from torch.nn.functional import cross_entropy

from tests.toy import QUICK, toy_mlp, toy_net, toy_task

# Of products of unit vectors: the ridge of the solver (1e-5) times factors of at most some tens.
CLOSE = 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_the_projection_meets_the_kkt_conditions(seed: int) -> None:
    """They hold for the closest vector with no negative product, and for no other."""
    torch.manual_seed(seed)
    count = 1 + seed % 8
    rows = torch.randn(count, 30) * 10.0 ** torch.randint(-4, 3, (count, 1))
    if seed % 3 == 0:
        rows = torch.cat([rows, rows[:1], torch.zeros(1, 30)])  # the same twice, and a task without a gradient
    gradient = -rows.sum(0) / rows.norm() + 0.3 * torch.randn(30)
    change = correction(gradient, rows)
    assert change is not None
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    scale = gradient.norm()
    products = unit @ (gradient + change) / scale
    assert products.min() >= -CLOSE
    # The change is a sum of rows with factors v >= 0, and those of constraints with room to spare are 0.
    active = unit[products < CLOSE].double()
    factors = torch.linalg.pinv(active.T, rtol=1e-6) @ change.double()
    torch.testing.assert_close(active.T @ factors, change.double(), rtol=0, atol=CLOSE * float(scale))
    if seed % 3:  # of equal rows only the sum of the factors is known
        assert factors.min() >= -CLOSE * scale


def test_a_gradient_that_harms_nobody_stays() -> None:
    rows = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert correction(torch.tensor([1.0, 0.0, 2.0]), rows, margin=0.5) is None
    assert correction(torch.tensor([torch.nan, -1.0, 0.0]), rows) is None  # the training loop reports it


def test_one_row_is_projected_by_hand_and_the_margin_added() -> None:
    gradient, row = torch.tensor([1.0, -2.0]), torch.tensor([[0.0, 4.0]])
    change = correction(gradient, row, margin=0.5)
    assert change is not None
    torch.testing.assert_close(gradient + change, torch.tensor([1.0, 0.0]) + 0.5 * row[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_no_step_goes_against_a_remembered_task(norms: str) -> None:
    """Seen from outside: products with gradients of the tasks' losses as the learnt network had them."""
    torch.manual_seed(0)
    net = Lifelong(toy_mlp(), 16, norms=norms)
    method = GEM(net, QUICK, GEMOptions(memory_size=40, margin=0.0))
    tasks = [replace(toy_task(1), class_weights=[1.0, 2.0, 5.0]), toy_task(2, classes=5), toy_task(3)]
    for task in tasks[:2]:
        method.learn(task)
    wanted = []
    for index, task in enumerate(tasks[:2]):
        net.eval()
        net.activate(index + 1)
        net.backbone.requires_grad_(True)
        names = [name for name, _ in net.backbone.named_parameters() if name not in net.private_names]
        logits = net.heads[index](net.backbone(method.memory[INPUTS][index]))
        loss = task.compute_loss(logits, method.memory[LABELS][index])
        grads = torch.autograd.grad(loss, [net.backbone.get_parameter(name) for name in names])
        wanted.append(torch.cat([grad.flatten() for grad in grads]))
        net.backbone.requires_grad_(False)
    with net.transaction() as draft:
        learner = method.learner(tasks[2], method.task_config(3), draft)
        assert isinstance(learner, GEMLearner)
        learner.begin_epoch()
        statistics = {name: buffer.clone() for name, buffer in net.backbone.named_buffers()}
        # The loss to fall is the negative of an earlier one, so that the constraint must act.
        parts = torch.split(wanted[0], [weight.numel() for weight in learner.weights])
        for weight, part in zip(learner.weights, parts, strict=True):
            weight.grad = -part.view_as(weight)
        learner.before_update()
        torch.testing.assert_close(learner.rows, torch.stack(wanted), rtol=1e-4, atol=1e-6)
        step = torch.cat([weight.grad.flatten() for weight in learner.weights if weight.grad is not None])
        for row in wanted:
            assert step @ row >= -CLOSE * row.norm() * wanted[0].norm()
        assert net.training
        assert all(torch.equal(buffer, statistics[name]) for name, buffer in net.backbone.named_buffers())


def test_examples_are_remembered_as_the_network_reads_them() -> None:
    task = toy_task(1)
    train = task.train
    assert isinstance(train, Arrays)
    doubled = replace(task, train=Arrays(train.inputs, train.labels, lambda inputs: 2 * inputs))
    method = GEM(toy_net(), replace(QUICK, precision="bf16"), GEMOptions(memory_size=30))
    method.learn(doubled)
    inputs, labels = method.memory[INPUTS][0], method.memory[LABELS][0]
    assert len(inputs) == 30
    known = {tuple(row): int(label) for row, label in zip((2 * train.inputs).tolist(), train.labels, strict=True)}
    assert [known[tuple(row)] for row in inputs.tolist()] == labels.tolist()
    assert len({tuple(row) for row in inputs.tolist()}) == 30
    method.learn(toy_task(2, classes=4))
    assert [len(method.memory[name]) for name in (INPUTS, LABELS, WEIGHTS)] == [2, 2, 2]


def test_adam_goes_on_with_the_shared_weights() -> None:
    method = GEM(toy_net(), QUICK)
    method.learn(toy_task(1))
    steps = method.steps(1, toy_task(1))
    with method.net.transaction() as draft:
        learner = method.learner(toy_task(2), method.task_config(2), draft)
        assert [state["step"].item() for state in learner.optimizer.state.values()] == [steps] * len(learner.shared)
        learner.state_dict()  # which has no place for parameters that are not trained, as those of earlier heads
    with pytest.raises(FileFormatError, match="exp_avg"):
        method.load_memory({name: method.memory[name] for name in (INPUTS, LABELS, WEIGHTS)})


def test_it_forgets_less_than_without_constraints() -> None:
    losses = []
    for options in (GEMOptions(), GEMOptions(memory_size=1, margin=0.0)):
        task, method = toy_task(1), GEM(toy_net(), QUICK, options)
        for other in (task, toy_task(2), toy_task(3)):
            method.learn(other)
        assert isinstance(task.test, Arrays)
        method.net.eval()
        losses.append(cross_entropy(method.net(task.test.inputs, task=1), task.test.labels).item())
    assert losses[0] < losses[1]


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quadprog", None)
    method = GEM(toy_net(), QUICK)
    method.check([toy_task(1)])
    method.learn(toy_task(1))
    for refused in (lambda: method.check([toy_task(1), toy_task(2)]), lambda: method.learn(toy_task(2))):
        with pytest.raises(ConfigError, match=r"pip install 'learn-prune-share\[rivals\]'"):
            refused()
    assert len(method.learnt) == 1


def test_a_loss_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="gem expects cross entropy"):
        GEM(toy_net(), QUICK).check([replace(toy_task(1), loss=nn.CrossEntropyLoss())])


def test_a_damaged_memory_is_refused() -> None:
    method = GEM(toy_net(), QUICK)
    method.learn(toy_task(1))
    good = method.memory
    labels = good[LABELS][0]
    for bad in (
        {},
        {**good, INPUTS: good[INPUTS] * 2},
        {**good, INPUTS: ["text"]},
        {**good, INPUTS: [good[INPUTS][0][:, :5]]},
        {**good, INPUTS: [good[INPUTS][0][:5]]},
        {**good, LABELS: [labels + 1]},
        {**good, LABELS: [labels - 1]},
        {**good, LABELS: [labels.float()]},
        {**good, LABELS: [labels[0]]},
        {INPUTS: [good[INPUTS][0][:0]], LABELS: [labels[:0]], WEIGHTS: good[WEIGHTS]},
        {**good, WEIGHTS: [torch.ones(2)]},
    ):
        with pytest.raises(FileFormatError):
            GEM(method.net, QUICK).load_memory(bad)
    GEM(method.net, QUICK).load_memory(good)
