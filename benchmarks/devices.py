"""Where operators are timed: on the CPU with the native library, or on a GPU with the CUDA and the Triton kernels.

Nothing of the GPU part has been run by its authors, who had no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import lps_kernels
from benchmarks.timing import Thunk, time_call
from lps_kernels._registry import Args, Op

DEVICES = ("cpu", "cuda")
HEAD_START_CYCLES = 10_000_000  # 5 ms or more: time to enqueue some hundred launches
# Products gain from tensor cores in 16-bit floats; the other operators' workloads are in fp32 unless asked otherwise.
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}


@dataclass(frozen=True)
class Device:
    """A device and the dtype of the workloads on it."""

    name: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def on_gpu(self) -> bool:
        """Whether calls return before they are done."""
        return self.name == "cuda"

    def why_not(self) -> str | None:
        """Why our kernels cannot be timed here; None where they can."""
        if self.on_gpu and not torch.cuda.is_available():
            return f"torch {torch.__version__} sees no GPU"
        ours = [backend for backend in lps_kernels.backends() if backend.device == self.name]
        active = any(backend.active for backend in ours)
        return None if active else "; ".join(f"{backend.name}: {backend.reason}" for backend in ours)

    def backends(self, op: Op) -> dict[str, Callable[..., Any]]:
        """Our own implementations; ratios are relative to the first."""
        if not self.on_gpu:
            return {"native": op.overload, "reference": op.reference}
        found: dict[str, Callable[..., Any]] = {}
        if why_not_active("cuda") is None:
            found["cuda"] = op.overload
        if find_spec("triton") is not None:
            from lps_kernels.backends.triton import KERNELS  # noqa: PLC0415 - not every machine has Triton

            found["triton"] = KERNELS[op.name]
        return {**found, "reference": op.reference}

    def place(self, calls: list[Args]) -> list[Args]:
        """The calls with their tensors on the device and their floats in its dtype."""
        return [tuple(self._placed(argument) for argument in args) for args in calls]

    def _placed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._placed(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        return value.to(self.name, self.dtype if value.dtype == torch.float32 else value.dtype)

    def warm_up(self, function: Thunk) -> None:
        """On a GPU a first call may compile, tune or load a library for seconds; it is not to be timed."""
        if self.on_gpu:
            function()
            torch.cuda.synchronize()

    def time(self, function: Thunk) -> float:
        """Seconds of one call: of the device's work on a GPU, of the call itself on the CPU."""
        if not self.on_gpu:
            return time_call(function)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # While the device sleeps the host gets ahead of it, so that no launch has to wait for Python.
        torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def why_not_active(name: str) -> str | None:
    """Why this backend of the operators does not run in this process; None where it does."""
    (found,) = [backend for backend in lps_kernels.backends() if backend.name == name]
    return None if found.active else found.reason
