"""Runs the compilations, several at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks.gpu import nvcc_report, triton_report
from benchmarks.gpu.resources import Report

NVCC_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ARCHITECTURES = (*NVCC_ARCHITECTURES, "gfx942")

Job = Callable[[], Report]


def _compile_listed(index: int, arch: str) -> Report:
    """A Triton kernel by its place in the list: the kernels themselves do not travel between processes."""
    return triton_report.compile_ahead(triton_report.kernels()[index], arch)


def jobs_of(toolchains: Sequence[str], architectures: Sequence[str]) -> list[Job]:
    """What is to be compiled, the longest first."""
    jobs: list[Job] = []
    if "nvcc" in toolchains:
        sources = sorted(nvcc_report.sources(), key=lambda source: -source.stat().st_size)
        for arch in (arch for arch in architectures if arch in NVCC_ARCHITECTURES):
            jobs += [partial(nvcc_report.compile_source, source, int(arch[3:])) for source in sources]
    if "triton" in toolchains:
        for arch in (arch for arch in architectures if arch in triton_report.ARCHITECTURES):
            jobs += [partial(_compile_listed, index, arch) for index in range(len(triton_report.kernels()))]
    return jobs


def run(jobs: Sequence[Job], processes: int = 2) -> Report:
    """All of them, in their order whatever the processes do."""
    report = Report()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in pool.map(_call, jobs, chunksize=1):
            report.add(done)
    unique = {(kernel.toolchain, kernel.arch, kernel.name): kernel for kernel in report.kernels}
    return Report(list(unique.values()), report.failures)


def _call(job: Job) -> Report:
    return job()
