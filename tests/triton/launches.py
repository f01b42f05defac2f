"""Drives every operator's launches up to Triton's compiler, for a GPU that is not there.

    python -m tests.triton.launches

Triton binds the arguments of each launch as it would for an sm_90, and every tuned configuration is asked for. The
compiler's front end then translates what is new; nothing is launched. Prints one line of JSON: how many ``launches``
were bound, which of them are ``missing`` in what is compiled ahead of time, and what was ``wrong``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton import AOT, KERNELS, _matrix
from tests.helpers import map_tensors

TARGET = GPUTarget("cuda", 90, 32)
PROCESSORS = 132
# These are compiled ahead with either value, but not in every combination with one another.
FLAGS = {"ALIGNED", "SPLIT", "RELU", "PULL", "AS_MASK", "TO_SCORES", "WIDE"}
FLAGS |= {"columns", "rows", "bias", "residual", "parts"}  # tensors that may be absent
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")

Form = frozenset[tuple[str, object]]


class Pretended:
    """As much of a driver as binding and tuning ask for."""

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return TARGET

    def get_benchmarker(self) -> Any:
        """Calls each configuration once; all are as fast."""

        def measure(call: Any, quantiles: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return measure


class Compiled:
    """Takes the place of a compiled kernel."""

    function = packed_metadata = None

    def launch_metadata(self, *args: object) -> None:
        """Nothing to tell."""

    def run(self, *args: object) -> None:
        """Nothing to do."""


def form_of(fn: Any, signature: Mapping[str, str], constants: Mapping[str, Any], options: Any) -> tuple[Form, Form]:
    """What makes a compiled kernel another one, apart from sizes: first what is fixed, then the flags."""
    fixed: dict[str, object] = {name: getattr(options, name) for name in OPTIONS}
    flags: dict[str, object] = {}
    for name in fn.arg_names:
        kind, value = signature.get(name, "constexpr"), constants.get(name)
        if name in FLAGS and not (name == "rows" and "table" in fn.arg_names):
            flags[name] = value if name.isupper() else kind != "constexpr"
        elif name == "out":  # of parts in fp32, or what they add up to
            flags[name] = kind
        elif name == "CONV":
            fixed[name] = value is not None
        elif name == "ROWS" and "table" in fn.arg_names:  # as many as there are layers
            pass
        elif kind.startswith("*") or value is None or name.isupper():
            fixed[name] = kind if kind.startswith("*") else str(value)
    # Numbers are of any size, and the size one is a constant.
    sizes = {name for name in fixed if name.islower() and signature.get(name, "*")[0] in "iuf"}
    return frozenset((name, fixed[name]) for name in fixed if name not in sizes), frozenset(flags.items())


class Launches:
    """Takes the place of Triton's compiler."""

    def __init__(self) -> None:
        self.bound = 0
        self.missing: set[str] = set()
        self.wrong: list[str] = []
        self._translated: set[object] = set()
        self._ahead: dict[str, tuple[set[Form], set[tuple[str, object]]]] = {}
        backend = make_backend(TARGET)
        for ahead in AOT:
            fixed, flags = self._ahead.setdefault(ahead.fn.__name__, (set(), set()))
            options = backend.parse_options(dict(ahead.options))
            form = form_of(ahead.fn, ahead.signature, ahead.constexprs, options)
            fixed.add(form[0])
            flags |= form[1]

    def compile(
        self,
        fn: Any,
        key: str,
        signature: dict[str, str],
        device: int,
        constexprs: dict[tuple[int, ...], Any],
        options: Any,
        attrs: Any,
        warmup: bool,
    ) -> Any:
        """Note the launch; translate it if it is of a new form."""
        kernel_cache, _, target, backend, _ = fn.device_caches[device]
        kernel_cache[key] = Compiled()
        self.bound += 1
        constants = {fn.arg_names[path[0]]: value for path, value in constexprs.items()}
        form = form_of(fn, signature, constants, options)
        fixed, flags = self._ahead.get(fn.__name__, (set(), set()))
        if form[0] not in fixed:
            self.missing.add(f"{fn.__name__}: {sorted(form[0], key=str)}")
        self.missing |= {f"{fn.__name__}: {name}={value}" for name, value in form[1] - flags}
        if (fn.__name__, form) not in self._translated:
            self._translated.add((fn.__name__, form))
            context = ir.context()
            ir.load_dialects(context)
            backend.load_dialects(context)
            source = fn.ASTSource(fn, signature, constexprs, attrs)
            implementation = backend.get_codegen_implementation(options)
            source.make_ir(target, options, implementation, backend.get_module_map(), context)
        return kernel_cache[key]

    def report(self) -> dict[str, object]:
        """What :func:`main` prints."""
        counts = {"launches": self.bound, "forms": len(self._translated)}
        return {**counts, "missing": sorted(self.missing), "wrong": self.wrong}


def unaligned(tensor: Tensor) -> Tensor:
    """A copy that begins one element behind where the allocator puts tensors."""
    memory = tensor.new_empty(tensor.numel() + 1)
    return memory[1:].view(tensor.shape).copy_(tensor)


def main() -> None:
    launches = Launches()
    driver.set_active(Pretended())
    JITFunction._do_compile = lambda *args: launches.compile(*args)  # noqa: PLW0108 - a method of the kernel
    _matrix.on_nvidia = lambda device: True
    _matrix.processors = lambda device: PROCESSORS
    for name, op in REGISTRY.items():
        for dtype in op.dtypes:
            for number, sample in enumerate(op.samples(dtype)):
                try:
                    KERNELS[name](*sample.args)
                    if number == 0:
                        KERNELS[name](*map_tensors(sample.args, unaligned))
                except Exception as error:  # whatever the compiler throws is what is to be reported
                    launches.wrong.append(
                        f"{name}, {dtype}, {sample.name}: {type(error).__name__}: {str(error)[-400:]}"
                    )
    print(json.dumps(launches.report()))


if __name__ == "__main__":
    main()
