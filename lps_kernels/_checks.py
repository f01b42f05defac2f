"""Argument checks of the references and shape functions.

Every refusal reads ``lps::op: argument: expected this, got that``. The native library words its refusals the same
way, and the tests compare the two letter by letter. A training step checks hundreds of tensors, so what is checked for
each of them puts its sentence together only to refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
STATE_FLOATS = (torch.float32, torch.float64)


def refuse(op: str, argument: str, expected: str, got: object) -> NoReturn:
    """Raise the one sentence that says what is wrong with ``argument``."""
    raise RuntimeError(f"lps::{op}: {argument}: expected {expected}, got {got}")


def refuse_unless(condition: bool, op: str, argument: str, expected: str, got: object) -> None:
    """Raise the one sentence that says what is wrong with ``argument`` unless ``condition`` holds."""
    if not condition:
        refuse(op, argument, expected, got)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def check_dtype(op: str, argument: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    """The tensor's dtype is one of ``allowed``."""
    if tensor.dtype not in allowed:
        names = [dtype_name(dtype) for dtype in allowed]
        expected = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
        refuse(op, argument, f"dtype {expected}", dtype_name(tensor.dtype))


def alike(tensor: Tensor, model: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether :func:`check_like` would let the tensor pass."""
    same_dtype = tensor.dtype == (model.dtype if dtype is None else dtype)
    return same_dtype and tensor.device == model.device and tensor.shape == model.shape


def check_like(
    op: str, argument: str, tensor: Tensor, model_name: str, model: Tensor, dtype: torch.dtype | None = None
) -> None:
    """The tensor has the device and shape of ``model`` and the given dtype (by default that of ``model``)."""
    check_device(op, argument, tensor, model_name, model)
    if dtype is not None:
        check_dtype(op, argument, tensor, (dtype,))
    elif tensor.dtype != model.dtype:
        refuse(op, argument, f"dtype {dtype_name(model.dtype)} (that of {model_name})", dtype_name(tensor.dtype))
    check_shape(op, argument, tensor, list(model.shape), f"that of {model_name}")


def check_device(op: str, argument: str, tensor: Tensor, model_name: str, model: Tensor) -> None:
    """The tensor lives where ``model`` lives."""
    if tensor.device != model.device:
        refuse(op, argument, f"device {model.device} (that of {model_name})", tensor.device)


def check_shape(op: str, argument: str, tensor: Tensor, shape: Sequence[int], why: str) -> None:
    """The tensor has exactly this shape."""
    got = list(tensor.shape)
    if got != list(shape):
        refuse(op, argument, f"shape {list(shape)} ({why})", got)


def check_choice(op: str, argument: str, value: str, choices: Sequence[str]) -> None:
    """The string is one of ``choices``."""
    refuse_unless(value in choices, op, argument, f"one of {', '.join(choices)}", value)


def check_length(op: str, argument: str, values: Sequence[object], layers: int, what: str) -> None:
    """One entry per layer."""
    refuse_unless(len(values) == layers, op, argument, f"{layers} {what} (one a layer)", len(values))


def check_contiguous(op: str, argument: str, tensor: Tensor) -> None:
    """Mutated tensors are written in memory order."""
    if not tensor.is_contiguous():
        refuse(op, argument, "a contiguous tensor", f"strides {list(tensor.stride())}")


def check_no_overlap(op: str, written: Sequence[tuple[str, Tensor]], read: Sequence[tuple[str, Tensor]]) -> None:
    """No written tensor shares memory with any other argument."""
    arguments = [(name, tensor, True) for name, tensor in written] + [(name, tensor, False) for name, tensor in read]
    spans = [(*_span(tensor), name, writes) for name, tensor, writes in arguments if tensor.numel() > 0]
    spans.sort(key=lambda span: span[0])
    # Furthest byte reached so far, by any tensor and by written ones, and the tensor that reaches it.
    any_end, any_name, written_end, written_name = 0, "", 0, ""
    for begin, end, name, writes in spans:
        if writes and begin < any_end:
            refuse(op, name, f"memory apart from {any_name}", "overlapping memory")
        if begin < written_end:
            refuse(op, written_name, f"memory apart from {name}", "overlapping memory")
        if end > any_end:
            any_end, any_name = end, name
        if writes:
            written_end, written_name = end, name


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the tensor can touch."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()
