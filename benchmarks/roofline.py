"""Bandwidth of this machine at a given working set, on the threads that torch uses.

A 16 MB tensor lives in the last-level cache and a 256 MB one does not, so a kernel is only compared with the
bandwidth measured on as many bytes as it touches itself, in turns with it. Bytes are counted as STREAM counts them:
what the code reads and writes, without the reads that a cache adds to a write.

No single torch function is the read bandwidth: most reductions wait for their arithmetic before they wait for memory
(on one machine 2 to 97 GB/s on the same 22 MB). Several cheap ones are timed, and the fastest is the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.timing import Thunk, Timing

# Past the caches the bandwidth no longer depends on the size, and allocating more only takes time.
LARGEST = 512 * 2**20
ROW = 4096
# A kernel that writes less than this share of its bytes is held against reading alone.
READ_ONLY = 0.2


@dataclass(frozen=True)
class Roofline:
    """Callables that each move ``bytes`` as fast as torch can."""

    bytes: int
    thunks: dict[str, Thunk]

    def bandwidth(self, timings: Mapping[str, Timing]) -> float:
        """Bytes per second of the fastest of them."""
        return self.bytes / fastest({name: timings[name] for name in self.thunks}).p50


def fastest(timings: Mapping[str, Timing]) -> Timing:
    """The one with the lowest p50."""
    return min(timings.values(), key=lambda timing: timing.p50)


def readers(x: Tensor) -> dict[str, Thunk]:
    """Ways to read every byte of a contiguous fp32 tensor once; which is the fastest depends on machine and size."""
    flat = x.view(-1)
    rows = flat[: flat.numel() // ROW * ROW].view(-1, ROW)
    # As integers: half as many additions, or sixteen maxima in a register.
    pairs = flat[: flat.numel() // 2 * 2].view(torch.int64)
    halves = flat.view(torch.int16)
    return {
        "read: sum": flat.sum,
        "read: amax": flat.amax,
        "read: row sums": lambda: rows.sum(1),
        "read: int64 sum": pairs.sum,
        "read: int16 amax": halves.amax,
    }


def writers(x: Tensor) -> dict[str, Thunk]:
    """Copy (a read and a write) and triad (two reads and a write) within a flat tensor, touching all of it once."""
    source, target = x.chunk(2)
    a, b, c = x.chunk(3)
    return {
        "copy": lambda: target.copy_(source),
        "triad": lambda: torch.add(a, b, alpha=0.5, out=c),
    }


def roofline(working_set: int, written_share: float, device: str = "cpu") -> Roofline:
    """Callables that measure the bandwidth at this working set (bytes) and share of writes among the bytes moved."""
    # Whole rows in halves and in thirds, so that each callable moves the same bytes.
    unit = 6 * ROW
    elements = max(unit, min(LARGEST, working_set) // 4 // unit * unit)
    # Ones rather than fresh memory: untouched pages are all the same page of zeros.
    x = torch.ones(elements, device=device)
    return Roofline(x.nbytes, readers(x) if written_share < READ_ONLY else writers(x))
