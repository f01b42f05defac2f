"""Winning SubNetworks: what moves, what stays and what goes on to the next task."""

from __future__ import annotations

from dataclasses import replace

import torch
from lps.methods.scored import SCORES, WEIGHTS
from lps.methods.wsn import WSNLearner
from torch import Tensor, nn

from tests.methods.scores import CONFIG, TASKS, batch, begun, gradients, make


def test_weights_of_earlier_tasks_never_move() -> None:
    method = make("wsn")
    before: list[tuple[Tensor, Tensor]] = []
    for task in TASKS:
        method.learn(task)
        for (partition, _), (owned, values) in zip(method.net.prunable(), before, strict=False):
            assert torch.equal(partition.w_bar[owned], values)
        before = []
        for partition, _ in method.net.prunable():
            owned = ~partition.free()
            before.append((owned, partition.w_bar[owned].clone()))


def test_only_free_weights_inside_the_mask_get_a_gradient() -> None:
    """With dense moments: Adam moves a weight that has left the mask a little further, as in the authors' code."""
    method = make("wsn")
    method.learn(TASKS[0])
    learner, fit = begun(method)
    assert isinstance(learner, WSNLearner)
    for layer in learner.layers:  # the first mask is that of task 1, without free weights
        layer.scores.uniform_()
    learner.refresh()
    expected = gradients(learner, *batch(2))
    before = [layer.weights.clone() for layer in learner.layers]
    inside = [layer.parameter.detach() != 0 for layer in learner.layers]
    fit.step(*batch(2), 1.0)
    for layer, (gradient, _), old, kept in zip(learner.layers, expected, before, inside, strict=True):
        free = layer.partition.free()
        mean = learner.adam.state[layer.parameter]["weight_exp_avg"]
        torch.testing.assert_close(mean, torch.where(free, 0.1 * gradient, 0), rtol=1e-4, atol=1e-8)
        moved = layer.weights != old
        assert bool(moved.any())
        assert not bool((moved & ~(free & kept)).any())


def test_a_step_is_one_of_adam_for_weights_and_scores_together() -> None:
    """Against torch's Adam on leaves: both gradients are those of the same weights and scores."""
    learner, fit = begun(make("wsn"))
    weights = [nn.Parameter(layer.weights.clone()) for layer in learner.layers]
    scores = [nn.Parameter(layer.scores.clone()) for layer in learner.layers]
    adam = torch.optim.Adam([*weights, *scores], CONFIG.lr)
    for _ in range(3):
        for (of_weights, of_scores), w, s in zip(gradients(learner, *batch(1)), weights, scores, strict=True):
            w.grad, s.grad = of_weights, of_scores
        adam.step()
        fit.step(*batch(1), 1.0)
        for layer, w, s in zip(learner.layers, weights, scores, strict=True):
            torch.testing.assert_close(layer.weights, w.detach(), rtol=0, atol=2e-5)
            torch.testing.assert_close(layer.scores, s.detach(), rtol=0, atol=2e-5)


def test_scores_and_free_weights_go_on_to_the_next_task() -> None:
    method = make("wsn")
    method.learn(TASKS[0])
    memory = method.memory
    learner, _ = begun(method)
    for layer in learner.layers:
        name, free = layer.partition.name, layer.partition.free()
        assert torch.equal(layer.scores, memory[SCORES][name])
        assert torch.equal(layer.weights[free], memory[WEIGHTS][name][free])
        assert torch.equal(layer.weights[~free], layer.partition.w_bar[~free])
        # So the first mask of a task is the one before.
        assert torch.equal(layer.parameter.detach() != 0, ~free)


def test_weights_that_begin_at_0_learn() -> None:
    method = make("wsn")
    with torch.no_grad():
        for _, weight in method.net.prunable():
            weight[::2] = 0
    learner, fit = begun(method)
    chosen = [(layer.weights.abs() < 1e-30) & (layer.parameter.detach() != 0) for layer in learner.layers]
    for _ in range(3):
        fit.step(*batch(1), 1.0)
    moved = [
        int((layer.weights[zeros].abs() > 1e-4).sum()) for layer, zeros in zip(learner.layers, chosen, strict=True)
    ]
    assert all(moved)


def test_a_mask_without_free_weights_is_a_task_too() -> None:
    method = make("wsn")
    for task in TASKS:
        method.learn(task)
    method.config = replace(CONFIG, lr=1e-30)  # the scores, and so the mask, stay those of task 3
    digest = method.net.digest(3)
    method.learn(replace(TASKS[0], name="again"))
    for partition, _ in method.net.prunable():
        assert partition.owned_by(4) == 0
    assert method.net.digest(3) == digest
