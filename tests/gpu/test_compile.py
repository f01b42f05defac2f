"""GPU kernels compile for every listed architecture without a warning, a spill or a lost tensor-core instruction.

The same as ``python -m benchmarks.gpu --check``, for fewer architectures; and that the check sees what it is for.
"""
# ruff: noqa: E402 (without Triton there is nothing to import)

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.native.build import ROOT, cuda_include
from tests.native.simulator.count_traffic import SECTION as TRAFFIC

REQUIRED = "LPS_REQUIRE" in os.environ
if not REQUIRED:
    pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from benchmarks import sections
from benchmarks.gpu import model, tables
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.architectures import LIMITS, REGISTERS, occupancy, resident_blocks
from benchmarks.gpu.gate import jobs_of, run
from benchmarks.gpu.nvcc_report import CUDA, compile_source, demangled, named, nvcc
from benchmarks.gpu.resources import Kernel, Report
from benchmarks.gpu.triton_report import ARCHITECTURES, compile_ahead, kernels
from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import Ahead

pytestmark = pytest.mark.compile

needs_nvcc = pytest.mark.skipif(nvcc() is None and not REQUIRED, reason="nvcc was not found")
# The name of a kernel as it is written.
KERNEL = r"__global__ void (?:__launch_bounds__\(.*?\)\s+)?(\w+)\("


@needs_nvcc
def test_every_cuda_kernel_passes_the_check() -> None:
    report = run(jobs_of(["nvcc"], ["sm_80", "sm_90", "sm_120"]))
    assert report.problems() == []
    assert {kernel.arch for kernel in report.kernels} == {"sm_80", "sm_90", "sm_120"}
    written = {name for file in CUDA.glob("*.cu*") for name in re.findall(KERNEL, file.read_text())}
    assert {kernel.family for kernel in report.kernels} == written
    # By mma.sync alone, as the model of times has it.
    assert {name for kernel in report.kernels for name in kernel.tensor_cores} == {"HMMA"}


def test_every_triton_kernel_passes_the_check() -> None:
    report = run(jobs_of(["triton"], ARCHITECTURES))
    assert report.problems() == []
    assert {kernel.arch for kernel in report.kernels} == {*ARCHITECTURES}
    assert len(report.kernels) == len(ARCHITECTURES) * len(kernels())


# Of their matrix instructions: mma.sync, wgmma and tcgen05.
INSTRUCTION_SETS = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("arch", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", ["structured_linear[fp32, 64x64x16]", "sparse_linear[fp32, 64x32x32]"])
def test_with_tf32_too_sums_are_added_up_outside_the_tensor_cores(name: str, arch: str) -> None:
    """As for the three products that the test above compiles every kernel with."""
    (ahead,) = [ahead for ahead in kernels() if ahead.name == name]
    assert ahead.constexprs["PRECISION"] == "tf32x3"
    once = replace(ahead, constexprs={**ahead.constexprs, "PRECISION": "tf32"})
    assert compile_ahead(once, arch).problems() == []


# ---- faults that the check must see, in CUDA ----


def cuda_problems(tmp_path: Path, kernel: str, launch: str) -> list[str]:
    """The problems that the check finds in a kernel with these launch arguments."""
    file = tmp_path / "seeded.cu"
    start = f"void start(const Gpu& gpu) {{ LPS_LAUNCH(gpu, {launch}); }}"
    file.write_text(f'#include "device.cuh"\nnamespace lps {{\n{kernel}\n{start}\n}}\n')
    return compile_source(file, 80).problems()


COPY = """
__global__ void __launch_bounds__(128) copy_kernel(const float* from, float* to) {
  to[blockIdx.x * 128 + threadIdx.x] = from[blockIdx.x * 128 + threadIdx.x];
}
"""


@needs_nvcc
def test_a_harmless_kernel_passes(tmp_path: Path) -> None:
    assert cuda_problems(tmp_path, COPY, "copy_kernel, 1, 128, 0, nullptr, nullptr") == []


@needs_nvcc
def test_spilled_registers_are_seen(tmp_path: Path) -> None:
    kernel = """
__global__ void __launch_bounds__(1024, 2) many_kernel(const float* from, float* to) {
  float held[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) held[i] = from[i * 128 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 64; ++i) to[i * 128 + threadIdx.x] = held[63 - i] * held[i];
}
"""
    (problem,) = cuda_problems(tmp_path, kernel, "many_kernel, 1, 1024, 0, nullptr, nullptr")
    assert "Registers are spilled to local memory in function" in problem


@needs_nvcc
def test_a_stack_frame_is_seen(tmp_path: Path) -> None:
    kernel = """
__global__ void __launch_bounds__(128) table_kernel(const int* from, int* to) {
  int table[64];
  for (int i = 0; i < 64; ++i) table[from[i] % 64] = i;
  to[threadIdx.x] = table[from[threadIdx.x] % 64];
}
"""
    problems = cuda_problems(tmp_path, kernel, "table_kernel, 1, 128, 0, nullptr, nullptr")
    assert problems == ["nvcc, sm_80: table_kernel has a stack frame of 256 bytes"]


@needs_nvcc
def test_lost_tensor_cores_are_seen(tmp_path: Path) -> None:
    kernel = """
template <class T>
__global__ void __launch_bounds__(128) matrix_product(const T* a, const T* b, T* c) {
  c[threadIdx.x] += a[threadIdx.x] * b[threadIdx.x];
}
"""
    none = "1, 128, 0, nullptr, nullptr, nullptr"
    assert cuda_problems(tmp_path, kernel, f"matrix_product<double>, {none}") == []
    problems = cuda_problems(tmp_path, kernel, f"matrix_product<float>, {none}")
    assert problems == ["nvcc, sm_80: matrix_product<float> has no tensor-core instruction"]


@needs_nvcc
def test_low_occupancy_is_seen(tmp_path: Path) -> None:
    problems = cuda_problems(tmp_path, COPY, "copy_kernel, 1, 128, sizeof(float) * 10000, nullptr, nullptr")
    # Four blocks of four warps each, of 64 possible warps.
    assert problems == ["nvcc, sm_80: copy_kernel is memory-bound with an occupancy of 25 %"]


@needs_nvcc
def test_what_does_not_fit_is_seen(tmp_path: Path) -> None:
    problems = cuda_problems(tmp_path, COPY, "copy_kernel, 1, 128, (48 << 10) + 1, nullptr, nullptr")
    assert problems == [
        "nvcc, sm_80: copy_kernel is launched with 49153 bytes of shared memory, where 49152 are allowed"
    ]
    kernel = Kernel("triton", "sm_80", "copy[fp32]", 32, 0, 0, 1 << 20, 128, occupancy(80, 32, 128, 1 << 20))
    assert Report([kernel]).problems() == ["triton, sm_80: copy[fp32] does not fit onto a multiprocessor"]


@needs_nvcc
def test_a_warning_is_seen(tmp_path: Path) -> None:
    kernel = COPY.replace("  to[", "  int unused;\n  to[")
    (problem,) = cuda_problems(tmp_path, kernel, "copy_kernel, 1, 128, 0, nullptr, nullptr")
    assert 'variable "unused" was declared but never referenced' in problem


@needs_nvcc
def test_launches_that_do_not_fit_the_kernel_are_seen(tmp_path: Path) -> None:
    start = "copy_kernel, 1, 256, 0, nullptr, nullptr"
    (problem,) = cuda_problems(tmp_path, COPY, start)
    assert problem == "nvcc, sm_80: copy_kernel is launched with 256 threads, but has launch bounds of 128"
    (problem,) = cuda_problems(tmp_path, COPY.replace("__launch_bounds__(128) ", ""), start)
    assert problem == "nvcc, sm_80: copy_kernel is launched with 256 threads, but has no launch bounds"
    other = COPY.replace("copy_kernel", "forgotten_kernel")
    (problem,) = cuda_problems(tmp_path, COPY + other, start.replace("256", "128"))
    assert problem == "nvcc, sm_80: forgotten_kernel is launched by nothing in its file"


def test_names_are_readable() -> None:
    mangled = "_ZN3lps14matrix_productIfNS_8ExamplesIfEENS_6PanelsIfEEEEvT0_T1_NS_6ResultIT_EE"
    (signature,) = demangled([mangled])
    assert (
        signature
        == "matrix_product<float, Examples<float>, Panels<float>>(Examples<float>, Panels<float>, Result<float>)"
    )
    assert named(signature) == "matrix_product<float, Examples<float>, Panels<float>>"


# ---- faults that the check must see, in Triton ----


@triton.jit
def _square(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """One product of square matrices."""
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    held = tl.load(x + place)
    tl.store(out + place, tl.dot(held, tl.trans(held)))


@triton.jit
def _twice(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """A sum, which does not use tensor cores."""
    place = tl.arange(0, SIZE)
    tl.store(out + place, tl.load(x + place) + tl.load(x + place))


@triton.jit
def _chain(x, out, SIZE: tl.constexpr, PRECISION: tl.constexpr, OUTSIDE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """A sum of products."""
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for _ in range(1000):
        held = tl.load(x + place)
        if OUTSIDE:
            total += tl.dot(held, held, input_precision=PRECISION, max_num_imprecise_acc=SIZE)
        else:
            total += tl.dot(held, held, input_precision=PRECISION)  # the compiler moves the addition inside
        x += SIZE * SIZE
    tl.store(out + place, total)


@pytest.mark.parametrize("arch", INSTRUCTION_SETS)
def test_sums_that_stay_in_the_tensor_cores_are_seen(arch: str) -> None:
    constants: dict[str, object] = {"SIZE": 64, "PRECISION": "tf32", "OUTSIDE": False}
    ahead = Ahead("structured_linear[fp32]", _chain, {"x": "*fp32", "out": "*fp32"}, constants)
    (problem,) = compile_ahead(ahead, arch).problems()
    assert problem == f"triton, {arch}: structured_linear[fp32]: loop 0 keeps its fp32 sums in the tensor cores"
    assert compile_ahead(replace(ahead, constexprs={**constants, "OUTSIDE": True}), arch).problems() == []


def triton_problems(name: str, kernel: Any, size: int, options: dict[str, object], arch: str = "sm_80") -> list[str]:
    ahead = Ahead(name, kernel, {"x": "*fp32", "out": "*fp32"}, {"SIZE": size}, options)
    return compile_ahead(ahead, arch).problems()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_harmless_triton_kernels_pass(arch: str) -> None:
    assert triton_problems("twice[fp32]", _twice, 1024, {}, arch) == []
    assert triton_problems("structured_linear[fp32]", _square, 64, {}, arch) == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_lost_tensor_cores_of_triton_are_seen(arch: str) -> None:
    (problem,) = triton_problems("structured_linear[fp32]", _twice, 1024, {}, arch)
    assert problem == f"triton, {arch}: structured_linear[fp32] has no tensor-core instruction"


def test_spills_of_triton_are_seen() -> None:
    problems = triton_problems("structured_linear[fp32]", _square, 128, {"maxnreg": 64})
    assert len(problems) == 1
    assert "structured_linear[fp32] has a stack frame of" in problems[0]
    problems = triton_problems("structured_linear[fp32]", _square, 256, {"num_warps": 4}, "gfx942")
    assert any("spills" in problem for problem in problems)


def test_low_occupancy_of_triton_is_seen() -> None:
    (problem,) = triton_problems("square[fp32]", _square, 128, {"num_warps": 8})
    assert problem.startswith("triton, sm_80: square[fp32] is memory-bound with an occupancy of")


def test_a_kernel_that_does_not_compile_is_seen() -> None:
    (problem,) = triton_problems("square[fp32]", _square, 8, {})  # tensor cores need at least 16
    assert problem.startswith("triton, sm_80: square[fp32]: CompilationError")


# ---- occupancy and tables ----


@needs_nvcc
def test_occupancy_is_that_of_the_cuda_toolkit(tmp_path: Path) -> None:
    """Against the toolkit's own header, which computes without a GPU."""
    draw = random.Random(0)
    asked = [
        (arch, draw.randint(16, 255), 32 * draw.randint(1, 32), draw.randint(0, LIMITS[arch].shared - 2048))
        for arch, _ in itertools.product(LIMITS, range(40))
    ]
    calls = []
    for arch, registers, threads, shared in asked:
        limits = LIMITS[arch]
        numbers = [arch // 10, arch % 10, limits.threads, limits.shared, limits.reserved, registers, threads, shared]
        calls.append(f"  ask({', '.join(map(str, numbers))});")
    source = tmp_path / "ask.cpp"
    source.write_text(
        f"""
#include <cstdio>
#include <cuda_occupancy.h>
void ask(int major, int minor, int most, size_t shared, size_t reserved, int registers, int threads, size_t dynamic) {{
  cudaOccDeviceProp device;
  device.computeMajor = major, device.computeMinor = minor, device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = most, device.regsPerBlock = device.regsPerMultiprocessor = {REGISTERS};
  device.warpSize = 32, device.sharedMemPerBlock = 49152, device.sharedMemPerMultiprocessor = shared;
  device.numSms = 1, device.sharedMemPerBlockOptin = shared - reserved, device.reservedSharedMemPerBlock = reserved;
  cudaOccFuncAttributes kernel;
  kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
  kernel.maxDynamicSharedSizeBytes = shared - reserved;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  cudaOccDeviceState state;
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, dynamic) != 0) std::puts("?");
  else std::printf("%d\\n", result.activeBlocksPerMultiprocessor);
}}
int main() {{
{chr(10).join(calls)}
}}
"""
    )
    program = tmp_path / "ask"
    include = cuda_include()
    assert include is not None
    subprocess.run(["g++", "-std=c++17", f"-I{include}", "-o", program, source], check=True)
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert told == [str(resident_blocks(*numbers)) for numbers in asked]


def test_tables_go_between_the_markers(tmp_path: Path) -> None:
    kernel = Kernel("nvcc", "sm_80", "copy_kernel<float>", 32, 0, 0, 128, 256, 0.75)
    file = tmp_path / "gpu.md"
    file.write_text("# GPU kernels\n\n<!-- kernels -->\n<!-- /kernels -->\n")
    for _ in range(2):  # the second time over the first
        sections.write(file, tables.KERNELS, tables.markdown(Report([kernel])))
        lines = file.read_text().splitlines()
        assert lines[0] == "# GPU kernels"
        assert lines.count("| `copy_kernel<float>` | nvcc | 32 | 0 | 128 | 256 | 75 % |  |") == 1
        assert lines.count("| sm_80 | 1 | 0 | 75 % | 0 of 0 |") == 1


def test_the_document_has_a_place_for_every_table() -> None:
    document = ROOT / "docs" / "gpu-tables.md"
    for section in (tables.KERNELS, tables.MODEL, TRAFFIC):
        sections.split(document, section)
    assert tables.INTRODUCTION in document.read_text()


def test_the_model_names_every_operator_and_the_larger_of_its_bounds() -> None:
    lines = model.table({"compose": 0.5})
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(REGISTRY)
    (compose,) = [line for line in lines if line.startswith("| `compose` |")]
    assert compose.endswith("| 50 % |")
    gpu = model.Gpu("one", bandwidth=1e9, fp32=1e9, tf32=3e9, source="")
    assert model.Estimate("compose", 2 * 10**9, 10**9, 1).seconds(gpu) == 2 + model.LAUNCH_SECONDS
    assert model.Estimate("compose", 10**9, 2 * 10**9, 1).bound(gpu) == "arithmetic"
    assert model.Estimate("compose", 1, 1, 1).bound(gpu) == "launches"


def test_the_model_counts_on_the_instruction_of_the_cuda_kernels() -> None:
    h100, b200 = (gpu.tf32 for gpu in model.GPUS if gpu.name in ("H100", "B200"))
    assert h100 == pytest.approx(0.629 * 989e12 / 2)
    assert h100 < b200 < 0.5 * 2200e12 / 2


def test_the_document_has_the_times_of_the_model() -> None:
    """All but the measured column, which takes another command."""
    section = (ROOT / "docs" / "gpu-tables.md").read_text().split("<!-- model -->")[1].split("<!-- /model -->")[0]
    shown = [line.rpartition(" | ")[0] or line for line in section.split("\n")[1:-1]]
    assert shown == [line.rpartition(" | ")[0] or line for line in model.table({})]


def test_the_command_refuses_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--arch", "70"])
    assert "expected one of sm_75" in capsys.readouterr().err
    file = tmp_path / "gpu.md"
    file.write_text("Nothing here.\n")
    assert main(["--only", "triton", "--write", str(file)]) == 2
    assert "does not have the lines <!-- kernels -->" in capsys.readouterr().err
    assert file.read_text() == "Nothing here.\n"
    assert main(["--only", "triton", "--write", str(tmp_path / "absent.md")]) == 2
    assert main(["--only", "triton", "--table", str(tmp_path / "absent.json")]) == 2
