"""How many weights or groups of each layer a task takes and reuses, computed before it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from lps.errors import CapacityError, ConfigError
from lps.methods.lps.config import MaskRule, TaskConfig, check_patterns, mask_rule, share_of
from lps.partition import check_dtype, count_groups
from lps_kernels import View, group_view
from lps_kernels.owner import MAX_TASKS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

UNITS = {"irregular": "weights", "column": "columns", "filter": "filters", "channel": "channels"}


@dataclass(frozen=True)
class LayerPlan:
    """Exact counts of weights or groups for one layer and one task."""

    free: int  # groups with something free, before the task
    owned: int  # groups with something owned
    keep_free: int
    keep_owned: int  # an upper bound where the share of masks emerges
    view: View
    sharing_view: View
    masks: MaskRule
    spent: float  # sum of alpha over all tasks up to this one


def plan_task(net: Lifelong, config: TaskConfig) -> list[LayerPlan]:
    """Counts for every layer, or a refusal that says how much is free and what would fit."""
    task = len(net.learnt) + 1
    if task > MAX_TASKS:
        raise CapacityError(f"task {task}: expected at most {MAX_TASKS} tasks in one network")
    net.check_settings()
    layers = [partition.name for partition, _ in net.prunable()]
    check_patterns("alpha", config.alpha, layers)
    check_patterns("beta", config.beta, layers)
    plans = []
    room = []  # (free share, layer, asked, allowed, groups) of layers with too little free
    for partition, _ in net.prunable():
        check_dtype(partition.name, partition.w_bar)
        view = group_view(partition.shape, net.pattern)
        sharing_view = group_view(partition.shape, net.pattern if net.sharing == "structured" else "irregular")
        free, groups = partition.free(), view[1]
        free_groups, owned_groups = count_groups(free, view), count_groups(~free, sharing_view)
        allowed = max(0, free_groups - rounded(groups * config.reserve))
        if config.alpha == "rest":
            keep_free, spent = allowed, 1 - config.reserve
        else:
            spent = partition.spent + share_of("alpha", config.alpha, partition.name)
            keep_free = rounded(groups * spent) - rounded(groups * partition.spent)
        if keep_free > allowed:
            room.append((allowed / groups, partition.name, keep_free, allowed, groups))
        masks = mask_rule(share_of("beta", config.beta, partition.name))
        if task > 1 and masks.learns and config.epochs[1] == 0:
            raise ConfigError(
                "beta: masks are learnt in the solver's phase, which has 0 epochs: expected 0 or 1, got "
                f"{share_of('beta', config.beta, partition.name)}"
            )
        keep_owned = rounded(masks.share * owned_groups)
        plans.append(LayerPlan(free_groups, owned_groups, keep_free, keep_owned, view, sharing_view, masks, spent))
    if room:
        share, layer, asked, allowed, groups = min(room)
        unit = UNITS[net.pattern]
        reserved = f" beside the reserve of {config.reserve:g}" if config.reserve else ""
        raise CapacityError(
            f"task {task}: alpha asks for {asked} of the {groups} {unit} of layer {layer}, but "
            f"{allowed} are free{reserved}; an alpha of at most {floor(share * 1e4) / 1e4:g} fits every layer (0 only "
            f"reuses)"
        )
    if config.alpha == "rest" and not any(plan.keep_free for plan in plans):
        raise CapacityError(f"task {task}: no layer has anything free beside the reserve; only alpha 0 (reuse) fits")
    for (partition, _), plan in zip(net.prunable(), plans, strict=True):
        if plan.keep_free == 0 and plan.keep_owned == 0:  # no signal would pass this layer
            raise CapacityError(
                f"task {task}: layer {partition.name} would own none of its {plan.view[1]} {UNITS[net.pattern]} "
                f"({plan.free} are free) and reuse none; raise its alpha or beta"
            )
    return plans


def rounded(share: float) -> int:
    """The nearest integer, halves up; Python's round() takes halves to the even one."""
    return floor(share + 0.5)
