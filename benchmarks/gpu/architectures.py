"""What a multiprocessor of each architecture holds, and how much of it a kernel can fill.

The limits are those of the table "Technical Specifications per Compute Capability" of NVIDIA's CUDA C++ Programming
Guide. How registers and shared memory are rounded is in ``cuda_occupancy.h`` of the CUDA toolkit; the tests compare.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
REGISTERS = 65_536  # of a multiprocessor, in four partitions
PARTITIONS = 4
REGISTERS_ROUNDED = 256  # of a warp
LARGEST_BLOCK = 1024


@dataclass(frozen=True)
class Limits:
    """Of one multiprocessor. ``reserved`` bytes of shared memory of every block are the driver's."""

    threads: int
    blocks: int
    shared: int
    reserved: int = 1024
    rounded: int = 128  # shared memory of a block, in bytes


LIMITS = {
    75: Limits(1024, 16, 64 << 10, reserved=0, rounded=256),
    80: Limits(2048, 32, 164 << 10),
    86: Limits(1536, 16, 100 << 10),
    89: Limits(1536, 24, 100 << 10),
    90: Limits(2048, 32, 228 << 10),
    100: Limits(2048, 32, 228 << 10),
    120: Limits(1536, 24, 100 << 10),
}


def resident_blocks(arch: int, registers: int, threads: int, shared: int) -> int:
    """Blocks that fit onto one multiprocessor at a time, given the registers of a thread and a block's bytes."""
    limits, warps = LIMITS[arch], _up(threads, WARP) // WARP
    of_warp = _up(registers * WARP, REGISTERS_ROUNDED)
    if threads > LARGEST_BLOCK or of_warp * _up(warps, PARTITIONS) > REGISTERS:
        return 0
    by_registers = REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps
    of_block = _up(shared + limits.reserved, limits.rounded)
    by_shared = limits.shared // of_block if of_block else limits.blocks
    return min(limits.blocks, limits.threads // WARP // warps, by_registers, by_shared)


def occupancy(arch: int, registers: int, threads: int, shared: int) -> float:
    """The share of a multiprocessor's warps that can be there at a time."""
    warps = _up(threads, WARP) // WARP
    return resident_blocks(arch, registers, threads, shared) * warps / (LIMITS[arch].threads // WARP)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
