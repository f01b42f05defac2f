"""Which backends serve the operators, and why others do not. Chosen when the package is imported.

One choice is made again when torch starts CUDA: where the native library has no code for a GPU that is there, Triton's
kernels or the references take the place of its CUDA kernels, and a warning says so.

``LPS_BACKEND=reference`` leaves every operator to its reference, ``LPS_BACKEND=triton`` prefers Triton's kernels on a
GPU to those of the native library. ``LPS_REQUIRE`` names a backend whose absence is an error instead of a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lps_kernels.backends import gpu, native


@dataclass(frozen=True)
class Backend:
    """One way to run the operators, on ``cpu``, ``cuda`` (which ROCm's devices are called too) or ``any`` device.

    ``reason`` says where it comes from, or why it is not active.
    """

    name: str
    device: str
    active: bool
    reason: str


Status = tuple[bool, str]
# Every backend but the references, the fastest of a device first: name, device and a function that registers its
# kernels where it can. The function is told what LPS_BACKEND asks for and what the backends above it have answered; it
# answers whether it is active, and where it comes from or why not.
TABLE: dict[str, tuple[str, Callable[[str | None, dict[str, Status]], Status]]] = {
    "native": ("cpu", lambda wanted, found: native.load()),
    "cuda": ("cuda", lambda wanted, found: gpu.cuda(found["native"][0], wanted == "triton")),
    "triton": ("cuda", lambda wanted, found: gpu.triton(wanted == "triton", found["cuda"][0])),
}


def backends() -> list[Backend]:
    """Every backend of this process, the fastest of a device first."""
    return list(_BACKENDS)


def _choice(variable: str, choices: tuple[str, ...]) -> str | None:
    value = os.environ.get(variable)
    if value and value not in choices:
        raise ImportError(f"lps_kernels: {variable}: expected one of {', '.join(choices)}, got {value}")
    return value or None


def _select() -> list[Backend]:
    wanted = _choice("LPS_BACKEND", (*TABLE, "reference"))
    required = _choice("LPS_REQUIRE", tuple(TABLE))
    _choice("LPS_TF32", ("0", "1"))  # read where products are launched
    found: dict[str, Status] = {}
    for name, (_, load) in TABLE.items():
        off = False, "switched off by LPS_BACKEND=reference"
        found[name] = off if wanted == "reference" else load(wanted, found)
    for choice in (required, wanted):
        if choice in found and not found[choice][0]:
            raise ImportError(f"lps_kernels: the {choice} backend is required but not active: {found[choice][1]}")
    active, reason = found["native"]
    if not active and wanted != "reference":
        warnings.warn(f"lps_kernels runs on its slow references on the CPU: {reason}", RuntimeWarning, stacklevel=3)
    return [
        *(Backend(name, TABLE[name][0], *status) for name, status in found.items()),
        Backend("reference", "any", True, "readable torch functions, used where nothing faster is registered"),
    ]


_BACKENDS = _select()


def settle(gpus: Sequence[tuple[str, gpu.Capability]], code: gpu.Code) -> None:
    """Replace the library's CUDA kernels where they have no code for one of these GPUs, and say so."""
    problem = gpu.without_code(gpus, code)
    if problem is None:
        return
    if "cuda" in (os.environ.get("LPS_REQUIRE"), os.environ.get("LPS_BACKEND")):
        raise RuntimeError(f"lps_kernels: the cuda backend is required but not active: {problem}")
    active, reason = gpu.replace_cuda(gpus)
    found = {"cuda": (False, problem), "triton": (active, reason)}
    _BACKENDS[:] = [Backend(b.name, b.device, *found.get(b.name, (b.active, b.reason))) for b in _BACKENDS]
    instead = "Triton's kernels" if active else f"the slow references (not Triton: {reason})"
    warnings.warn(f"lps_kernels runs on {instead} on the GPU: {problem}", RuntimeWarning, stacklevel=2)


def _on_start_of_cuda() -> None:
    count = torch.cuda.device_count()
    gpus = [(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(count)]
    settle(gpus, gpu.Code.of(torch.ops.lps._cuda_architectures()))


if any(backend.name == "cuda" and backend.active for backend in _BACKENDS):
    # Torch's own checks of capabilities wait for the start of CUDA in the same way.
    torch.cuda._lazy_call(_on_start_of_cuda)  # type: ignore[no-untyped-call]
