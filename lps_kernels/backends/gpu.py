"""Who serves the operators on a GPU: the CUDA kernels of the native library, else Triton's, else the references.

Nothing here asks for a device, so importing the package does not start CUDA; Triton is imported at the first call.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

import lps_kernels.ops  # noqa: F401 - declares the operators that are registered here
from lps_kernels._registry import REGISTRY

REMEDY = "run `LPS_CUDA=1 pip install .` in the clone"
# Torch's key for GPUs of NVIDIA and AMD alike: a ROCm build calls its devices cuda too.
KEY = "CUDA"
ROCM_REMEDY = "run `pip install triton`, or `pip install .` for a library without them"

# Registrations last as long as the object that made them.
_registrations: list[torch.library.Library] = []


def cuda(native_active: bool, triton_wanted: bool) -> tuple[bool, str]:
    """Whether the loaded library has CUDA kernels, and what they run on or why there are none."""
    if not native_active:
        return False, "the native library, which holds them, is not active"
    if not torch._C._dispatch_has_kernel_for_dispatch_key("lps::compose", KEY):
        return False, f"the native library was built without them; {REMEDY}"
    if torch.version.cuda is None:
        # They stay registered; without Triton, ROCm's tensors would meet them and their first launch would fail.
        sentence = f"the native library has them, but torch {torch.__version__} is built without CUDA"
        return False, sentence if torch.version.hip is None else f"{sentence}; on ROCm, {ROCM_REMEDY}"
    problem = torch.ops.lps._cuda_driver_problem()
    if problem:
        return False, f"the native library has them, but {problem}"
    if triton_wanted:
        return False, "LPS_BACKEND=triton prefers the Triton kernels"
    return True, f"in the native library, for compute capability 7.5 and later; torch has CUDA {torch.version.cuda}"


def triton(wanted: bool, cuda_active: bool) -> tuple[bool, str]:
    """Register Triton's kernels where they are wanted or nothing better is there."""
    build = torch.version.cuda or torch.version.hip
    if build is None:
        return False, f"torch {torch.__version__} is built without CUDA and without ROCm"
    if cuda_active and not wanted:
        return False, "the CUDA kernels of the native library come first; LPS_BACKEND=triton prefers these"
    # Triton's own reading of the variable; an interpreted kernel would follow a GPU's pointers on the CPU.
    if os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "y", "on", "true", "yes"):
        return False, "TRITON_INTERPRET is set, and interpreted kernels cannot read a GPU's memory; unset it"
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed; run `pip install triton`"
    library = torch.library.Library("lps", "IMPL")  # type: ignore[no-untyped-call]
    for name in REGISTRY:
        library.impl(name, _on_first_call(name), KEY, allow_override=True)  # type: ignore[no-untyped-call]
    _registrations.append(library)
    return (
        True,
        f"compiled at the first call of each operator; torch has {'CUDA' if torch.version.cuda else 'ROCm'} {build}",
    )


def _on_first_call(name: str) -> Callable[..., Any]:
    """The operator's Triton version, looked up when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from lps_kernels.backends.triton import KERNELS  # noqa: PLC0415 - it takes a second to import

        return KERNELS[name](*args, **kwargs)

    return call
