"""What all Triton kernels share on the host's side: sizes, tables in device memory, launch options."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

T = TypeVar("T")
Kernels = dict[str, Callable[..., Any]]  # operators by name

INTERPRETING: bool = triton.knobs.runtime.interpret

# Every operation is rounded on its own, as all backends do: multiply-adds are not fused.
EXACT: dict[str, object] = {"enable_fp_fusion": False}

FLOATS = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@dataclass(frozen=True)
class Ahead:
    """One kernel as it is compiled ahead of time, with no GPU: argument types, constants and compiler options.

    ``signature`` has every argument that is not a constant, in Triton's words (``*fp32``, ``i64``); ``constexprs`` the
    others. ``options`` are launch options such as ``num_warps`` and ``enable_fp_fusion``.
    """

    name: str
    fn: Any
    signature: dict[str, str]
    constexprs: dict[str, object]
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """How the work of the multi-tensor kernels is cut. The tests run other cuts too; the result is the same bits."""

    step: int = 1024  # weights per program of the optimiser step; below 2^16
    chunk: int = 1024  # coordinates per program that selects or writes; below 2^16
    search: int = 512  # keys that a search looks at together
    sample: int = 4096  # coordinates that bracket a threshold
    digit: int = 8  # bits of a key that one pass of a search settles
    few: int = 64  # programs a selection for work that is rarely to be done
    columns: tuple[int, int] = (4, 128)  # tile of rows x columns for groups of short runs
    runs: tuple[int, int] = (2, 256)  # tile of groups x coordinates for groups of long runs
    depth: int = 32  # tiles that one program sums
    fold: int = 128  # groups per program that adds up partial sums


sizes = Sizes()

# Held while tables are looked up and made. Kernels are launched from any thread.
_TABLES = threading.Lock()
# By device, stream and key: a table is there for the stream that filled it.
_REMEMBERED: OrderedDict[tuple[torch.device, int, Hashable], Any] = OrderedDict()
_MOST_REMEMBERED = 64
# What a CUDA graph reads at every replay is kept for good.
_CAPTURED: dict[tuple[torch.device, Hashable], Any] = {}


def remembered(device: torch.device, key: Hashable, build: Callable[[], T]) -> T:
    """What ``build`` made for this key before on the current stream; the 64 used last are kept."""
    with _TABLES:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            captured: T = _captured(device, key)
            return captured
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        place = device, stream, key
        if place in _REMEMBERED:
            _REMEMBERED.move_to_end(place)
        else:
            _REMEMBERED[place] = build()
            if len(_REMEMBERED) > _MOST_REMEMBERED:
                _REMEMBERED.popitem(last=False)
        found: T = _REMEMBERED[place]
        return found


def _captured(device: torch.device, key: Hashable) -> Any:
    """What any stream made before: torch waits for the device before it captures, so it is there."""
    if (device, key) not in _CAPTURED:
        made = [value for (on, _, what), value in _REMEMBERED.items() if (on, what) == (device, key)]
        if not made:
            sentence = "call the operator once with these tensors before it is captured in a CUDA graph"
            raise RuntimeError(f"lps_kernels: the table of layers is not on the device yet; {sentence}")
        _CAPTURED[device, key] = made[0]
    return _CAPTURED[device, key]


def table_on(device: torch.device, values: Sequence[int]) -> Tensor:
    """The numbers in device memory, without waiting for the device."""
    table = torch.tensor(values, dtype=torch.int64)
    return table if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True)


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Launches inside go to the tensor's device."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()


def aligned(addresses: Iterable[int]) -> bool:
    """Whether 128-bit accesses are allowed at all of these addresses."""
    return all(address % 16 == 0 for address in addresses)


def parts_of(count: int, size: int) -> int:
    """Pieces of this size that cover ``count``."""
    return -(-count // size)


def registers(most: int) -> dict[str, object]:
    """The option that limits a thread to ``most`` registers; AMD's compiler has no such option."""
    return {} if torch.version.hip else {"maxnreg": most}
