"""The figures of a network in use and of a task in learning: switching tasks, threads, saving the state."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from lps import Checkpoint, Lifelong, LPSConfig, Task
from lps.runs.checkpoint import State
from torch import Tensor

from benchmarks.figures.figure import Figure, typically_within, within
from benchmarks.timing import Thunk, Timing, measure, time_call

SECONDS = 6.0
CALLS = 12  # per thread and turn
THREADS = 4
INTERVAL = 60.0  # the default of --save-every


def switching_figures(net: Lifelong, inputs: Tensor) -> Iterator[Figure]:
    """A network of ten tasks whose calls ask for one task after another."""
    net.eval()
    yield _switch(net)
    yield _threads(net, inputs)


def _switch(net: Lifelong) -> Figure:
    weights = [weight.detach() for _, weight in net.prunable()]
    others = [weight.clone() for weight in weights]
    turn = iter(range(10**9))

    def switch() -> None:
        net.activate(1 + next(turn) % len(net.learnt))

    def copy() -> None:
        for weight, other in zip(weights, others, strict=True):
            other.copy_(weight)

    times = measure({"switch": switch, "copy": copy}, SECONDS)
    return within("switching tasks vs a copy of the weights", times["switch"], times["copy"], 1.3)


@torch.no_grad()
def _threads(net: Lifelong, inputs: Tensor) -> Figure:
    """Four threads that each ask for random tasks, against one that asks for as many."""
    few = inputs[:8]

    def calls(seed: int, count: int) -> None:
        draw = random.Random(seed)
        with torch.no_grad():
            for _ in range(count):
                net(few, task=draw.randint(1, len(net.learnt)))

    with ThreadPoolExecutor(THREADS) as pool:
        functions: dict[str, Thunk] = {
            "four": lambda: list(pool.map(calls, range(THREADS), [CALLS] * THREADS)),
            "one": lambda: calls(0, THREADS * CALLS),
        }
        times = measure(functions, SECONDS)
    return typically_within("four threads with random tasks vs one", times["four"], times["one"], 1.0)


def saving_figure(net: Lifelong, task: Task, config: LPSConfig) -> Figure:
    """Seconds of a save in the ADMM phase, whose state is the largest, as a share of the interval between two."""
    times: list[float] = []

    class Timed(Checkpoint):
        def save(self, state: State) -> None:
            times.append(time_call(lambda: super(Timed, self).save(state)))

    with tempfile.TemporaryDirectory() as directory:
        net.learn(task, config, checkpoint=Timed(directory, every=1e-9))
    timing = Timing.of(times)
    megabytes = sum(partition.owner.numel() for partition, _ in net.prunable()) * 16 / 1e6
    detail = f"p50 of {len(times)} saves {1e3 * timing.p50:.0f} ms, of about {megabytes:.0f} MB, every {INTERVAL:g} s"
    return Figure("saving the state, of training time", 100 * timing.p50 / INTERVAL, " %", "<=", 2, detail)
