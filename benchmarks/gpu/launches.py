"""Threads and dynamic shared memory of every CUDA kernel's launch, which no cubin knows.

A source is compiled with another ``LPS_LAUNCH``: beside each kernel it launches an empty one whose template arguments
are the kernel, the threads and the bytes. Its name then stands in the cubin: what is reported is what happens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

WRAPPER = """
#include "device.cuh"
namespace lps {{
template <auto kernel, unsigned threads, size_t bytes>
__global__ void recorded_launch() {{}}
}}  // namespace lps
#undef LPS_LAUNCH
#define LPS_LAUNCH(gpu, kernel, grid, block, shared, ...)                                        \\
  do {{                                                                                           \\
    kernel<<<(grid), (block), (shared), static_cast<cudaStream_t>((gpu).stream)>>>(__VA_ARGS__); \\
    ::lps::recorded_launch<kernel, (block), (shared)><<<1, 1>>>();                               \\
  }} while (false)
#include "{source}"
"""
# The kernel's parameters stand in parentheses where it is a template, else not at all.
RECORD = re.compile(r"^recorded_launch<&\(?([^(]+?)(?:\(.*)?, (\d+)u, (\d+)ul>\(\)$")


@dataclass(frozen=True)
class Launch:
    """Of one kernel."""

    threads: int
    shared: int


def recording(source: Path) -> str:
    """A source that includes this one and records its launches."""
    return WRAPPER.format(source=source)


def launches_in(signatures: Iterable[str]) -> dict[str, set[Launch]]:
    """The launches of each kernel, by its name, from the signatures of all functions of a cubin."""
    launches: dict[str, set[Launch]] = {}
    for signature in signatures:
        record = RECORD.match(signature)
        if record:
            launches.setdefault(record[1], set()).add(Launch(int(record[2]), int(record[3])))
    return launches


def is_record(signature: str) -> bool:
    """Whether the function is one of the empty kernels."""
    return signature.startswith("recorded_launch<")
