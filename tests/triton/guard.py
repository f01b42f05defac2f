"""Memory between guard pages, programs in any order: what the interpreter alone would not notice.

The interpreter reads and writes through raw pointers, so an access beside a tensor goes unnoticed. Here every tensor
of a call, allocated inside or handed in, touches a page that may not be accessed: with its last byte or with its first.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime import interpreter

PAGE = mmap.PAGESIZE
# What new memory holds: as an fp32 number -3e-13, as an owner owned and kept, as an index far outside.
GARBAGE = 0xAB

Order = Callable[[int], list[int]]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _failed(call: str) -> OSError:
    return OSError(ctypes.get_errno(), f"{call} failed")


def _room(size: int, at_end: bool) -> Any:
    """Bytes between two pages without access, touching the one behind or the one before them; full of garbage."""
    inner = -(-max(size, 1) // PAGE) * PAGE
    start = _libc.mmap(None, inner + 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0)  # private, anonymous
    if start in (None, ctypes.c_void_p(-1).value):
        raise _failed("mmap")
    for page in (start, start + PAGE + inner):
        if _libc.mprotect(page, PAGE, 0) != 0:
            raise _failed("mprotect")
    ctypes.memset(start + PAGE, GARBAGE, inner)
    buffer = (ctypes.c_ubyte * size).from_address(start + PAGE + (inner - size if at_end else 0))
    weakref.finalize(buffer, _libc.munmap, start, inner + 2 * PAGE)
    return buffer


def guarded(tensor: Tensor, at_end: bool) -> Tensor:
    """A copy with the same shape and strides between guard pages; it touches the one behind it, or the one before."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        return tensor
    memory = torch.from_numpy(np.asarray(_room(span * tensor.element_size(), at_end))).view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


class GuardedAllocation(TorchFunctionMode):
    """What is allocated inside stands between guard pages, full of garbage; so do copies that are made contiguous."""

    EMPTY = frozenset({torch.empty, torch.empty_like, Tensor.new_empty})

    def __init__(self, at_end: bool) -> None:
        super().__init__()
        self.at_end = at_end
        self.allocated = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in self.EMPTY and made.numel() > 0:
            self.allocated += 1
            made = guarded(made, self.at_end)
            made.view(-1).view(torch.uint8).fill_(GARBAGE)
        elif func in (torch.tensor, Tensor.contiguous) and made is not args[0]:
            made = guarded(made, self.at_end)
        return made


def forward(programs: int) -> list[int]:
    """As the interpreter has them."""
    return list(range(programs))


def reverse(programs: int) -> list[int]:
    """The last first."""
    return list(range(programs))[::-1]


def shuffled(seed: int) -> Order:
    """Any order, always the same for the same seed."""
    return lambda programs: random.Random(seed).sample(range(programs), programs)


@contextmanager
def ordered(order: Order) -> Iterator[None]:
    """Run the programs of every launch in this order."""
    builder = type(interpreter.interpreter_builder)
    plain_dim, plain_idx = builder.set_grid_dim, builder.set_grid_idx
    places: list[int] = []

    def set_grid_dim(self: Any, x: int, y: int, z: int) -> None:
        places[:] = order(x * y * z)
        plain_dim(self, x, y, z)

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        _, height, depth = self.grid_dim
        place = places[(x * height + y) * depth + z]
        plain_idx(self, place // depth // height, place // depth % height, place % depth)

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
    try:
        yield
    finally:
        builder.set_grid_dim, builder.set_grid_idx = plain_dim, plain_idx


def hold_to_promises() -> None:
    """Every address that a kernel calls a multiple of 16 bytes is one; the interpreter alone would take its word."""
    keep = interpreter.TensorHandle.set_attr

    def check(self: Any, key: str, value: Any) -> None:
        if key == "tt.divisibility":
            assert (self.data % value[0] == 0).all(), f"not a multiple of {value[0]}: {self.data}"
        keep(self, key, value)

    interpreter.TensorHandle.set_attr = check


def spare_repetition() -> None:
    """Three times faster, in a process that does nothing but interpret.

    The interpreter patches Triton's language at every launch and every call of a function, where once for each module
    is enough, and makes a table of types whenever it needs one of them.
    """
    patch, patched = interpreter._patch_lang, set()
    look_up, known = interpreter._get_np_dtype, {}

    class Kept:
        def restore(self) -> None:
            pass

    def patch_once(fn: Any) -> Kept:
        if fn.__module__ not in patched:
            patched.add(fn.__module__)
            patch(fn)
        return Kept()

    def remember(dtype: Any) -> Any:
        if type(dtype) is not tl.dtype:  # pointers and blocks have no name of their own
            return look_up(dtype)
        if dtype.name not in known:
            known[dtype.name] = look_up(dtype)
        return known[dtype.name]

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, remember
