"""Compiles the Triton kernels ahead of time, with no GPU, and reads what they take."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
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
# A product of matrices in Triton's code for GPUs, with the shape of its result; of tcgen05 that is its third operand.
PRODUCT = re.compile(
    r"(?:tt\.dot |ttng\.warp_group_dot ).* -> tensor<(\d+x\d+)xf32"
    r"|ttng\.tc_gen5_mma .*?memdesc.*?memdesc.*?memdesc<(\d+x\d+)xf32"
)
SHAPE = re.compile(r"tensor<(\d+x\d+)xf32")
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
    if arch.startswith("sm_") and str(ahead.constexprs.get("PRECISION")).startswith("tf32"):
        failures += [f"triton, {arch}: {ahead.name}: {what}" for what in sums_in_tensor_cores(compiled.asm["ttgir"])]
    read = _read_amd if arch.startswith("gfx") else _read_nvidia
    return Report([read(compiled, ahead.name, arch)], failures)


def sums_in_tensor_cores(ttgir: str) -> list[str]:
    """The loops with products, in Triton's code for GPUs, that do not add up their fp32 sums by ordinary additions.

    The sum of a loop is what it carries from pass to pass in the shape of a product's result; it may be read by
    additions alone. Where it lies in tensor memory the loop carries no such value.
    """
    found = []
    for number, (header, body) in enumerate(_loops(ttgir)):
        results = {match[1] or match[2] for line in body if (match := PRODUCT.search(line))}
        if not results:
            continue
        carried = re.findall(r"(%[\w-]+) = ", header.partition("iter_args(")[2].partition(") -> (")[0])
        kinds = _split(header.partition(") -> (")[2].rpartition(")")[0])
        shapes = [match[1] if (match := SHAPE.match(kind)) else None for kind in kinds]
        sums = [name for name, shape in zip(carried, shapes, strict=True) if shape in results]
        readers = [line for line in body if any(re.search(rf"{name}(?![\w#-])", line) for name in sums)]
        if not readers or not all("arith.addf" in line for line in readers):
            found.append(f"loop {number} keeps its fp32 sums in the tensor cores")
    return found


def _loops(ttgir: str) -> Iterator[tuple[str, list[str]]]:
    """The first line of every loop and the lines inside, which are indented."""
    lines = [line.partition(" loc(")[0] for line in ttgir.splitlines()]
    for place, line in enumerate(lines):
        if " scf.for " in line:
            indent = line[: len(line) - len(line.lstrip())]
            yield line, lines[place + 1 : lines.index(f"{indent}}}", place)]


def _split(kinds: str) -> list[str]:
    """Types between commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in kinds:
        depth += letter in "<([{"
        depth -= letter in ">)]}"
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


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
