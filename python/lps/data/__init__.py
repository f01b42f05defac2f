"""The benchmarks: streams of tasks from embedded, simulated or official data.

``stream("permuted-mnist", data_dir=...)`` gives the tasks and the name of the network that the paper uses for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lps.data import cifar, digits, mixed, mnist, rf, synthetic_rf
from lps.data.base import Options, Raw, Stream
from lps.data.download import default_directory
from lps.errors import ConfigError

__all__ = ["BENCHMARKS", "Benchmark", "Raw", "Stream", "raw", "stream"]


@dataclass(frozen=True)
class Benchmark:
    """How to build a stream, what its tasks read, how many there are by default and at most, and whether its windows
    can be cut.
    """

    build: Callable[[Options], Stream]
    raw: Callable[[Options, int], Raw]
    tasks: int
    most: int
    windowed: bool = False


# 127 is the most that seven bits of an owner map can tell apart.
BENCHMARKS = {
    "permuted-digits": Benchmark(digits.build, digits.raw, tasks=5, most=127),
    "permuted-mnist": Benchmark(mnist.build, mnist.raw, tasks=10, most=127),
    "split-cifar": Benchmark(cifar.build, cifar.raw, tasks=6, most=6),
    "split-rf": Benchmark(rf.build, rf.raw, tasks=5, most=5, windowed=True),
    "synthetic-rf": Benchmark(synthetic_rf.build, rf.raw, tasks=5, most=5, windowed=True),
    "mixed": Benchmark(mixed.build, mixed.raw, tasks=5, most=5),
}


def stream(
    benchmark: str,
    *,
    data_dir: Path | None = None,
    tasks: int | None = None,
    seed: int = 0,
    download: bool = False,
    window: int | None = None,
) -> Stream:
    """Build the stream of a benchmark.

    ``data_dir`` holds the data files (by default a folder in the user's cache directory); ``download`` fetches there
    what is missing. ``tasks`` is the paper's number unless given. ``seed`` determines permutations, partitions, the
    held-out validation examples and simulated data; the first tasks are the same however many follow. ``window`` cuts
    radio windows to that many samples from their middle.
    """
    options = _options(benchmark, data_dir, tasks, seed, download, window)
    return BENCHMARKS[benchmark].build(options)


def raw(benchmark: str, task: int, *, seed: int = 0, window: int | None = None) -> Raw:
    """What a task of a benchmark, counted from 1, reads; as in :func:`stream`, but without any data."""
    options = _options(benchmark, None, task, seed, download=False, window=window)
    return BENCHMARKS[benchmark].raw(options, task - 1)


def _options(
    benchmark: str, data_dir: Path | None, tasks: int | None, seed: int, download: bool, window: int | None
) -> Options:
    """Check what a benchmark is to be built from."""
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {benchmark!r}; known are {', '.join(BENCHMARKS)}")
    chosen = BENCHMARKS[benchmark]
    count = chosen.tasks if tasks is None else tasks
    if not 1 <= count <= chosen.most:
        raise ConfigError(f"{benchmark}: tasks: expected 1 to {chosen.most}, got {count}")
    if seed < 0:
        raise ConfigError(f"{benchmark}: seed: expected a number of at least 0, got {seed}")
    if window is not None and not chosen.windowed:
        raise ConfigError(f"{benchmark}: window: it is for radio signals only; leave it out")
    if window is not None and window < 1:
        raise ConfigError(f"{benchmark}: window: expected at least 1 sample, got {window}")
    return Options(data_dir or default_directory(), count, seed, download, window)
