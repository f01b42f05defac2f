"""The reports as Markdown between two markers of a document: a table per architecture, and what a GPU should take."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.gpu.resources import Kernel, Report

KERNELS, MODEL = "kernels", "model"
INTRODUCTION = """\
Written by `python -m benchmarks.gpu --write docs/gpu-tables.md`; compiled, never run on a GPU. Registers are per thread
(vector registers on AMD), threads and bytes of shared memory per block, static and dynamic. Occupancy is the share of a
multiprocessor's warps that can be resident, by the limits in the CUDA C++ Programming Guide (compute capabilities), and
LLVM's own figure on AMD. The last column counts tensor-core instructions. A product of matrices is not taken to be
memory-bound: each of its warps keeps many loads and products under way."""


def markdown(report: Report) -> str:
    """A summary and the tables."""
    by_arch: dict[str, list[Kernel]] = {}
    for kernel in report.kernels:
        by_arch.setdefault(kernel.arch, []).append(kernel)
    parts = [INTRODUCTION, "\n".join(_summary(by_arch))]
    for arch, kernels in by_arch.items():
        parts.append(f"<details><summary>{arch}: {len(kernels)} kernels</summary>")
        parts.append("\n".join(_table(kernels)))
        parts.append("</details>")
    return "\n\n".join(parts)


def _summary(by_arch: dict[str, list[Kernel]]) -> Iterable[str]:
    yield "| architecture | kernels | with spills or a stack | least occupancy, memory-bound | on tensor cores |"
    yield "|---|--:|--:|--:|--:|"
    for arch, kernels in by_arch.items():
        spilling = sum(kernel.spills > 0 or kernel.stack > 0 for kernel in kernels)
        least = min((kernel.occupancy for kernel in kernels if kernel.memory_bound), default=None)
        shown = "" if least is None else f"{100 * least:.0f} %"
        wanted = [kernel for kernel in kernels if kernel.wants_tensor_cores]
        on_cores = sum(bool(kernel.tensor_cores) for kernel in wanted)
        yield f"| {arch} | {len(kernels)} | {spilling} | {shown} | {on_cores} of {len(wanted)} |"


def _table(kernels: list[Kernel]) -> Iterable[str]:
    yield "| kernel | by | registers | stack | shared | threads | occupancy | tensor cores |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for kernel in sorted(kernels, key=lambda kernel: (kernel.toolchain, kernel.name)):
        cores = ", ".join(f"{count} {name}" for name, count in sorted(kernel.tensor_cores.items()))
        yield (
            f"| `{kernel.name}` | {kernel.toolchain} | {kernel.registers} | {kernel.stack} | {kernel.shared} "
            f"| {kernel.threads} | {100 * kernel.occupancy:.0f} % | {cores} |"
        )
