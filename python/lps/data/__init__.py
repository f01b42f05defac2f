"""The benchmarks: streams of tasks from embedded, simulated, official or the user's own data.

``stream("permuted-mnist", data_dir=...)`` gives the tasks and the name of the network that is used for them. A
new benchmark is a file with a :class:`Benchmark` and a line in ``BENCHMARKS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lps.data import (
    cifar,
    digits,
    five_datasets,
    folder,
    mixed,
    mnist,
    omniglot,
    rf,
    rotated_mnist,
    split_cifar100,
    split_mnist,
    synthetic_rf,
    tinyimagenet,
)
from lps.data.base import Raw, Stream
from lps.data.benchmark import Benchmark, Request
from lps.data.download import default_directory
from lps.errors import ConfigError
from lps.options import convert, shown

__all__ = ["BENCHMARKS", "Benchmark", "Raw", "Stream", "own_options", "raw", "stream"]

BENCHMARKS = {
    "permuted-digits": digits.BENCHMARK,
    "permuted-mnist": mnist.BENCHMARK,
    "split-cifar": cifar.BENCHMARK,
    "split-rf": rf.BENCHMARK,
    "synthetic-rf": synthetic_rf.BENCHMARK,
    "mixed": mixed.BENCHMARK,
    "split-mnist": split_mnist.BENCHMARK,
    "rotated-mnist": rotated_mnist.BENCHMARK,
    "split-cifar100": split_cifar100.BENCHMARK,
    "split-tinyimagenet": tinyimagenet.BENCHMARK,
    "five-datasets": five_datasets.BENCHMARK,
    "omniglot-rotation": omniglot.BENCHMARK,
    "folder": folder.BENCHMARK,
}


def stream(
    benchmark: str,
    *,
    data_dir: Path | None = None,
    tasks: int | None = None,
    seed: int = 0,
    download: bool = False,
    augment: bool = False,
    options: Mapping[str, object] = {},
) -> Stream:
    """Build the stream of a benchmark.

    ``data_dir`` holds the data files (by default a folder in the user's cache directory); ``download`` fetches there
    what is missing. ``tasks`` is the paper's number unless given. ``seed`` determines permutations, the classes of each
    task, the held-out validation examples and simulated data; the first tasks are the same however many follow.
    ``augment`` lets training crop and mirror colour images at random. ``options`` are the benchmark's own, as in
    ``{"window": 256}``.
    """
    request = _request(benchmark, data_dir, tasks, seed, options, download=download, augment=augment)
    return BENCHMARKS[benchmark].build(request)


def raw(benchmark: str, task: int, *, seed: int = 0, options: Mapping[str, object] = {}) -> Raw:
    """What a task of a benchmark, counted from 1, reads; as in :func:`stream`, but without any data."""
    request = _request(benchmark, None, task, seed, options, download=False, augment=False)
    return BENCHMARKS[benchmark].raw(request, task - 1)


def own_options(benchmark: str, options: Mapping[str, object]) -> Any:
    """A benchmark's own options, checked, as an instance of its dataclass; what is not given has its default."""
    kind = known(benchmark).options
    names = {option.name for option in fields(kind)}
    for name in options:
        if name not in names:
            others = [
                other
                for other, chosen in BENCHMARKS.items()
                if name in {option.name for option in fields(chosen.options)}
            ]
            whose = f"it is an option of {', '.join(others)}" if others else f"known are {', '.join(names) or 'none'}"
            raise ConfigError(f"{benchmark}: {shown(name)}: is no option of this benchmark ({whose}); leave it out")
    try:
        return convert(options, kind)
    except ConfigError as error:
        raise ConfigError(f"{benchmark}: {error}") from None


def known(benchmark: object) -> Benchmark:
    """The benchmark of this name."""
    if not isinstance(benchmark, str) or benchmark not in BENCHMARKS:
        raise ConfigError(f"benchmark: expected one of {', '.join(BENCHMARKS)}, got {shown(benchmark)}")
    return BENCHMARKS[benchmark]


def _request(
    benchmark: str,
    data_dir: Path | None,
    tasks: int | None,
    seed: int,
    options: Mapping[str, object],
    *,
    download: bool,
    augment: bool,
) -> Request:
    """Check what a benchmark is to be built from."""
    chosen = known(benchmark)
    own = own_options(benchmark, options)
    usual, most = chosen.tasks, chosen.most
    if chosen.count is not None:
        usual = most = chosen.count(own, data_dir)
    count = usual if tasks is None else tasks
    if not 1 <= count <= most:
        raise ConfigError(f"{benchmark}: tasks: expected 1 to {most}, got {shown(count)}")
    if seed < 0:
        raise ConfigError(f"{benchmark}: seed: expected a number of at least 0, got {shown(seed)}")
    if augment and not chosen.augments:
        raise ConfigError(f"{benchmark}: augment: only colour images can be cropped and mirrored; leave it out")
    return Request(data_dir or default_directory(), count, seed, download, augment, own)
