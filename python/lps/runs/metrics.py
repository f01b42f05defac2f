"""Metrics of a run: from the accuracy matrix, and from the shares of weights that tasks own and use.

Row i of the matrix holds the accuracies on tasks 1, 2, ... after task i was learnt; None where a task was not learnt
yet. Metrics that depend on a NaN accuracy are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import isnan, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from lps.artifact.codes import narrowed
from lps.partition import Partition
from lps_kernels import unpack_bits
from lps_kernels.owner import TASK_BITS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

Matrix = Sequence[Sequence[float | None]]

BYTES_OF_FP32 = 4
SYMBOL = 7  # bits of a mask that are coded together


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


def incremental_accuracy(matrix: Matrix) -> float:
    """Mean over all rows of the mean over the tasks learnt by then; NaN before the first."""
    return _mean([_mean(_learnt(row)) for row in matrix])


def forward_transfer(matrix: Matrix, alone: Matrix) -> float:
    """Forward transfer: mean over all tasks from the second on of the accuracy when it was learnt minus that of a
    network of its own, whose matrix is ``alone``; NaN for a single task.
    """
    learnt, apart = ([_learnt(row)[-1] for row in rows[1:]] for rows in (matrix, alone))
    return _mean([accuracy - reference for accuracy, reference in zip(learnt, apart, strict=True)])


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (that of a sample, by n - 1) over seeds; NaN where there are too few values."""
    mean = _mean(values)
    if len(values) < 2:
        return mean, float("nan")
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def capacity(net: Lifelong) -> list[float]:
    """Per task, the fraction of all prunable weights that it owns; 1 where every task has a network of its own."""
    if not _partitions(net):
        return [1.0] * len(net.learnt)
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
    if not _partitions(net):
        return [1.0] * len(net.learnt)
    used = [sum(int(_used(partition, task).sum()) for partition in _partitions(net)) for task in _tasks(net)]
    return [count / _prunable_weights(net) for count in used]


def coded_capacity(net: Lifelong) -> float:
    """CAP as in Winning SubNetworks (Kang et al., ICML 2022, section 4): the weights that any task owns, as the file
    stores them, and the Huffman-coded mask of every task, as a share of one dense fp32 network.

    A mask is coded by symbols of 7 bits, as there. Weights that all tasks share need no masks.
    """
    if not _partitions(net):
        return float(len(net.learnt))
    weights = _prunable_weights(net)
    bits = 8 * sum(_owned_bytes(partition, task) for partition in _partitions(net) for task in _tasks(net))
    for task in _tasks(net):
        used = torch.cat([_used(partition, task).flatten() for partition in _partitions(net)])
        bits += 0 if bool(used.all()) else huffman_bits(used)
    return bits / (8 * BYTES_OF_FP32 * weights)


def _owned_bytes(partition: Partition, task: int) -> int:
    """The bytes in the file of the weights that the task owns; of fp64 networks those that fp32 would take."""
    values, _ = narrowed(partition.w_bar[partition.owner & TASK_BITS == task])
    return values.numel() * min(values.itemsize, BYTES_OF_FP32)


def huffman_bits(flags: Tensor) -> int:
    """Length of the flags in a Huffman code of their symbols of 7 bits, without the table of the code."""
    padded = pad(flags.to(torch.uint8), (0, -flags.numel() % SYMBOL)).view(-1, SYMBOL)
    symbols = (padded.long() << torch.arange(SYMBOL, device=flags.device)).sum(1)
    counts = [count for count in torch.bincount(symbols).tolist() if count]
    if len(counts) == 1:
        return int(counts[0])  # one symbol alone still takes a bit
    heapify(counts)
    total = 0  # every merge lengthens the codes of what it merges by a bit
    while len(counts) > 1:
        merged = heappop(counts) + heappop(counts)
        total += merged
        heappush(counts, merged)
    return total


def separate_bytes(net: Lifelong) -> int:
    """Size of separate dense fp32 networks, one per task: each with the whole backbone and the task's head."""
    backbone = _prunable_weights(net) + sum(tensor.numel() for _, tensor in net.common_tensors())
    heads = sum(parameter.numel() for parameter in net.heads.parameters())
    return BYTES_OF_FP32 * (len(net.learnt) * backbone + heads)


def _used(partition: Partition, task: int) -> Tensor:
    """The coordinates that a task runs with, own and reused."""
    reused: Tensor = unpack_bits(partition.mask(task), partition.shape)
    return reused | (partition.owner & TASK_BITS == task)


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
