"""Compiles the Triton kernels ahead of time, with no GPU, and reads what they take."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpu.architectures import LIMITS, WARP, occupancy
from benchmarks.gpu.resources import (
    MATRIX_KERNELS,
    Kernel,
    Report,
    family_of,
    read_cubin,
    tensor_core_instructions,
)
from lps_kernels.backends.triton._launch import Ahead

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
WAVEFRONT = 64
MOST_WAVES = 8  # of a SIMD of gfx942, as LLVM counts occupancy


def nvidia_tools() -> Path:
    """cuobjdump and nvdisasm, which come with Triton and read nvcc's cubins too."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def kernels() -> list[Ahead]:
    """Everything that the backend compiles ahead of time."""
    from lps_kernels.backends.triton import AOT  # noqa: PLC0415 (the other reports do without it)

    return list(AOT)


def compile_ahead(ahead: Ahead, arch: str) -> Report:
    """One kernel for one architecture."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            compiled = _compile(ahead, arch)
    except Exception as error:  # whatever the compiler throws is what is to be reported
        return Report(failures=[f"triton, {arch}: {ahead.name}: {type(error).__name__}: {str(error)[-400:]}"])
    failures = [f"triton, {arch}: {ahead.name}: {warning.message}" for warning in said]
    read = _read_amd if arch.startswith("gfx") else _read_nvidia
    return Report([read(compiled, ahead.name, arch)], failures)


def _compile(ahead: Ahead, arch: str) -> Any:
    names = ahead.fn.arg_names
    signature = {name: ahead.signature.get(name, "constexpr") for name in names}
    # Tensors begin where torch's allocators put them.
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    constants = dict(ahead.constexprs)
    if arch.startswith("gfx"):
        target = GPUTarget("hip", arch, WAVEFRONT)
        if str(constants.get("PRECISION")).startswith("tf32"):
            constants["PRECISION"] = "ieee"  # matrix cores of AMD multiply fp32 as it is
    else:
        target = GPUTarget("cuda", int(arch[3:]), WARP)
    source = ASTSource(fn=ahead.fn, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=target, options=dict(ahead.options))


def _read_nvidia(compiled: Any, name: str, arch: str) -> Kernel:
    number = int(arch[3:])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        (usage,) = read_cubin(Path(file.name), nvidia_tools(), LIMITS[number].reserved).values()
        counted: Counter[str] = Counter()
        if family_of(name) in MATRIX_KERNELS:  # only there, for the time that it takes
            (counted,) = tensor_core_instructions(Path(file.name), nvidia_tools()).values()
    threads, shared = compiled.metadata.num_warps * WARP, usage.shared + compiled.metadata.shared
    share = occupancy(number, usage.registers, threads, shared)
    # ptxas tells of spills only in its log; a spilled register makes a stack frame.
    return Kernel("triton", arch, name, usage.registers, usage.stack, 0, shared, threads, share, counted)


def _read_amd(compiled: Any, name: str, arch: str) -> Kernel:
    """From the assembler text, which has LLVM's own figures."""
    text = compiled.asm["amdgcn"]

    def figure(key: str) -> int:
        found = re.search(rf"^\s*(?:;\s*)?\.?{key}:\s+(\d+)", text, re.MULTILINE)
        assert found, f"{key} is not in the assembler text of {name}"
        return int(found[1])

    spills = figure("vgpr_spill_count") + figure("sgpr_spill_count")
    return Kernel(
        "triton",
        arch,
        name,
        figure("vgpr_count"),
        figure("private_segment_fixed_size"),
        spills,
        compiled.metadata.shared,
        compiled.metadata.num_warps * WAVEFRONT,
        figure("Occupancy") / MOST_WAVES,
        Counter(re.findall(r"\bv_(mfma)_", text)),
    )
