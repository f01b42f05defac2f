"""What each operator should take on a GPU, from the bytes it must move and the flops it must compute.

A lower bound with an allowance for launches, not a measurement: nothing here has been run on a GPU. The time is the
larger of bytes over bandwidth and flops over peak, plus what the kernels of one call take to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.shapes import NETWORKS
from lps_kernels._registry import REGISTRY

NETWORK = "mlp"
# A kernel that follows another on a stream starts about this much later than it could.
LAUNCH_SECONDS = 3e-6


@dataclass(frozen=True)
class Gpu:
    """Peaks without sparsity: bytes and flops per second. Memory's and ordinary cores' are as their maker publishes."""

    name: str
    bandwidth: float
    fp32: float  # on ordinary cores
    tf32: float  # on tensor cores with mma.sync, the instruction of the CUDA kernels
    source: str


# Of the peaks for tensor cores that H100's data sheet has, which only wgmma reaches, what mma.sync attains on average:
# Luo et al., Dissecting the NVIDIA Hopper Architecture, arXiv:2501.12084, section 6.2 (measured on an H800).
MMA_SYNC_ON_HOPPER = 0.629
H100_TF32 = MMA_SYNC_ON_HOPPER * 494.5e12
# We found no such figure for B200, whose peak takes tcgen05. Assumed is the rate of Hopper's multiprocessors per clock:
# 148 of them at 1.965 GHz, where H100's peak counts 132 at 1.83 GHz.
B200_TF32 = H100_TF32 * (148 * 1.965) / (132 * 1.83)

# The fp32 products of the dense family are three TF32 products each (csrc/cuda/matrix.cuh).
GPUS = (
    Gpu("A100", 2.039e12, 19.5e12, 156e12, "NVIDIA A100 80GB SXM data sheet: 2,039 GB/s, FP32 19.5, TF32 156 TFLOPS"),
    Gpu(
        "H100",
        3.35e12,
        67e12,
        H100_TF32,
        "NVIDIA H100 SXM data sheet: 3.35 TB/s, FP32 67, TF32 989 TFLOPS, half of it without sparsity, of which "
        f"mma.sync attains {100 * MMA_SYNC_ON_HOPPER:.1f} %, {H100_TF32 / 1e12:.0f} TFLOPS (arXiv:2501.12084, section "
        "6.2)",
    ),
    Gpu(
        "B200",
        8e12,
        80e12,
        B200_TF32,
        "NVIDIA Blackwell brief, HGX B200: 8 TB/s, FP32 80 TFLOPS; TF32 by mma.sync is an assumption, "
        f"{B200_TF32 / 1e12:.0f} TFLOPS: H100's rate per multiprocessor and clock, for 148 of them at 1.965 GHz (with "
        "tcgen05, which the CUDA kernels do not use, the brief has 1,100)",
    ),
)


@dataclass(frozen=True)
class Estimate:
    """One operator on one network."""

    op: str
    bytes: int
    flops: int
    launches: int

    def seconds(self, gpu: Gpu) -> float:
        """The least time on this GPU."""
        return max(self.bytes / gpu.bandwidth, self.flops / self._peak(gpu)) + self.launches * LAUNCH_SECONDS

    def bound(self, gpu: Gpu) -> str:
        """What most of that time is."""
        parts = {
            "memory": self.bytes / gpu.bandwidth,
            "arithmetic": self.flops / self._peak(gpu),
            "launches": self.launches * LAUNCH_SECONDS,
        }
        return max(parts, key=lambda part: parts[part])

    def _peak(self, gpu: Gpu) -> float:
        return gpu.tf32 / 3 if REGISTRY[self.op].tensor_cores else gpu.fp32


def estimate(op: str, network: str) -> Estimate:
    """From the operator's own cost of its workload at the network's shapes."""
    calls = REGISTRY[op].workload(NETWORKS[network])
    costs = [REGISTRY[op].cost(*args) for args in calls]
    launches = REGISTRY[op].launches * len(calls)
    return Estimate(op, sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs), launches)


def table(shares: Mapping[str, float], network: str = NETWORK) -> list[str]:
    """Markdown: bytes, flops and expected microseconds on each GPU, beside the measured share of the CPU's roofline."""
    names = " | ".join(f"{gpu.name} µs (bound)" for gpu in GPUS)
    lines = [
        f"| operator on {network} | MB | GFLOP | launches | {names} | CPU: measured share of the bandwidth |",
        "|---|---|---|---|" + "---|" * len(GPUS) + "---|",
    ]
    for op in REGISTRY:
        here = estimate(op, network)
        if here.bytes == 0:
            continue
        times = " | ".join(f"{1e6 * here.seconds(gpu):.1f} ({here.bound(gpu)})" for gpu in GPUS)
        share = f"{100 * shares[op]:.0f} %" if op in shares else "-"
        lines.append(
            f"| `{op}` | {here.bytes / 1e6:.1f} | {here.flops / 1e9:.3f} | {here.launches} | {times} | {share} |"
        )
    lines += ["", "Sources of the peaks: " + "; ".join(gpu.source for gpu in GPUS) + "."]
    return lines
