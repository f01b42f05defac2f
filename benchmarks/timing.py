"""Times of several callables, measured side by side.

The table compares the p50 of many calls, printed with the spread p10..p90. The figures with a bound compare the best of
many calls, because a shared machine takes a core away for milliseconds at a time: a call on two threads then waits for
the slice of a stranger, in every percentile, and only its best says what the code can do.

Other work on the machine comes and goes over seconds, so the callables take short turns, round after round, and meet
the same noise. Every turn starts with an untimed call: each callable then finds the caches as it leaves them itself,
not as its neighbour does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter, sleep

import torch

Thunk = Callable[[], object]

# A turn lasts about this long, but is at least one and at most ten timed calls.
TURN_SECONDS = 0.02
TURN_CALLS = 10
MINIMUM_ROUNDS = 5
# Idle threads of a pool wait for more work in a loop, on the cores that the next callable needs: torch's for 5 ms after
# a call, ONNX Runtime's for 35 ms, measured by the processor time that a process uses while it sleeps.
SPIN_SECONDS = 0.06


def use_two_threads() -> int:
    """Let torch use two threads, as the bounds assume, or one where there is only one core; returns how many."""
    threads = min(2, os.cpu_count() or 1)
    torch.set_num_threads(threads)
    return threads


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the fastest, the median of all calls, and what a tenth of them stay below and above."""

    best: float
    p50: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """The percentiles of these times; a single one stands for all of them."""
        tenths = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
        return cls(best=min(seconds), p50=tenths[4], p10=tenths[0], p90=tenths[8])

    def scaled(self, factor: float) -> Timing:
        """Of a call with ``factor`` times the work, at the same speed."""
        return Timing(factor * self.best, factor * self.p50, factor * self.p10, factor * self.p90)

    @property
    def noisy(self) -> bool:
        """Whether the spread is so wide that something else must have had the cores for part of the time."""
        return self.p90 > 2 * self.p10

    def __str__(self) -> str:
        """Best, p50 and spread in milliseconds."""
        return f"{1e3 * self.best:.3f} ms (p50 {1e3 * self.p50:.3f}, {1e3 * self.p10:.3f}..{1e3 * self.p90:.3f})"


def time_call(function: Thunk) -> float:
    """Seconds of one call, including the release of its result."""
    start = perf_counter()
    function()
    return perf_counter() - start


def time_calls(function: Thunk, seconds: float) -> list[float]:
    """Seconds of each call, call after call for about ``seconds``, after one that is not timed."""
    function()
    samples, start = [time_call(function)], perf_counter()
    while perf_counter() - start < seconds:
        samples.append(time_call(function))
    return samples


def measure(
    functions: Mapping[str, Thunk], seconds: float, rest: float = 0.0, timer: Callable[[Thunk], float] = time_call
) -> dict[str, Timing]:
    """Time the callables in turns, for about ``seconds`` each.

    One whose first call takes longer than ``seconds`` is not called again: that call is its time. ``rest`` is a pause
    before each turn, for callables that have thread pools of their own. ``timer`` calls one and returns its seconds.
    """
    first = {name: timer(function) for name, function in functions.items()}
    samples = {name: [time] for name, time in first.items() if time > seconds}
    turns = {name: min(TURN_CALLS, max(1, int(TURN_SECONDS / time))) for name, time in first.items() if time <= seconds}
    samples |= {name: [] for name in turns}
    rounds, start = 0, perf_counter()
    while rounds < MINIMUM_ROUNDS or perf_counter() - start < seconds * len(turns):
        for name, calls in turns.items():
            sleep(rest)
            functions[name]()
            samples[name] += [timer(functions[name]) for _ in range(calls)]
        rounds += 1
    return {name: Timing.of(samples[name]) for name in functions}
