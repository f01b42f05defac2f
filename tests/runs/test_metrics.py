"""The metrics of a run, against values computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import pytest
import torch
from lps import Lifelong
from lps.runs import metrics
from lps.task import Learnt
from torch import nn

from lps_kernels import pack_bits

MATRIX: list[list[float | None]] = [[0.9, None, None], [0.7, 0.8, None], [0.6, 0.85, 0.5]]


def test_average_accuracy_is_the_mean_of_the_last_row() -> None:
    assert metrics.average_accuracy(MATRIX) == pytest.approx((0.6 + 0.85 + 0.5) / 3)
    assert metrics.average_accuracy(MATRIX[:2]) == pytest.approx(0.75)


def test_forgetting_is_the_loss_from_the_best_earlier_accuracy() -> None:
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.85)) / 2)
    # Task 1 got better after task 2 and lost after task 3: its best is the 0.95 in between.
    assert metrics.forgetting([[0.9], [0.95, 0.8], [0.6, 0.8, 0.5]]) == pytest.approx((0.35 + 0.0) / 2)


def test_bwt_is_the_change_since_a_task_was_learnt() -> None:
    assert metrics.bwt(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.85 - 0.8)) / 2)


def test_one_task_forgets_nothing() -> None:
    assert (metrics.average_accuracy([[0.9]]), metrics.forgetting([[0.9]]), metrics.bwt([[0.9]])) == (0.9, 0.0, 0.0)


@pytest.mark.parametrize("metric", [metrics.average_accuracy, metrics.forgetting, metrics.bwt])
def test_nothing_learnt_is_nan_and_nan_stays_nan(metric: Callable[[metrics.Matrix], float]) -> None:
    assert isnan(metric([]))
    assert isnan(metric([[float("nan")], [0.9, 0.8], [float("nan"), 0.8, 0.7]]))


@pytest.fixture
def net() -> Lifelong:
    """Layers of 2x4 and 3x2 weights; task 1 owns 4 + 2, task 2 owns 2 + 3 and reuses 1 + 2 of task 1."""
    net = Lifelong(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3, bias=False)), 3)
    owners = ([1, 1, 1, 1, 2, 2, 0, 0], [1, 1, 2, 2, 2, 0])
    masks = ([1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0])
    for (partition, _), owner, mask in zip(net.prunable(), owners, masks, strict=True):
        partition.owner.copy_(torch.tensor(owner, dtype=torch.uint8).view(partition.shape))
        partition.add_task(pack_bits(torch.zeros(partition.shape, dtype=torch.bool)))
        partition.add_task(pack_bits(torch.tensor(mask).bool().view(partition.shape)))
    net.heads.extend([nn.Linear(3, 10), nn.Linear(3, 2)])
    net.learnt += [Learnt("first", 10, ""), Learnt("second", 2, "")]
    return net


def test_capacity_and_density(net: Lifelong) -> None:
    assert metrics.capacity(net) == [6 / 14, 5 / 14]
    assert metrics.capacity_per_layer(net) == {"0.weight": [0.5, 0.25], "1.weight": [2 / 6, 0.5]}
    assert metrics.density(net) == [6 / 14, (5 + 3) / 14]


def test_separate_networks_hold_the_backbone_each_and_a_head(net: Lifelong) -> None:
    backbone, heads = 8 + 2 + 6, (30 + 10) + (6 + 2)
    assert metrics.separate_bytes(net) == 4 * (2 * backbone + heads)


def test_forward_transfer_is_against_a_network_of_its_own() -> None:
    matrix: metrics.Matrix = [[0.9, None, None], [0.8, 0.7, None], [0.7, 0.6, 0.5]]
    alone: metrics.Matrix = [[0.1, None, None], [0.1, 0.5, None], [0.1, 0.5, 0.6]]
    assert metrics.forward_transfer(matrix, alone) == pytest.approx(((0.7 - 0.5) + (0.5 - 0.6)) / 2)
    assert metrics.forward_transfer(matrix, matrix) == 0
    assert isnan(metrics.forward_transfer([[0.9]], [[0.8]]))


def test_mean_and_deviation() -> None:
    assert metrics.mean_and_deviation([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, (7 / 3) ** 0.5))
    mean, deviation = metrics.mean_and_deviation([0.5])
    assert mean == 0.5
    assert isnan(deviation)
    assert all(map(isnan, metrics.mean_and_deviation([])))
