"""``python -m lps_kernels``: which backends are active and why, the CPU's instruction set, a self-test of every op."""

from __future__ import annotations

import argparse
import sys

import torch

import lps_kernels
from lps_kernels._registry import REGISTRY
from lps_kernels._selftest import failure


def main() -> int:
    """Print the report; returns 1 where an operator fails its self-test."""
    description = "Print the backends with reasons, the CPU's instruction set and a self-test of every operator."
    argparse.ArgumentParser(prog="python -m lps_kernels", description=description).parse_args()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if "cuda" in devices:
        # Only then is it known whether the library has code for the GPU.
        torch.cuda.init()  # type: ignore[no-untyped-call]
    print(f"lps_kernels {lps_kernels.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("\nbackends")
    for backend in lps_kernels.backends():
        print(f"  {backend.name:<10} {'active' if backend.active else 'inactive':<9} {backend.reason}")
    native = lps_kernels.backends()[0].active
    print(f"\ncpu instruction set: {torch.ops.lps._cpu_isa() if native else 'that of torch'}")
    print(f"\nself-test: {len(REGISTRY)} operators against their references, on {' and '.join(devices)}")
    failed = 0
    for device in devices:
        for name, op in REGISTRY.items():
            calls = sum(1 for dtype in op.dtypes for _ in op.samples(dtype))
            problem = failure(name, device)
            failed += problem is not None
            outcome = f"ok, {calls} calls" if problem is None else f"FAILED: {problem}"
            print(f"  {name:<18} {device:<5} {_kernel(name, device):<10} {outcome}")
    print(f"\n{len(REGISTRY) * len(devices) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _kernel(name: str, device: str) -> str:
    """The backend that serves the operator on this device."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"lps::{name}", device.upper()):
        return "reference"
    named = (backend.name for backend in lps_kernels.backends() if backend.active and backend.device == device)
    return next(named, "reference")


if __name__ == "__main__":
    sys.exit(main())
