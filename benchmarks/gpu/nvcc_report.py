"""Compiles the CUDA kernels with nvcc, one architecture and file at a time, and reads what they take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.architectures import LIMITS, occupancy
from benchmarks.gpu.launches import Sizes, read_sizes, with_sizes
from benchmarks.gpu.resources import Kernel, Report, Usage, dump_elf, read_cubin
from benchmarks.gpu.triton_report import nvidia_tools

CUDA = Path(__file__).resolve().parents[2] / "csrc" / "cuda"
INCLUDES = [f"-I{CUDA.parent}", f"-I{CUDA}"]
# As in csrc/cuda/kernels.cmake, with the figures printed.
FLAGS = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills,-Werror"]


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
        wrapper.write_text(with_sizes(source))
        target = [f"-arch=sm_{arch}", "-cubin", *INCLUDES, "-o", str(cubin), str(wrapper)]
        done = subprocess.run([compiler, *FLAGS, *target], capture_output=True, text=True, check=False)
        said = [line for line in (done.stdout + done.stderr).splitlines() if not _is_figure(line)]
        if done.returncode != 0 or said:
            return Report(failures=[f"nvcc, sm_{arch}: {source.name}: {' '.join(said)}"])
        usages = read_cubin(cubin, nvidia_tools(), LIMITS[arch].reserved)
        sizes = read_sizes(source, dump_elf(cubin, nvidia_tools()))
    spills = _spills(done.stderr)
    report = Report()
    for (mangled, usage), name in zip(usages.items(), demangled(usages), strict=True):
        _add(report, arch, name, usage, spills.get(mangled, 0), sizes)
    return report


def _add(report: Report, arch: int, name: str, usage: Usage, spills: int, sizes: Sizes) -> None:
    """One kernel, or what is not known of its launch."""
    family, _, rest = name.partition("<")
    element = re.split(r"\W", rest)[0]
    size = sizes.get((family, ""), sizes.get((family, element)))
    if size is None:
        report.failures.append(f"nvcc, sm_{arch}: {name} has no entry in benchmarks/gpu/launches.py")
    elif usage.threads == 0:
        report.failures.append(f"nvcc, sm_{arch}: {name} has no launch bounds")
    else:
        shared = usage.shared + size
        share = occupancy(arch, usage.registers, usage.threads, shared)
        numbers = (usage.registers, usage.stack, spills, shared, usage.threads, share, usage.tensor_cores)
        report.kernels.append(Kernel("nvcc", f"sm_{arch}", name, *numbers))


def demangled(names: Sequence[str] | dict[str, Usage]) -> list[str]:
    """Names as they are written in the source, without namespace and arguments."""
    done = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True)
    return [_short(name) for name in done.stdout.splitlines()]


def _short(name: str) -> str:
    """``void lps::f<lps::A<float> >(int)`` as ``f<A<float>>``."""
    name = re.sub(r"^void |\blps::|\(anonymous namespace\)::", "", name).replace("> >", ">>")
    return re.sub(r"\(.*$", "", name)


def _is_figure(line: str) -> bool:
    """What ptxas prints of itself: registers, spills, the time that it took."""
    return not line.strip() or line.startswith("ptxas info") or "bytes stack frame" in line


def _spills(text: str) -> dict[str, int]:
    """Bytes that each function stores and loads because registers are short."""
    pattern = (
        r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    )
    return {name: int(stores) + int(loads) for name, stores, loads in re.findall(pattern, text)}
