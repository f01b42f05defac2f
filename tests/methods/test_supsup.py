"""Supermasks in Superposition: weights that never move, and scores of every task's own."""

from __future__ import annotations

from math import prod, sqrt

import torch
from lps.methods.scored import WEIGHTS

from tests.methods.scores import TASKS, backbone, batch, begun, make


def test_weights_are_signed_constants_that_never_move() -> None:
    method = make("supsup")
    for task in TASKS:
        method.learn(task)
        for partition, _ in method.net.prunable():
            first = backbone().get_parameter(partition.name).detach()
            constants = first.sign() * sqrt(2 / prod(first.shape[1:]))
            torch.testing.assert_close(method.memory[WEIGHTS][partition.name], constants, rtol=1e-7, atol=0)
            owned = ~partition.free()
            assert torch.equal(partition.w_bar[owned], method.memory[WEIGHTS][partition.name][owned])


def test_the_file_holds_only_what_some_task_uses() -> None:
    method = make("supsup")
    method.learn(TASKS[0])
    for partition, _ in method.net.prunable():
        assert int((~partition.free()).sum()) == round(0.3 * partition.w_bar.numel())
        assert not bool(partition.w_bar[partition.free()].any())


def test_every_task_has_scores_of_its_own() -> None:
    method = make("supsup")
    method.learn(TASKS[0])
    assert method.memory.keys() == {WEIGHTS}
    learner, fit = begun(method)
    layer = learner.layers[0]
    bound = 1 / sqrt(prod(layer.weights.shape[1:]))
    assert 0 <= float(layer.scores.min()) < 0.1 * bound
    assert 0.9 * bound < float(layer.scores.max()) <= bound
    weights = layer.weights.clone()
    fit.step(*batch(2), 1.0)
    assert torch.equal(layer.weights, weights)
