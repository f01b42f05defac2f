"""Avalanche's strategies on the same tasks, network and budget as ours: accuracy and time beside each other.

Avalanche 0.6 is what a user would pick instead. It lives in a virtual environment of its own, made in the user's cache
directory on first use. Both train the 784-2000-2000 network on the first tasks of permuted MNIST for five epochs a task
with Adam, and are tested on the same images; ours has a head per task, and so has Avalanche's, except for its PackNet,
which has one head over all classes. Each runs alone, one after the other. The time per step is that of each task's
fastest epoch, a mean over tasks: other work on the machine comes and goes, and what later tasks cost more counts.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from lps.data import stream
from lps.data.permuted import Permute
from lps.task import Arrays

from benchmarks.environments import install, last_line
from benchmarks.peers import UnavailableError

NAME = "Avalanche"
INSTALL = (
    ["torch==2.13.0"],
    ["--no-deps", "torchvision==0.28.0"],
    ["numpy", "pillow", "avalanche-lib==0.6.0", "quadprog"],
)
WORKER = Path(__file__).with_name("avalanche_worker.py")
EPOCHS, BATCH, RATE, DROPOUT = (1, 3, 1), 128, 1e-3, 0.2
POINTS = 2.0  # by which ours may fall behind


class Peer(NamedTuple):
    """A method of ours with its flags, and Avalanche's strategy with its arguments."""

    flags: tuple[str, ...]
    strategy: str
    arguments: dict[str, Any]


PEERS = {
    "ewc": Peer((), "EWC", {"ewc_lambda": 1000.0}),
    "si": Peer((), "SynapticIntelligence", {"si_lambda": 0.1}),
    "lwf": Peer((), "LwF", {"alpha": 1.0, "temperature": 2.0}),
    "gem": Peer((), "GEM", {"patterns_per_exp": 256, "memory_strength": 0.5}),
    "packnet": Peer(("--alpha", "0.1"), "PackNet", {"post_prune_epochs": EPOCHS[2]}),
}


class Result(NamedTuple):
    """What a run ends with."""

    accuracy: list[float]  # of every task after the last
    seconds_per_step: float


def print_comparison(data_dir: Path, names: Sequence[str], tasks: int, threads: int, output: Path) -> bool:
    """Run what is missing and print the table; returns whether ours is never behind by more than two points and never
    slower.
    """
    output.mkdir(parents=True, exist_ok=True)
    print(f"{'method':10}{'ours':>9}{'theirs':>9}{'points':>9}{'ms/step':>9}{'theirs':>9}{'times as fast':>15}")
    holds = []
    for name in names:
        theirs = _kept(output / f"avalanche-{name}.json", lambda name=name: _theirs(name, data_dir, tasks, threads))
        ours = _kept(output / f"ours-{name}.json", lambda name=name: _ours(name, data_dir, tasks, threads))
        mean, other = (100 * fmean(result.accuracy) for result in (ours, theirs))
        step, their_step = (1000 * result.seconds_per_step for result in (ours, theirs))
        holds.append(mean >= other - POINTS and step <= their_step)
        print(
            f"{name:10}{mean:9.2f}{other:9.2f}{mean - other:+9.2f}{step:9.2f}{their_step:9.2f}{their_step / step:15.2f}"
            f"{'' if holds[-1] else '  falls short'}",
            flush=True,
        )
    return all(holds)


def _kept(path: Path, run: Any) -> Result:
    """A finished run is kept in a file and not run again."""
    if not path.exists():
        path.write_text(json.dumps(run()._asdict(), indent=1) + "\n")
    return Result(**json.loads(path.read_text()))


def _ours(name: str, data_dir: Path, tasks: int, threads: int) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = ["--benchmark", "permuted-mnist", "--data-dir", data_dir, "--tasks", tasks, "--threads", threads]
        flags += ["--epochs", ",".join(map(str, EPOCHS)), "--batch-size", BATCH, "--lr", RATE, "--dropout", DROPOUT]
        flags += ["--schedule", "constant", "--method", name, *PEERS[name].flags, "--output", run]
        _run([sys.executable, "-m", "lps.train", *map(str, flags)], name)
        results = json.loads((run / "results.json").read_text())
        with (run / "metrics.csv").open(newline="") as file:
            epochs = [
                (row["task"], float(row["samples_per_second"]))
                for row in csv.DictReader(file)
                if row["event"] == "epoch"
            ]
    fastest = [max(rate for task, rate in epochs if task == str(number)) for number in range(1, tasks + 1)]
    return Result(results["accuracy"][-1], fmean(BATCH / rate for rate in fastest))


def _theirs(name: str, data_dir: Path, tasks: int, threads: int) -> Result:
    python, peer = install(NAME, INSTALL), PEERS[name]
    with tempfile.TemporaryDirectory() as folder:
        data, request = Path(folder) / "tasks.npz", Path(folder) / "request.json"
        _write_tasks(data, data_dir, tasks)
        arguments = dict(peer.arguments)
        if name == "packnet":  # of the weights that are free, so much is given back: a tenth of all stays with the task
            arguments["prune_proportion"] = [1 - 1 / (10 - number) for number in range(tasks)]
        values = {"strategy": peer.strategy, "arguments": arguments, "data": str(data), "tasks": tasks, "seed": 0}
        values |= {"epochs": sum(EPOCHS), "batch_size": BATCH, "lr": RATE, "dropout": DROPOUT, "threads": threads}
        request.write_text(json.dumps(values))
        # In a home of its own: it writes a folder there.
        answer = _run([str(python), "-I", str(WORKER), str(request)], NAME, HOME=folder)
    result = json.loads(answer)
    return Result(result["accuracy"][-1], fmean(result["seconds_per_step"]))


def _write_tasks(path: Path, data_dir: Path, tasks: int) -> None:
    """The images once, and the order of the pixels of every task."""
    built = list(stream("permuted-mnist", data_dir=data_dir, tasks=tasks, seed=0))
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
        train=first.train.inputs.numpy(),
        train_labels=first.train.labels.numpy(),
        test=first.test.inputs.numpy(),
        test_labels=first.test.labels.numpy(),
        orders=np.stack(orders),
    )


def _run(command: Sequence[str], what: str, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    if done.returncode:
        raise UnavailableError(f"{what} failed: {last_line(done.stderr)}")
    return done.stdout
