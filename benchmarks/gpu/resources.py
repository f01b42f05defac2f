"""What a compiled kernel takes of the hardware, and what is wrong with that."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lps_kernels._registry import REGISTRY

LEAST_OCCUPANCY = 0.5  # of memory-bound kernels, which hide latency with other warps

# Kernels of matrix products: bound by arithmetic, and on tensor cores where the value is True. CUDA's have names of
# their own; Triton's are named after their operators and are all on tensor cores.
MATRIX_KERNELS = {
    "matrix_product": True,
    "sparse_many": False,
    "sparse_few": False,
    **{op.name: True for op in REGISTRY.values() if op.sums == "products"},
}
# As their types are spelled; fp64 has no tensor cores on some architectures.
TENSOR_CORE_TYPES = {"float", "f16", "bf16", "fp32", "fp16"}
LEAST_TENSOR_CORE_ARCH = 80
TENSOR_CORE_INSTRUCTION = re.compile(r"\b(?:[HIDQO]G?MMA|UTC[A-Z]*MMA)\b")


def family_of(name: str) -> str:
    """A kernel's name without its types."""
    return re.split(r"[<\[]", name)[0]


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel. ``name`` is ``matrix_product<float, ...>`` or ``structured_linear[fp32, ...]``."""

    toolchain: str  # nvcc or triton
    arch: str  # sm_80 or gfx942
    name: str
    registers: int
    stack: int  # bytes of a thread: arrays and spilled registers
    spills: int  # registers or bytes, as the compiler counts them
    shared: int  # bytes of a block, static and dynamic
    threads: int  # of a block
    occupancy: float
    tensor_cores: Counter[str] = field(default_factory=Counter)  # instructions by name

    @property
    def family(self) -> str:
        """The name without its types."""
        return family_of(self.name)

    @property
    def element(self) -> str:
        """The type of its floats, if it says one."""
        found = re.search(r"[<\[]([\w:]+)", self.name)
        return found[1] if found else ""

    @property
    def memory_bound(self) -> bool:
        """Whether its time is that of its memory accesses."""
        return self.family not in MATRIX_KERNELS

    @property
    def wants_tensor_cores(self) -> bool:
        """Whether its products belong on tensor cores."""
        old = self.arch.startswith("sm_") and int(self.arch[3:]) < LEAST_TENSOR_CORE_ARCH
        return MATRIX_KERNELS.get(self.family, False) and self.element in TENSOR_CORE_TYPES and not old

    def problems(self) -> list[str]:
        """What the check does not let pass."""
        found = []
        if self.spills:
            found.append(f"spills {self.spills}")
        if self.stack:
            found.append(f"has a stack frame of {self.stack} bytes")
        if self.occupancy == 0:
            found.append("does not fit onto a multiprocessor")
        elif self.memory_bound and self.occupancy < LEAST_OCCUPANCY:
            found.append(f"is memory-bound with an occupancy of {100 * self.occupancy:.0f} %")
        if self.wants_tensor_cores and not self.tensor_cores:
            found.append("has no tensor-core instruction")
        return [f"{self.toolchain}, {self.arch}: {self.name} {problem}" for problem in found]


@dataclass
class Report:
    """What one or more compilations gave: kernels, and what went wrong on the way, such as a warning."""

    kernels: list[Kernel] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take in another report."""
        self.kernels += other.kernels
        self.failures += other.failures

    def problems(self) -> list[str]:
        """Failures, then what is wrong with the kernels."""
        return self.failures + [problem for kernel in self.kernels for problem in kernel.problems()]


@dataclass(frozen=True)
class Usage:
    """What a cubin says of one of its functions."""

    registers: int
    stack: int
    shared: int


def read_cubin(path: Path, tools: Path, reserved: int) -> dict[str, Usage]:
    """Each function of a cubin by its mangled name.

    Tools for capability 9.0 and later count the driver's ``reserved`` bytes of shared memory as the kernel's own.
    """
    numbers = _run(tools / "cuobjdump", "--dump-resource-usage", path)
    pattern = r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    usages = {}
    for name, registers, stack, shared, local in re.findall(pattern, numbers):
        own = int(shared) - (reserved if int(shared) >= reserved else 0)
        usages[name] = Usage(int(registers), int(stack) + int(local), own)
    return usages


def tensor_core_instructions(path: Path, tools: Path) -> dict[str, Counter[str]]:
    """Instructions by name, for each function of a cubin by its mangled name. Takes a quarter of a second at least."""
    code = _run(tools / "nvdisasm", "--print-code", "--no-dataflow", path)
    sections = re.split(r"^\s*\.section\s+\.text\.", code, flags=re.MULTILINE)[1:]
    return {section.split(",")[0]: Counter(TENSOR_CORE_INSTRUCTION.findall(section)) for section in sections}


def launch_bounds(path: Path, tools: Path) -> dict[str, int]:
    """The most threads of a block, by mangled name, for the functions of a cubin that have such a bound."""
    bounds = {}
    for section in re.split(r"^\.nv\.info\.", _run(tools / "cuobjdump", "--dump-elf", path), flags=re.MULTILINE)[1:]:
        bound = re.search(r"EIATTR_MAX_THREADS.*?Value:\s*(0x\w+) (0x\w+) (0x\w+)", section, re.DOTALL)
        if bound:
            x, y, z = (int(number, 16) for number in bound.groups())
            bounds[section.split()[0]] = x * y * z
    return bounds


def _run(tool: Path, *arguments: object) -> str:
    done = subprocess.run([str(tool), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{tool.name} failed: {done.stderr.strip()}")
    return done.stdout
