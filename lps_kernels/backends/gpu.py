"""Who serves the operators on a GPU: the CUDA kernels of the native library, else Triton's, else the references.

Importing the package asks for no device, so it does not start CUDA. Whether the library has code for the GPUs that are
there is seen when torch starts CUDA (:func:`without_code`). Triton is imported at the first call.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import lps_kernels.ops  # noqa: F401 - declares the operators that are registered here
from lps_kernels._registry import REGISTRY

REMEDY = "run `LPS_CUDA=1 pip install .` in the clone"
# Torch's key for GPUs of NVIDIA and AMD alike: a ROCm build calls its devices cuda too.
KEY = "CUDA"
ROCM_REMEDY = "run `pip install triton`, or `pip install .` for a library without them"
# The Triton kernels are compiled, in the tests, for this compute capability and later ones.
LEAST_TRITON = (8, 0)

# Registrations last as long as the object that made them.
_registrations: list[torch.library.Library] = []


Capability = tuple[int, int]


@dataclass(frozen=True)
class Code:
    """What a library has for GPUs: machine code for some compute capabilities, and PTX, which the driver compiles."""

    images: tuple[Capability, ...]
    ptx: tuple[Capability, ...]

    @classmethod
    def of(cls, architectures: str) -> Code:
        """From CMake's words: ``75`` is machine code and PTX of 7.5, ``75-real`` and ``75-virtual`` one of them."""
        kinds: dict[str, list[Capability]] = {"real": [], "virtual": []}
        for number, _, kind in (entry.partition("-") for entry in architectures.split(",")):
            for wanted in (kind,) if kind else kinds:
                kinds[wanted].append(divmod(int(number), 10))
        return cls(tuple(kinds["real"]), tuple(kinds["virtual"]))

    def runs_on(self, gpu: Capability) -> str | None:
        """What a GPU runs: an image of its major version and no later minor one, else PTX that is not later."""
        images = [image for image in self.images if image[0] == gpu[0] and image <= gpu]
        ptx = [version for version in self.ptx if version <= gpu]
        if images:
            return f"machine code for {_text(max(images))}"
        return f"PTX for {_text(max(ptx))}" if ptx else None

    def __str__(self) -> str:
        """All of it, in words."""
        parts = {"machine code": self.images, "PTX": self.ptx}
        return " and ".join(f"{name} for {', '.join(map(_text, listed))}" for name, listed in parts.items() if listed)


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def without_code(gpus: Sequence[tuple[str, Capability]], code: Code) -> str | None:
    """Why the library's kernels do not run on all of these GPUs, given their names and compute capabilities."""
    for number, (name, capability) in enumerate(gpus):
        if code.runs_on(capability) is None:
            has = f"the native library has {code}, nothing for GPU {number} ({name}, {_text(capability)})"
            return f"{has}; {REMEDY}, with LPS_CUDA_ARCHITECTURES unset, or hide it with CUDA_VISIBLE_DEVICES"
    return None


def replace_cuda(gpus: Sequence[tuple[str, Capability]]) -> tuple[bool, str]:
    """Put other kernels in the places of the library's: Triton's where it serves all of these GPUs, else references.

    Answers whether Triton's are active now, and where they come from or why not.
    """
    too_old = [f"{name}, {_text(capability)}" for name, capability in gpus if capability < LEAST_TRITON]
    if too_old:
        active, reason = False, f"its kernels are compiled for {_text(LEAST_TRITON)} and later, this is {too_old[0]}"
    else:
        active, reason = triton(wanted=True, cuda_active=False)
    if not active:
        _register({name: torch.no_grad()(op.reference) for name, op in REGISTRY.items()})
    return active, reason


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
    has = Code.of(torch.ops.lps._cuda_architectures())
    return True, f"in the native library, with {has}; torch has CUDA {torch.version.cuda}"


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
    _register({name: _on_first_call(name) for name in REGISTRY})
    return (
        True,
        f"compiled at the first call of each operator; torch has {'CUDA' if torch.version.cuda else 'ROCm'} {build}",
    )


def _register(calls: Mapping[str, Callable[..., Any]]) -> None:
    """Serve the operators on a GPU with these."""
    library = torch.library.Library("lps", "IMPL")  # type: ignore[no-untyped-call]
    for name, call in calls.items():
        library.impl(name, call, KEY, allow_override=True)  # type: ignore[no-untyped-call]
    _registrations.append(library)


def _on_first_call(name: str) -> Callable[..., Any]:
    """The operator's Triton version, looked up when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        from lps_kernels.backends.triton import KERNELS  # noqa: PLC0415 - it takes a second to import

        return KERNELS[name](*args, **kwargs)

    return call
