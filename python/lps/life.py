"""What may happen to the tasks of a network after they were learnt: another name, and the removal of the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from lps.errors import ConfigError
from lps.names import check_new_name, number_of

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


def rename(net: Lifelong, task: int | str, name: str) -> None:
    """See :meth:`lps.Lifelong.rename`."""
    number = number_of(net.learnt, task)
    if not 1 <= number <= len(net.learnt):
        raise ConfigError(f"Lifelong: rename: expected task 1 to {len(net.learnt)}, got {number}")
    check_new_name(net.learnt, name, number)
    net.learnt[number - 1] = replace(net.learnt[number - 1], name=name)


@torch.no_grad()
def drop_last(net: Lifelong) -> int:
    """See :meth:`lps.Lifelong.drop_last`.

    A task that was lost with a damaged file may be dropped too, as long as another one is whole.
    """
    left = len(net.learnt) - 1
    if all(task.damage for task in net.learnt[:left]):
        raise ConfigError(
            f"Lifelong: drop_last: expected another task that is left, got none beside task {left + 1}; begin with a "
            "new network instead"
        )
    freed = sum(partition.owned_by(left + 1) for partition, _ in net.prunable())
    states = [(partition, partition.before_last()) for partition, _ in net.prunable()]  # before anything changes
    for partition, state in states:
        partition.go_back(state)
    del net.heads[left:], net.private[left:], net.learnt[left:]
    known, stream = net.metadata.accuracy, net.metadata.stream
    net.metadata = replace(
        net.metadata,
        accuracy=None if known is None else known[:left],
        # The next task need not be the stream's.
        stream=None if stream is None else replace(stream, tasks=min(stream.tasks, left)),
    )
    return freed
