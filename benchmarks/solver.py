"""The accuracy of the solvers on short schedules: tasks 2 to 4 of split CIFAR, all from one task 1.

Every row learns the three tasks with 50 epochs each, once per seed; seeds vary tasks 2 to 4, task 1 is one. Rows are
compared by their differences to PackNet (full sharing, pruned once) with the same seed. Each finished row is kept in a
file of its own and not run again, so that several processes can share the work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Literal

import torch
from lps import Lifelong, LPSConfig, load
from lps.data import stream
from lps.environment import processor
from lps.models import create
from lps.runs.metrics import capacity, density
from lps.task import Task

TASKS = 4
NETWORK, FEATURES = "cifar-net", 512
FIRST = LPSConfig(alpha=0.5, epochs=(4, 12, 4), schedule="cosine", rho=1e-4, channels_last=True)
LATER = LPSConfig(alpha=0.1, epochs=(10, 30, 10), schedule="cosine", channels_last=True)
PACKNET = "packnet"
ROWS = {
    PACKNET: replace(LATER, beta=1.0, epochs=(30, 0, 20)),
    "straight-through": replace(LATER, solver="straight-through", beta="auto"),
    "admm-proximal": replace(LATER, solver="admm", pull="proximal", beta=0.92),
    "admm-gradient": replace(LATER, solver="admm", pull="gradient", beta=0.92, rho=1e-4),
    "straight-through-beta-1": replace(LATER, solver="straight-through", beta=1.0),
    "straight-through-beta-0.72": replace(LATER, solver="straight-through", beta=0.72),
    "admm-proximal-beta-1": replace(LATER, solver="admm", pull="proximal", beta=1.0),
}
# Bounds on the paired difference to PackNet: of the mean over seeds, and of every seed (points).
BOUNDS = {"straight-through": (1.5, 0.8), "admm-proximal": (0.5, None)}
PROJECTION_LOSS = 0.3  # points of validation accuracy, mean over tasks and seeds

Result = dict[str, Any]
Precision = Literal["fp32", "bf16"]


def print_solvers(data_dir: Path, names: Sequence[str], seeds: Sequence[int], output: Path) -> bool:
    """Run what is missing, print every row beside PackNet; returns whether all bounds hold."""
    precision: Precision = "bf16" if _has_bf16() else "fp32"
    print(f"{processor()}, {torch.get_num_threads()} threads, {precision} training steps", flush=True)
    tasks = list(stream("split-cifar", data_dir=data_dir, tasks=TASKS, seed=0, download=False))
    output.mkdir(parents=True, exist_ok=True)
    first = _first_task(tasks[0], output / "task1.lps", precision)
    results: list[Result] = []
    for seed in seeds:
        for name in names:
            kept = output / f"{name}-seed{seed}.json"
            if not kept.exists():
                result = run_row(name, ROWS[name], seed, first, tasks[1:], precision)
                kept.write_text(json.dumps(result, indent=1) + "\n")
            results.append(json.loads(kept.read_text()))
            print(_line(results, name, seed), flush=True)
    print()
    hold = [_summary(results, name, seeds) for name in names]
    return all(hold)


def _has_bf16() -> bool:
    """Whether the processor multiplies bf16 itself. oneDNN also emulates it on AVX-512, at a third of fp32's speed."""
    return any(has for name, has in torch.cpu.get_capabilities().items() if name.endswith("bf16"))


def _first_task(task: Task, path: Path, precision: Precision) -> Path:
    """The file with task 1, learnt if it is not there yet."""
    if not path.exists():
        torch.manual_seed(0)
        net = Lifelong(create(NETWORK), FEATURES)
        net.learn(task, replace(FIRST, precision=precision))
        net.save(path)
    net = load(path)
    print(f"task 1: test {100 * net.accuracy(1, task.test):.2f} %", flush=True)
    return path


def run_row(
    name: str, config: LPSConfig, seed: int, first: Path, tasks: Sequence[Task], precision: Precision
) -> Result:
    """Learn tasks 2 to 4 with these settings."""
    net, begin = load(first), perf_counter()
    result: Result = {"row": name, "seed": seed, "precision": precision, "processor": processor()}
    result |= {"test": [], "validation": [], "before_projection": [], "after_projection": [], "share": []}
    for task in tasks:
        report = net.learn(task, replace(config, seed=seed, precision=precision))
        result["test"].append(net.accuracy(len(net.learnt), task.test))
        result["validation"].append(report.accuracy)
        result["before_projection"].append(report.accuracy_before_projection)
        result["after_projection"].append(report.accuracy_after_projection)
        result["share"].append(_share(net))
    result["seconds"] = round(perf_counter() - begin)
    return result


def _share(net: Lifelong) -> float:
    """Share of the earlier tasks' weights that the latest task reuses."""
    *earlier, own = capacity(net)
    return (density(net)[-1] - own) / sum(earlier)


def _find(results: Sequence[Result], name: str, seed: int) -> Result | None:
    return next((result for result in results if (result["row"], result["seed"]) == (name, seed)), None)


def _loss(result: Result) -> float:
    """Points of validation accuracy that the final projection cost, mean over tasks."""
    return 100 * (fmean(result["before_projection"]) - fmean(result["after_projection"]))


def _difference(results: Sequence[Result], name: str, seed: int) -> float | None:
    row, packnet = _find(results, name, seed), _find(results, PACKNET, seed)
    return None if row is None or packnet is None else 100 * (fmean(row["test"]) - fmean(packnet["test"]))


def _line(results: Sequence[Result], name: str, seed: int) -> str:
    row = _find(results, name, seed)
    assert row is not None
    tests = " ".join(f"{100 * value:.1f}" for value in row["test"])
    shares = " ".join(f"{value:.2f}" for value in row["share"])
    difference = _difference(results, name, seed)
    beside = "" if difference is None or name == PACKNET else f"  {difference:+.2f} to PackNet"
    return (
        f"{name:28} seed {seed}  test {100 * fmean(row['test']):.2f} ({tests}){beside}  share {shares}  "
        f"validation {100 * fmean(row['validation']):.2f}  lost by the projection {_loss(row):.2f}  {row['seconds']} s"
    )


def _summary(results: Sequence[Result], name: str, seeds: Sequence[int]) -> bool:
    rows = [row for row in (_find(results, name, seed) for seed in seeds) if row is not None]
    test, loss = 100 * fmean(fmean(row["test"]) for row in rows), fmean(map(_loss, rows))
    text, holds = f"{name:28} {len(rows)} seeds  test {test:.2f}", True
    differences = [value for value in (_difference(results, name, seed) for seed in seeds) if value is not None]
    if differences and name != PACKNET:
        text += f"  to PackNet {fmean(differences):+.2f} (" + " ".join(f"{value:+.2f}" for value in differences) + ")"
    text += f"  lost by the projection {loss:.2f}"
    if name in BOUNDS and differences:
        mean, least = BOUNDS[name]
        holds = fmean(differences) >= mean and (least is None or min(differences) >= least) and loss <= PROJECTION_LOSS
        wanted = f"mean at least {mean:+.1f}" + ("" if least is None else f", every seed {least:+.1f}")
        text += f"  ({wanted}, projection at most {PROJECTION_LOSS}: {'holds' if holds else 'falls short'})"
    print(text)
    return holds
