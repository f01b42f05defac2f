"""Which backends serve the operators, and why others do not. Chosen once, when the package is imported.

``LPS_BACKEND=reference`` leaves every operator to its reference, ``LPS_BACKEND=triton`` prefers Triton's kernels on a
GPU to those of the native library. ``LPS_REQUIRE`` names a backend whose absence is an error instead of a warning.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from lps_kernels.backends import gpu, native


@dataclass(frozen=True)
class Backend:
    """One way to run the operators. ``reason`` says where it comes from, or why it is not active."""

    name: str
    active: bool
    reason: str


def backends() -> list[Backend]:
    """Every backend of this process, the fastest first."""
    return list(_BACKENDS)


def _choice(variable: str, choices: tuple[str, ...]) -> str | None:
    value = os.environ.get(variable)
    if value and value not in choices:
        raise ImportError(f"lps_kernels: {variable}: expected one of {', '.join(choices)}, got {value}")
    return value or None


def _select() -> list[Backend]:
    wanted = _choice("LPS_BACKEND", ("native", "triton", "reference"))
    required = _choice("LPS_REQUIRE", ("native", "cuda", "triton"))
    _choice("LPS_TF32", ("0", "1"))  # read where products are launched
    if wanted == "reference":
        found = dict.fromkeys(("native", "cuda", "triton"), (False, "switched off by LPS_BACKEND=reference"))
    else:
        library = native.load()
        cuda = gpu.cuda(library[0])
        found = {"native": library, "cuda": cuda, "triton": gpu.triton(wanted == "triton", cuda[0])}
        if found["triton"][0] and cuda[0]:
            found["cuda"] = (False, "LPS_BACKEND=triton prefers the Triton kernels")
    for name in (required, wanted):
        if name in found and not found[name][0]:
            raise ImportError(f"lps_kernels: the {name} backend is required but not active: {found[name][1]}")
    active, reason = found["native"]
    if not active and wanted != "reference":
        warnings.warn(f"lps_kernels runs on its slow references on the CPU: {reason}", RuntimeWarning, stacklevel=3)
    return [
        *(Backend(name, *status) for name, status in found.items()),
        Backend("reference", True, "readable torch functions, used where nothing faster is registered"),
    ]


_BACKENDS = _select()
