"""One task of a network as a network of its own."""

from __future__ import annotations

from copy import deepcopy

import torch

from lps.errors import ConfigError
from lps.lifelong import Lifelong
from lps.partition import Partition
from lps_kernels import pack_bits, unpack_bits
from lps_kernels.owner import TASK_BITS


@torch.no_grad()
def one_task(net: Lifelong, task: int) -> Lifelong:
    """A network with this task alone, which answers bit for bit as it does in ``net`` and has the same digest.

    The weights that the task uses, its own and those it reuses, become the weights of the one task; all others are free
    for tasks to come. ``net`` stays as it is. ``metadata.from_task`` says which task it was, and of which stream.
    """
    if net.learning:
        raise ConfigError("one_task: a task is being learnt; call it when learn has returned")
    net.check_task(task)
    alone = net.blank_copy()
    for (old, _), (new, _) in zip(net.prunable(), alone.prunable(), strict=True):
        _take(old, new, task)
    alone.heads.append(deepcopy(net.heads[task - 1]))
    alone.add_private(net.private_of(task))
    alone.learnt.append(net.learnt[task - 1])
    alone.metadata = deepcopy(net.metadata.of_task(task))
    alone.requires_grad_(False)
    if alone.can_run:
        alone.activate(1)
    return alone.eval()


def _take(old: Partition, new: Partition, task: int) -> None:
    """Give task 1 of ``new`` exactly the weights that ``task`` uses in ``old``."""
    used = (old.owner & TASK_BITS == task) | unpack_bits(old.mask(task), old.shape)
    new.owner.copy_(used)
    old.compose(task, out=new.w_bar)
    new.init_std = old.init_std
    # Shares of tasks to come are rounded from here on; groups that are wholly owned are at most this share of them.
    new.spent = int(used.count_nonzero()) / max(1, used.numel())
    new.add_task(pack_bits(torch.zeros_like(used)))
