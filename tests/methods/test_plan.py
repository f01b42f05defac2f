"""Exact counts of owned and reused weights, computed before a task is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lps import Lifelong, LPSConfig
from lps.errors import CapacityError, ConfigError
from lps.methods.lps.plan import plan_task, rounded
from lps.partition import Partition
from torch import Tensor, nn

from lps_kernels import unpack_bits
from tests.toy import QUICK, answers, toy_mlp, toy_net, toy_task


def owned(net: Lifelong) -> list[list[int]]:
    """Own weights per task and layer."""
    return [[p.owned_by(task) for p, _ in net.prunable()] for task in range(1, len(net.learnt) + 1)]


def test_rounding_is_to_the_nearest_and_halves_go_up() -> None:
    assert [rounded(x) for x in (0.4, 0.5, 1.5, 2.5, 2.51)] == [0, 1, 2, 3, 3]


def test_shares_are_rounded_cumulatively() -> None:
    """27 columns at 50 % and five times 10 %: rounded separately the tasks would need 14 + 5 * 3 = 29."""
    net = Lifelong(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), features=144, pattern="column")
    tasks = [toy_task(number, (3, 8, 8)) for number in range(1, 7)]
    for number, task in enumerate(tasks, start=1):
        net.learn(task, replace(QUICK, alpha=0.5 if number == 1 else 0.1))
    assert [columns // 4 for (columns,) in owned(net)] == [14, 2, 3, 3, 2, 3]


def test_exactly_the_planned_weights_are_owned_and_reused() -> None:
    net = toy_net()
    for number in range(1, 5):
        before = [partition.owner.clone() for partition, _ in net.prunable()]
        plans = plan_task(net, QUICK.of_task(number))
        net.learn(toy_task(number), QUICK)
        for plan, old, (partition, _) in zip(plans, before, net.prunable(), strict=True):
            assert partition.owned_by(number) == plan.keep_free
            taken = old != 0
            assert torch.equal(partition.owner[taken], old[taken]), "a task may not take what another owns"
            mask = _unpacked(partition, number)
            assert int(mask.sum()) == plan.keep_owned
            assert not mask[~taken].any(), "only owned weights are reused"
            assert not partition.w_bar[partition.free()].any()
            assert int(partition.owner.max()) <= number, "no bit of the projection stays behind"


def _unpacked(partition: Partition, task: int) -> Tensor:
    mask: Tensor = unpack_bits(partition.mask(task), partition.shape)
    return mask


@pytest.mark.parametrize("pattern", ["column", "filter", "channel"])
def test_structure_of_what_is_owned_and_reused(pattern: str) -> None:
    net = toy_net(pattern=pattern, sharing="structured")
    for number in (1, 2, 3):
        net.learn(toy_task(number), QUICK)
    axis = 1 if pattern == "filter" else 0
    for partition, _ in net.prunable():
        same_owner = partition.owner == partition.owner.narrow(axis, 0, 1)
        assert same_owner.all(), "a group has one owner"
        mask = _unpacked(partition, 3)
        assert (mask == mask.narrow(axis, 0, 1)).all(), "a group is reused whole or not at all"
        assert mask.any()
        assert not mask.all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_all_or_nothing_is_reused(beta: float) -> None:
    net = toy_net()
    for number in (1, 2, 3):
        net.learn(toy_task(number), replace(QUICK, beta=beta))
    for partition, weight in net.prunable():
        reused = _unpacked(partition, 3)
        earlier = torch.isin(partition.owner, torch.tensor([1, 2]))
        assert torch.equal(reused, earlier if beta else torch.zeros_like(reused))
        assert int((weight != 0).sum()) <= partition.owned_by(3) + int(reused.sum())


def test_the_last_task_takes_the_rest_beside_the_reserve() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    net.learn(toy_task(2), replace(QUICK, alpha="rest", reserve=0.25))
    for partition, _ in net.prunable():
        assert int(partition.free().sum()) == rounded(0.25 * partition.owner.numel())
    with pytest.raises(CapacityError, match=r"task 3: alpha asks for .* are free beside the reserve of 0\.25"):
        net.learn(toy_task(3), replace(QUICK, reserve=0.25))
    net.learn(toy_task(3), replace(QUICK, alpha="rest"))
    assert not any(partition.free().any() for partition, _ in net.prunable())
    with pytest.raises(CapacityError, match="task 4: no layer has anything free beside the reserve"):
        net.learn(toy_task(4), replace(QUICK, alpha="rest"))


def test_a_full_network_still_learns_by_reuse_alone() -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    net.learn(tasks[0], replace(QUICK, alpha="rest"))
    before = answers(net, tasks[:1])
    net.learn(tasks[1], replace(QUICK, alpha=0))
    assert owned(net)[1] == [0, 0]
    assert net.accuracy(2, tasks[1].test) > 0.6  # chance is 1/3
    assert torch.equal(answers(net, tasks)[0], before[0])


def test_refused_before_training_with_what_would_fit() -> None:
    net = toy_net()
    net.learn(toy_task(1), replace(QUICK, alpha=0.7))
    digest = net.digest(1)
    with pytest.raises(
        CapacityError,
        match=r"task 2: alpha asks for 144 of the 288 weights of layer 0.weight, but 86 are free; an alpha of at most "
        r"0.2986 fits every layer \(0 only reuses\)",
    ):
        net.learn(toy_task(2), replace(QUICK, alpha=0.5))
    assert len(net.heads) == 1
    assert net.digest(1) == digest
    net.learn(toy_task(2), replace(QUICK, alpha=0.2986))


def test_a_layer_that_would_keep_nothing_is_refused() -> None:
    net = Lifelong(toy_mlp(), features=16, pattern="column")
    with pytest.raises(CapacityError, match=r"task 1: layer 0.weight would own none of its 12 columns \(12 are free\)"):
        net.learn(toy_task(1), replace(QUICK, alpha=0.04))


def test_shares_per_layer() -> None:
    net = toy_net()
    net.learn(toy_task(1), replace(QUICK, alpha={"0.*": 0.5, "*": 0.25}, beta={"*": 0.5}))
    assert owned(net) == [[144, 96]]
    with pytest.raises(ConfigError, match=r"alpha: expected a share for layer 4.weight, got patterns 0.\*"):
        net.learn(toy_task(2), replace(QUICK, alpha={"0.*": 0.5}))


def test_a_pattern_without_a_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"alpha: expected patterns of layers \(0.weight, 4.weight\), got fc\*"):
        toy_net().learn(toy_task(1), replace(QUICK, alpha={"fc*": 0.9, "*": 0.1}))


def test_masks_need_admm() -> None:
    net = toy_net()
    net.learn(toy_task(1), replace(QUICK, epochs=(1, 0, 1)))
    with pytest.raises(
        ConfigError, match=r"masks are learnt in the solver's phase, which has 0 epochs: expected 0 or 1"
    ):
        net.learn(toy_task(2), replace(QUICK, epochs=(1, 0, 1)))
    net.learn(toy_task(2), replace(QUICK, epochs=(1, 0, 1), beta=1))


def test_half_precision_weights_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"0.weight: expected float32 or float64, got torch.float16"):
        toy_net().half().learn(toy_task(1), QUICK)


def test_the_pattern_may_change_between_tasks() -> None:
    net, tasks = toy_net(pattern="column"), [toy_task(1), toy_task(2), toy_task(3)]
    net.learn(tasks[0], QUICK)
    net.pattern = "filter"
    net.learn(tasks[1], QUICK)
    net.pattern = "irregular"
    net.learn(tasks[2], QUICK)
    counts = owned(net)
    assert counts[0] == [2 * 24, 5 * 16]
    # Filters of which the first task owns columns: only their free part is taken.
    assert counts[1] == [(rounded(24 * 0.4) - rounded(24 * 0.2)) * 10, 3 * 19]
    assert all(digest == net.digest(task) for task, digest in enumerate([t.digest for t in net.learnt], start=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1.5}, "alpha: expected a number from 0 to 1, got 1.5"),
        ({"alpha": {"*": -1}}, r"alpha\[\*\]: expected a number from 0 to 1, got -1"),
        ({"beta": "most"}, "beta: expected a number from 0 to 1, auto, or max: and such a number, got most"),
        ({"beta": "max:1.5"}, "beta: expected a number from 0 to 1, auto, or max: and such a number, got max:1.5"),
        ({"beta": "max:"}, "beta: expected a number from 0 to 1, auto, or max: and such a number, got max:"),
        ({"beta": float("nan")}, "beta: expected a number from 0 to 1, auto, or max: and such a number, got nan"),
        ({"solver": "sgd"}, "solver: expected one of admm, straight-through, got sgd"),
        ({"pull": "push"}, "pull: expected one of gradient, proximal, got push"),
        ({"share_cost": float("inf")}, "share_cost: expected a finite number, got inf"),
        ({"share_cost": 0.1}, "share_cost: expected 0, as only straight-through has a cost, got 0.1"),
        ({"reserve": True}, "reserve: expected a number from 0 to 1, got True"),
        ({"epochs": (1, 2)}, r"epochs: expected three counts of at least 0, got \(1, 2\)"),
        ({"epochs": (0, 0, 0)}, "epochs: expected at least one epoch in all"),
        ({"batch_size": 0}, "batch_size: expected 1 to 2147483647, got 0"),
        ({"lr": 0.0}, "lr: expected a number above 0, got 0"),
        ({"lr": float("nan")}, "lr: expected a number above 0, got nan"),
        ({"schedule": "steps"}, "schedule: expected one of constant, linear, cosine, got steps"),
        ({"rho": -1.0}, "rho: expected a number from 0 to 1e6, got -1"),
        ({"rho_levels": 0}, "rho_levels: expected 1 to 12, got 0"),
        ({"seed": -1}, r"seed: expected 0 to 2\^63 - 1, got -1"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LPSConfig(**changes)  # type: ignore[arg-type]


def test_no_more_than_127_tasks() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    net.learnt *= 127
    with pytest.raises(CapacityError, match="task 128: expected at most 127 tasks in one network"):
        net.learn(toy_task(2), QUICK)
