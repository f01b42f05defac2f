"""Bandwidth of this machine at a given working set, on the threads that torch uses.

A 16 MB tensor lives in the last-level cache and a 256 MB one does not, so a kernel is only compared with the
bandwidth measured on as many bytes as it touches itself. Bytes are counted as STREAM counts them: what the code reads
and writes, without the reads that a cache adds to a write.

No single torch function is the read bandwidth: most reductions wait for their arithmetic before they wait for memory
(on one machine 2 to 97 GB/s on the same 22 MB). Several cheap ones are timed, and the fastest is the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from benchmarks.timing import Thunk, Timing, measure

# Past the caches the bandwidth no longer depends on the size, and allocating more only takes time.
LARGEST = 512 * 2**20
SECONDS = 0.1
ROW = 4096


@dataclass(frozen=True)
class Roofline:
    """Bytes a second: reading alone, copying (one read, one write) and triad (two reads, one write)."""

    read: float
    copy: float
    triad: float

    def limit(self, written_share: float) -> float:
        """The roofline of a kernel of whose bytes this share is written."""
        return self.read if written_share < 0.2 else max(self.copy, self.triad)


def readers(x: Tensor) -> dict[str, Thunk]:
    """Ways to read every byte of a contiguous fp32 tensor once; which is the fastest depends on machine and size."""
    flat = x.view(-1)
    rows = flat[: flat.numel() // ROW * ROW].view(-1, ROW)
    # As integers: half as many additions, or sixteen maxima in a register.
    pairs = flat[: flat.numel() // 2 * 2].view(torch.int64)
    halves = flat.view(torch.int16)
    return {
        "sum": lambda: flat.sum(),
        "amax": lambda: flat.amax(),
        "row sums": lambda: rows.sum(1),
        "int64 sum": lambda: pairs.sum(),
        "int16 amax": lambda: halves.amax(),
    }


def fastest(timings: dict[str, Timing]) -> Timing:
    """The one with the lowest p50."""
    return min(timings.values(), key=lambda timing: timing.p50)


def roofline(working_set: int) -> Roofline:
    """Measured once a process for working sets that agree to the megabyte."""
    megabyte = 2**20
    return _measured(min(LARGEST, max(megabyte, round(working_set / megabyte) * megabyte)))


@cache
def _measured(working_set: int) -> Roofline:
    elements = working_set // 4
    # Ones rather than fresh memory: untouched pages are all the same page of zeros.
    x = torch.ones(elements)
    read = fastest(measure(readers(x), SECONDS))
    source, target = x[: elements // 2], x[elements // 2 : elements // 2 * 2]
    copied = measure({"copy": lambda: target.copy_(source)}, SECONDS)["copy"]
    a, b, c = (x[i * (elements // 3) : (i + 1) * (elements // 3)] for i in range(3))
    added = measure({"triad": lambda: torch.add(a, b, alpha=0.5, out=c)}, SECONDS)["triad"]
    return Roofline(x.nbytes / read.p50, 2 * source.nbytes / copied.p50, 3 * a.nbytes / added.p50)
