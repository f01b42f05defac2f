"""Avalanche's strategies on the same tasks, network and budget as ours: accuracy and time beside each other.

Avalanche 0.6 is what a user would pick instead. It lives in a virtual environment of its own, made in the user's cache
directory on first use. Both train the 784-2000-2000 network on the first tasks of permuted MNIST for five epochs a task
(one for GEM) with Adam, and are tested on the same images; ours has a head per task, and so has Avalanche's, except for
its PackNet, which has one head over all classes.

Times are measured apart, on few images, in turns: Avalanche, ours, Avalanche, and so on, each in a process of its own.
The time per step is that of each task's fastest epoch in all turns, a mean over tasks: other work on the machine comes
and goes, and what later tasks cost more counts. Accuracies do not mind other work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from lps.data import stream
from lps.data.permuted import Permute
from lps.environment import processor
from lps.sources import Arrays

from benchmarks.environments import install, last_line
from benchmarks.peers import UnavailableError

NAME = "Avalanche"
INSTALL = (
    ["torch==2.13.0"],
    ["--no-deps", "torchvision==0.28.0"],
    ["numpy", "pillow", "avalanche-lib==0.6.0", "quadprog"],
)
WORKERS = {"avalanche": "avalanche_worker.py", "ours": "methods_worker.py"}  # beside this file
EPOCHS, BATCH, RATE, DROPOUT = (1, 3, 1), 128, 1e-3, 0.2
SHARES = 10  # PackNet gives every task one of so many shares of the weights
POINTS = 2.0  # by which ours may fall behind
# Of the times: 10 steps per epoch, and epochs before and after PackNet's pruning.
TIMED_IMAGES, TIMED_EPOCHS, TURNS = 10 * BATCH, (1, 0, 1), 2


class Peer(NamedTuple):
    """Avalanche's strategy for a method of ours, with its arguments."""

    strategy: str
    arguments: dict[str, Any]
    epochs: tuple[int, int, int] = EPOCHS


# Strengths were chosen on validation images, as ours were (docs/methods.md).
PEERS = {
    "ewc": Peer("EWC", {"ewc_lambda": 1e5}),
    "si": Peer("SynapticIntelligence", {"si_lambda": 1000.0}),
    "lwf": Peer("LwF", {"alpha": 1.0, "temperature": 2.0}),
    # One epoch, as in the paper of GEM; five would take two hours.
    "gem": Peer("GEM", {"patterns_per_exp": 256, "memory_strength": 0.5}, (0, 1, 0)),
    "packnet": Peer("PackNet", {}),
}


class Trial(NamedTuple):
    """What both sides are asked for."""

    name: str  # of our method
    data_dir: Path
    tasks: int
    threads: int
    epochs: tuple[int, int, int]
    images: int | None = None  # to train and to test on; all, unless said


def print_comparison(data_dir: Path, names: Sequence[str], tasks: int, threads: int, output: Path) -> bool:
    """Run what is missing and print the table; returns whether ours is never behind by more than two points and never
    slower.
    """
    output.mkdir(parents=True, exist_ok=True)
    trials = [Trial(name, data_dir, tasks, threads, PEERS[name].epochs) for name in names]
    for trial in trials:  # before all times, which want the machine for themselves
        _accuracies(trial, output)
    print(f"{'method':10}{'ours':>9}{'theirs':>9}{'points':>9}{'ms/step':>9}{'theirs':>9}{'times as fast':>15}")
    holds = [_row(trial, output) for trial in trials]
    return all(holds)


def _row(trial: Trial, output: Path) -> bool:
    accuracy = _accuracies(trial, output)
    steps = _kept(output / f"steps-{trial.name}.json", partial(_steps, trial))
    mean, other = (100 * accuracy[side] for side in ("ours", "avalanche"))
    step, their_step = (1000 * fmean(steps[side]) for side in ("ours", "avalanche"))
    holds = mean >= other - POINTS and step <= their_step
    print(
        f"{trial.name:10}{mean:9.2f}{other:9.2f}{mean - other:+9.2f}{step:9.2f}{their_step:9.2f}"
        f"{their_step / step:15.2f}{'' if holds else '  falls short'}",
        flush=True,
    )
    return holds


def _accuracies(trial: Trial, output: Path) -> dict[str, float]:
    """The average accuracy of either side."""
    kept = {side: output / f"{side}-{trial.name}.json" for side in WORKERS}
    return {side: fmean(_kept(path, partial(_accuracy, side, trial))["accuracy"]) for side, path in kept.items()}


def _kept(path: Path, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file, or else a run, which is kept there."""
    if not path.exists():
        path.write_text(json.dumps(run(), indent=1) + "\n")
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def _accuracy(side: str, trial: Trial) -> dict[str, Any]:
    """Of every task after the last."""
    return {"accuracy": _run(side, trial)["accuracy"][-1]}


def _steps(trial: Trial) -> dict[str, Any]:
    """Seconds per step of every task, the best of all turns."""
    short = trial._replace(epochs=TIMED_EPOCHS, images=TIMED_IMAGES)
    turns = [{side: _run(side, short)["seconds_per_step"] for side in WORKERS} for _ in range(TURNS)]
    best = {side: [min(task) for task in zip(*(turn[side] for turn in turns), strict=True)] for side in WORKERS}
    return {"processor": processor(), "threads": trial.threads, **best}


def _request(side: str, trial: Trial) -> dict[str, Any]:
    values: dict[str, Any] = {"tasks": trial.tasks, "threads": trial.threads, "seed": 0}
    values |= {"batch_size": BATCH, "lr": RATE, "dropout": DROPOUT}
    if side == "ours":
        return {**values, "method": trial.name, "epochs": trial.epochs, "alpha": 1 / SHARES}
    strategy, arguments, _ = PEERS[trial.name]
    if strategy == "PackNet":
        # Of the weights that are free so much is given back that one share stays with the task.
        pruned = [1 - 1 / (SHARES - number) for number in range(trial.tasks)]
        arguments = {"prune_proportion": pruned, "post_prune_epochs": trial.epochs[2]}
    return {**values, "strategy": strategy, "arguments": arguments, "epochs": sum(trial.epochs)}


def _run(side: str, trial: Trial) -> dict[str, Any]:
    """One run, in a process of its own."""
    ours = side == "ours"
    python = sys.executable if ours else install(NAME, INSTALL)
    with tempfile.TemporaryDirectory() as folder:
        data, request = Path(folder) / "tasks.npz", Path(folder) / "request.json"
        _write_tasks(data, trial)
        request.write_text(json.dumps({**_request(side, trial), "data": str(data)}))
        flag = "-P" if ours else "-I"  # either way, no module of this folder hides a package
        command = [str(python), flag, str(Path(__file__).with_name(WORKERS[side])), str(request)]
        # Avalanche writes a folder into the home directory.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "HOME": folder})
    if done.returncode:
        raise UnavailableError(f"{side}: {trial.name} failed: {last_line(done.stderr)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _write_tasks(path: Path, trial: Trial) -> None:
    """The images once, and the order of the pixels of every task."""
    built = list(stream("permuted-mnist", data_dir=trial.data_dir, tasks=trial.tasks, seed=0))
    first = built[0]
    assert isinstance(first.train, Arrays)
    assert isinstance(first.test, Arrays)
    orders = []
    for task in built:
        assert isinstance(task.train, Arrays)
        assert isinstance(task.train.transform, Permute)
        order = task.train.transform.order
        orders.append(np.arange(784) if order is None else order.numpy())
    np.savez(
        path,
        train=first.train.inputs[: trial.images].numpy(),
        train_labels=first.train.labels[: trial.images].numpy(),
        test=first.test.inputs[: trial.images].numpy(),
        test_labels=first.test.labels[: trial.images].numpy(),
        orders=np.stack(orders),
    )
