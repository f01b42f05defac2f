"""Compiles the CUDA kernels with nvcc, one architecture and file at a time, and reads what they take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.architectures import LIMITS, occupancy
from benchmarks.gpu.launches import Launch, is_record, launches_in, recording
from benchmarks.gpu.resources import Kernel, Report, Usage, launch_bounds, read_cubin, tensor_core_instructions
from benchmarks.gpu.triton_report import nvidia_tools

CUDA = Path(__file__).resolve().parents[2] / "csrc" / "cuda"
INCLUDES = [f"-I{CUDA.parent}", f"-I{CUDA}"]
# As in csrc/cuda/kernels.cmake, with the figures printed.
FLAGS = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills,-Werror"]

# Bytes of dynamic shared memory of a block, unless a kernel is marked for more; ours are not.
DYNAMIC_SHARED = 48 << 10


def nvcc() -> str | None:
    """The compiler, if there is one."""
    return os.environ.get("CUDACXX") or shutil.which("nvcc")


def sources() -> list[Path]:
    """Every file with kernels."""
    return sorted(CUDA.glob("*.cu"))


def compile_source(source: Path, arch: int) -> Report:
    """The kernels of one file for one architecture."""
    compiler = nvcc()
    assert compiler is not None
    with tempfile.TemporaryDirectory() as directory:
        wrapper, cubin = Path(directory, source.name), Path(directory, "kernels.cubin")
        wrapper.write_text(recording(source))
        target = [f"-arch=sm_{arch}", "-cubin", *INCLUDES, "-o", str(cubin), str(wrapper)]
        done = subprocess.run([compiler, *FLAGS, *target], capture_output=True, text=True, check=False)
        said = [line for line in (done.stdout + done.stderr).splitlines() if not _is_figure(line)]
        if done.returncode != 0 or said:
            return Report(failures=[f"nvcc, sm_{arch}: {source.name}: {' '.join(said)}"])
        usages = read_cubin(cubin, nvidia_tools(), LIMITS[arch].reserved)
        bounds = launch_bounds(cubin, nvidia_tools())
        tensor_cores = tensor_core_instructions(cubin, nvidia_tools())
    signatures, spills = demangled(usages), _spills(done.stderr)
    launches = launches_in(signatures)
    report = Report()
    for (mangled, usage), signature in zip(usages.items(), signatures, strict=True):
        if is_record(signature):
            continue
        name = named(signature)
        wrong = _wrong_launch(launches.get(name), bounds.get(mangled))
        if wrong:
            report.failures.append(f"nvcc, sm_{arch}: {name} {wrong}")
        else:
            kernel = _kernel(arch, name, usage, spills.get(mangled, 0), launches[name])
            report.kernels.append(replace(kernel, tensor_cores=tensor_cores[mangled]))
    return report


def _wrong_launch(launches: set[Launch] | None, bound: int | None) -> str | None:
    """Why a kernel's launches cannot be."""
    if not launches:
        return "is launched by nothing in its file"
    threads = max(launch.threads for launch in launches)
    if bound is None or threads > bound:
        bounds = f"launch bounds of {bound}" if bound else "no launch bounds"
        return f"is launched with {threads} threads, but has {bounds}"
    shared = max(launch.shared for launch in launches)
    if shared > DYNAMIC_SHARED:
        return f"is launched with {shared} bytes of shared memory, where {DYNAMIC_SHARED} are allowed"
    return None


def _kernel(arch: int, name: str, usage: Usage, spills: int, launches: set[Launch]) -> Kernel:
    """The kernel with the most threads and shared memory that it is launched with."""
    threads = max(launch.threads for launch in launches)
    shared = usage.shared + max(launch.shared for launch in launches)
    share = occupancy(arch, usage.registers, threads, shared)
    numbers = (usage.registers, usage.stack, spills, shared, threads, share)
    return Kernel("nvcc", f"sm_{arch}", name, *numbers)


def demangled(names: Iterable[str]) -> list[str]:
    """Signatures as they are written in the source, without this project's namespace."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return [_plain(name) for name in done.stdout.splitlines()]


def _plain(signature: str) -> str:
    """``void lps::f<lps::A<float> >(int)`` as ``f<A<float>>(int)``."""
    return re.sub(r"\bvoid |\blps::|\(anonymous namespace\)::", "", signature).replace("> >", ">>")


def named(signature: str) -> str:
    """The kernel without its parameters."""
    return signature.partition("(")[0]


def _is_figure(line: str) -> bool:
    """What ptxas prints of itself: registers, spills, the time that it took."""
    return not line.strip() or line.startswith("ptxas info") or "bytes stack frame" in line


def _spills(text: str) -> dict[str, int]:
    """Bytes that each function stores and loads because registers are short."""
    pattern = (
        r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    )
    return {name: int(stores) + int(loads) for name, stores, loads in re.findall(pattern, text)}
