"""What each solver promises: exact shares, shares that emerge, a final projection that changes nothing, arrival."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong, LPSConfig
from lps.methods.lps.config import MaskRule, mask_rule
from lps.methods.lps.plan import rounded
from lps.methods.lps.straight_through import shrunk
from lps.partition import Partition
from lps.runs.events import TaskReport
from torch import Tensor

from lps_kernels import group_view, unpack_bits
from tests.command import run
from tests.toy import QUICK, toy_convnet, toy_net, toy_task

STRAIGHT = replace(QUICK, solver="straight-through", beta="auto", epochs=(2, 8, 2))


def learn(net: Lifelong, config: LPSConfig, tasks: int = 2) -> list[TaskReport]:
    return [net.learn(toy_task(number), config) for number in range(1, tasks + 1)]


def mask(partition: Partition, task: int) -> Tensor:
    bits: Tensor = unpack_bits(partition.mask(task), partition.shape)
    return bits


def share(net: Lifelong, task: int) -> float:
    """Share of the earlier tasks' weights that the task reuses."""
    reused = sum(int(mask(partition, task).sum()) for partition, _ in net.prunable())
    return reused / sum(p.owned_by(earlier) for p, _ in net.prunable() for earlier in range(1, task))


def test_rules_of_masks() -> None:
    assert mask_rule(0.5) == MaskRule(0.5)
    assert mask_rule("auto") == MaskRule(1.0, emerges=True)
    assert mask_rule("max:0.25") == MaskRule(0.25, emerges=True)
    assert [mask_rule(beta).learns for beta in (0, 0.5, 1, "auto", "max:0.5", "max:0")] == [0, 1, 0, 1, 1, 0]


def test_counts_fall_geometrically() -> None:
    assert [shrunk(1000, 10, progress) for progress in (0, 0.25, 0.5, 1)] == [1000, 316, 100, 10]
    assert [shrunk(1000, 0, progress) for progress in (0, 0.5, 0.99, 1)] == [1000, 32, 1, 0]
    assert shrunk(0, 0, 0.5) == 0
    assert shrunk(7, 7, 0.3) == 7


def test_a_share_emerges_and_the_final_projection_changes_nothing() -> None:
    net = toy_net()
    reports = learn(net, STRAIGHT, 3)
    for report in reports:
        assert report.accuracy > 0.85  # chance is 1/3
        assert report.accuracy_after_projection == report.accuracy_before_projection
    assert all(0.3 < share(net, task) < 0.99 for task in (2, 3)), "something is dropped, most is reused"
    assert all(isnan(value) for value in reports[0].shares.values()), "task 1 has nothing to reuse"
    weights = [partition.owned_by(1) for partition, _ in net.prunable()]
    mean = sum(s * w for s, w in zip(reports[1].shares.values(), weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(share(net, 2))


@pytest.mark.parametrize("solver", ["admm", "straight-through"])
def test_a_number_is_an_exact_share_and_max_a_bound(solver: Any) -> None:
    net = toy_net()
    config = replace(STRAIGHT, solver=solver, pull="proximal", beta={"0.*": 0.3, "*": "max:0.4"})
    learn(net, config)
    (first, _), (second, _) = net.prunable()
    assert int(mask(first, 2).sum()) == rounded(0.3 * first.owned_by(1))
    assert 0 < int(mask(second, 2).sum()) <= rounded(0.4 * second.owned_by(1))
    for partition in (first, second):
        assert partition.owned_by(2) == rounded(0.4 * partition.owner.numel()) - rounded(0.2 * partition.owner.numel())


@pytest.mark.parametrize("pattern", ["column", "filter", "channel"])
@pytest.mark.parametrize("beta", ["auto", 0.5])
def test_structured_sharing_has_one_fate_per_group(pattern: str, beta: float | str) -> None:
    torch.manual_seed(0)
    net = Lifelong(toy_convnet(), features=16, pattern=pattern, sharing="structured")
    for number in (1, 2):
        net.learn(toy_task(number, (3, 8, 8)), replace(STRAIGHT, beta=beta))
    for partition, _ in net.prunable():
        view = group_view(partition.shape, pattern)
        owned, reused = (partition.owner == 1).reshape(view), mask(partition, 2).reshape(view)
        groups = owned.any(dim=2).any(dim=0)
        whole = (reused == owned).all(dim=2).all(dim=0)
        none = ~reused.any(dim=2).any(dim=0)
        assert bool((whole | none)[groups].all())
        if beta == 0.5:
            assert int((~none & groups).sum()) == rounded(0.5 * int(groups.sum()))


def test_a_cost_of_sharing_makes_tasks_smaller() -> None:
    shares = []
    for cost in (0.0, 0.02):
        net = toy_net()
        learn(net, replace(STRAIGHT, share_cost=cost))
        shares.append(share(net, 2))
    assert shares[1] < 0.8 * shares[0]


def test_the_proximal_pull_arrives() -> None:
    """The distance to the projection falls to nothing; with the pull in the gradient it does not."""
    last = {}
    for pull in ("gradient", "proximal"):
        config = replace(QUICK, epochs=(2, 40, 0), schedule="cosine", rho=1e-3, pull=pull)
        reports = learn(toy_net(), config)
        last[pull] = [primal for _, primal, _ in reports[1].residuals][-1]
        if pull == "proximal":
            rho = [rho for rho, _, _ in reports[1].residuals]
            assert rho == sorted(rho)
            assert 0.5 < rho[-1] <= 1, "it grew a thousandfold"
            assert reports[1].accuracy_after_projection == reports[1].accuracy_before_projection
    assert last["proximal"] < 0.05 * last["gradient"]


def test_everything_is_in_the_run_directory(tmp_path: Path) -> None:
    arguments = ("--solver", "straight-through", "--beta", "max:0.9,auto", "--epochs", "1,4,1", "--tasks", "2")
    done = run(tmp_path, "lps.train", "--output", "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "% of earlier weights" in done.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    first, second = results["tasks"]
    assert set(first["shares"].values()) == {None}
    assert all(0 < value <= 1 for value in second["shares"].values())
    assert second["validation_before_projection"] == second["validation_after_projection"]
    assert len(second["residuals"]) == 3
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "2"]
    layers = {row["layer"]: float(row["share"]) for row in rows if row["event"] == "layer"}
    assert layers == second["shares"]
    assert [float(row["primal"]) > 0 for row in rows if row["event"] == "projection"] == [True] * 3
