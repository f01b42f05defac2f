"""The benchmarks: streams of tasks from embedded, simulated, official or the user's own data.

``stream("permuted-mnist", data_dir=...)`` gives the tasks and the name of the network that is used for them. A new
benchmark is a file with a :class:`lps.data.benchmark.Benchmark` and a line in ``BENCHMARKS``; options of its own are a
dataclass and a line in ``lps/data/options.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lps.data.benchmark import Benchmark, Request
from lps.data.options import OPTIONS, NoOptions
from lps.errors import ConfigError
from lps.options import convert, shown
from lps.table import Table

if TYPE_CHECKING:
    from lps.data.base import Raw, Stream

__all__ = ["BENCHMARKS", "known", "own_options", "raw", "stream"]

BENCHMARKS: Table[Benchmark] = Table(
    {
        "permuted-digits": "lps.data.digits:BENCHMARK",
        "permuted-mnist": "lps.data.mnist:BENCHMARK",
        "split-cifar": "lps.data.cifar:BENCHMARK",
        "split-rf": "lps.data.rf:BENCHMARK",
        "synthetic-rf": "lps.data.synthetic_rf:BENCHMARK",
        "mixed": "lps.data.mixed:BENCHMARK",
        "split-mnist": "lps.data.split_mnist:BENCHMARK",
        "rotated-mnist": "lps.data.rotated_mnist:BENCHMARK",
        "split-cifar100": "lps.data.split_cifar100:BENCHMARK",
        "split-tinyimagenet": "lps.data.tinyimagenet:BENCHMARK",
        "five-datasets": "lps.data.five_datasets:BENCHMARK",
        "omniglot-rotation": "lps.data.omniglot:BENCHMARK",
        "folder": "lps.data.folder:BENCHMARK",
    }
)


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
    kind = OPTIONS.get(check_known(benchmark), NoOptions)
    names = {option.name for option in fields(kind)}
    for name in options:
        if name not in names:
            others = [other for other, chosen in OPTIONS.items() if name in {option.name for option in fields(chosen)}]
            whose = f"it is an option of {', '.join(others)}" if others else f"known are {', '.join(names) or 'none'}"
            raise ConfigError(f"{benchmark}: {shown(name)}: is no option of this benchmark ({whose}); leave it out")
    try:
        return convert(options, kind)
    except ConfigError as error:
        raise ConfigError(f"{benchmark}: {error}") from None


def known(benchmark: object) -> Benchmark:
    """The benchmark of this name."""
    return BENCHMARKS[check_known(benchmark)]


def check_known(benchmark: object) -> str:
    """The name of a benchmark, or a refusal."""
    if not isinstance(benchmark, str) or benchmark not in BENCHMARKS:
        raise ConfigError(f"benchmark: expected one of {', '.join(BENCHMARKS)}, got {shown(benchmark)}")
    return benchmark


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
    from lps.data.download import default_directory  # noqa: PLC0415 - it takes longer than a command's help

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
