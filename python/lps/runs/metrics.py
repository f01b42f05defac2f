"""Metrics of a run: from the accuracy matrix, and from the shares of weights that tasks own and use.

Row i of the matrix holds the accuracies on tasks 1, 2, ... after task i was learnt; None where a task was not learnt
yet. Metrics that depend on a NaN accuracy are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

from lps.partition import Partition
from lps_kernels import unpack_bits

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

Matrix = Sequence[Sequence[float | None]]

BYTES_OF_FP32 = 4


def average_accuracy(matrix: Matrix) -> float:
    """Mean over all learnt tasks after the last of them; NaN before the first."""
    return _mean(_learnt(matrix[-1])) if matrix else float("nan")


def forgetting(matrix: Matrix) -> float:
    """Mean over all tasks but the last of the best earlier accuracy minus the final one.

    0 for a single task, of which nothing can be forgotten; NaN before the first.
    """
    if len(matrix) == 1:
        return 0.0
    rows = [_learnt(row) for row in matrix]
    # A comparison with NaN is false, so max would drop it silently.
    best = [_maximum([row[task] for row in rows[task:-1]]) for task in range(len(rows) - 1)]
    return _mean([before - now for before, now in zip(best, rows[-1] if rows else [], strict=False)])


def bwt(matrix: Matrix) -> float:
    """Backward transfer: mean over all tasks but the last of the final accuracy minus that when it was learnt.

    0 for a single task, NaN before the first.
    """
    if len(matrix) == 1:
        return 0.0
    rows = [_learnt(row) for row in matrix]
    return _mean([rows[-1][task] - row[task] for task, row in enumerate(rows[:-1])])


def capacity(net: Lifelong) -> list[float]:
    """Per task, the fraction of all prunable weights that it owns."""
    owned = [sum(partition.owned_by(task) for partition in _partitions(net)) for task in _tasks(net)]
    return [count / _prunable_weights(net) for count in owned]


def capacity_per_layer(net: Lifelong) -> dict[str, list[float]]:
    """Per layer, the fraction of it that each task owns."""
    return {
        partition.name: [partition.owned_by(task) / partition.owner.numel() for task in _tasks(net)]
        for partition in _partitions(net)
    }


def density(net: Lifelong) -> list[float]:
    """Per task, the fraction of all prunable weights that it uses, own and reused."""
    used = []
    for task in _tasks(net):
        reused = (int(unpack_bits(p.mask(task), p.shape).sum()) for p in _partitions(net))
        used.append(sum(reused) + sum(p.owned_by(task) for p in _partitions(net)))
    return [count / _prunable_weights(net) for count in used]


def separate_bytes(net: Lifelong) -> int:
    """Size of separate dense fp32 networks, one per task: each with the whole backbone and the task's head."""
    backbone = _prunable_weights(net) + sum(tensor.numel() for _, tensor in net.common_tensors())
    heads = sum(parameter.numel() for parameter in net.heads.parameters())
    return BYTES_OF_FP32 * (len(net.learnt) * backbone + heads)


def _tasks(net: Lifelong) -> range:
    return range(1, len(net.learnt) + 1)


def _partitions(net: Lifelong) -> list[Partition]:
    return [partition for partition, _ in net.prunable()]


def _prunable_weights(net: Lifelong) -> int:
    return sum(partition.owner.numel() for partition in _partitions(net))


def _learnt(row: Sequence[float | None]) -> list[float]:
    return [accuracy for accuracy in row if accuracy is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _maximum(values: Sequence[float]) -> float:
    return float("nan") if any(map(isnan, values)) else max(values)
