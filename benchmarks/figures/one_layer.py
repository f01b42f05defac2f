"""The figures of one layer of 2000 x 2000 at a batch of 128, beside what torch offers for the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.figures.checks import check_answers
from benchmarks.figures.figure import Figure, faster, within
from benchmarks.peers import gathered_linear, scattered_linear
from benchmarks.timing import Timing, measure
from lps_kernels import pack_bits
from lps_kernels.ops import masked_linear, structured_linear
from lps_kernels.packing import pack_linear

Run = Callable[[], Tensor]

SIDE, BATCH = 2000, 128
SHARES = (0.1, 0.2, 0.5)
TASKS = 4  # that own weights of the layer of masked_linear
# A burst of multiply-adds shorter than this is mostly the start of the threads.
BURST_SECONDS = 0.005


def layer_figures(seconds: float) -> Iterator[Figure]:
    """Figures of single layers; each callable is timed for ``seconds``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, SIDE, generator=generator)
    weight = torch.randn(SIDE, SIDE, generator=generator)
    yield _dense_tile(x, weight, seconds)
    for share in SHARES:
        some = torch.randperm(SIDE, generator=generator)[: round(share * SIDE)].sort().values
        yield _columns(x, weight, some, seconds)
    for share in SHARES:
        some = torch.randperm(SIDE, generator=generator)[: round(share * SIDE)].sort().values
        yield _filters(x, weight, some, seconds)
    owner = torch.randint(1, TASKS + 1, weight.shape, generator=generator, dtype=torch.uint8)
    reused = torch.rand(weight.shape, generator=generator) < 0.5
    yield _masked(x, weight, owner, reused, seconds)


@torch.inference_mode()
def _dense_tile(x: Tensor, weight: Tensor, seconds: float) -> Figure:
    """The burst keeps its sums in registers and reads nothing: no product of matrices is faster."""
    packed = pack_linear(weight)
    run = _structured(x, packed, None, None)
    check_answers("dense tile", {"structured_linear": run()}, linear(x, weight))
    burst, steps = torch.ops.lps._fma_burst.default, _burst_steps()
    flops, work = burst(steps), 2 * BATCH * weight.numel()
    times = measure({"ours": run, "peak": lambda: burst(steps)}, seconds)
    peak = f"{flops / times['peak'].best / 1e9:.0f} GFLOP/s"
    # As if the layer's own multiply-adds ran at the peak.
    return faster(f"dense tile, share of the peak of {peak}", times["ours"], times["peak"].scaled(work / flops), 0.65)


def _burst_steps() -> int:
    """So many that a burst takes long enough."""
    steps = 1024
    while True:
        start = perf_counter()
        torch.ops.lps._fma_burst(steps)
        if perf_counter() - start > BURST_SECONDS:
            return steps
        steps *= 2


@torch.inference_mode()
def _columns(x: Tensor, weight: Tensor, columns: Tensor, seconds: float) -> Figure:
    left = weight[:, columns].contiguous()
    what = f"{_percent(columns)} of columns vs gather + linear"
    runs: dict[str, Run] = {
        "ours": _structured(x, pack_linear(left), columns.int(), None),
        "torch": lambda: gathered_linear(x, left, columns),
    }
    times = _checked_times(what, runs, linear(x[:, columns], left), seconds)
    return faster(what, times["ours"], times["torch"], 1.3)


@torch.inference_mode()
def _filters(x: Tensor, weight: Tensor, rows: Tensor, seconds: float) -> Figure:
    left = weight[rows]
    what = f"{_percent(rows)} of filters vs linear + scatter"
    runs: dict[str, Run] = {
        "ours": _structured(x, pack_linear(left), None, rows.int()),
        "torch": lambda: scattered_linear(x, left, rows, SIDE),
    }
    pruned = torch.zeros_like(weight).index_copy_(0, rows, left)
    times = _checked_times(what, runs, linear(x, pruned), seconds)
    return faster(what, times["ours"], times["torch"], 1.3)


@torch.inference_mode()
def _masked(x: Tensor, w_bar: Tensor, owner: Tensor, reused: Tensor, seconds: float) -> Figure:
    """The last task: its own weights and the weights it reuses, chosen while the layer runs."""
    what = "masked_linear vs dense linear"
    bits, weight = pack_bits(reused), torch.where(reused | (owner == TASKS), w_bar, 0)
    runs: dict[str, Run] = {
        "ours": lambda: masked_linear(x, w_bar, owner, bits, TASKS, None, False),
        "torch": lambda: linear(x, weight),
    }
    times = _checked_times(what, runs, linear(x, weight), seconds)
    return within(what, times["ours"], times["torch"], 1.2)


def _structured(x: Tensor, packed: Tensor, columns: Tensor | None, rows: Tensor | None) -> Run:
    def run() -> Tensor:
        y: Tensor = structured_linear(x, packed, columns, rows, None, SIDE, False)
        return y

    return run


def _checked_times(what: str, runs: Mapping[str, Run], expected: Tensor, seconds: float) -> dict[str, Timing]:
    check_answers(what, {name: run() for name, run in runs.items()}, expected)
    return measure(runs, seconds)


def _percent(chosen: Tensor) -> str:
    return f"{100 * len(chosen) / SIDE:.0f} %"
