"""Checks every operator, as this process runs it, against its reference on its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from lps_kernels._registry import REGISTRY, Op

# Terms that cancel leave an error relative to the terms, not to their sum; the samples' terms are below 16.
LARGEST_TERM = 16.0


@cache
def failure(name: str, device: str = "cpu", function: Callable[..., object] | None = None) -> str | None:
    """What the operator gets wrong on its samples, against its reference; None where it gets all of them right.

    The reference runs on the CPU, the operator where it is asked for: as it is dispatched there, or by ``function``.
    """
    op = REGISTRY[name]
    run = op.overload if function is None else function
    for dtype in op.dtypes:
        # Samples are the same at every draw, so two draws give arguments that may be mutated apart.
        for ours, theirs in zip(op.samples(dtype), op.samples(dtype), strict=True):
            args = ours.args if device == "cpu" else tuple(moved(argument, device) for argument in ours.args)
            actual = [args, run(*args)]
            expected = [theirs.args, op.reference(*theirs.args)]
            try:
                _compare(op, dtype, [t.cpu() for t in tensors_in(actual)], list(tensors_in(expected)))
            except AssertionError as error:
                return f"lps::{name} differs from its reference on sample '{ours.name}': {str(error).splitlines()[0]}"
    return None


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def moved(value: object, device: str) -> object:
    """An argument with its tensors on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    return [moved(item, device) for item in value] if isinstance(value, list) else value


def _compare(op: Op, dtype: torch.dtype, actual: list[Tensor], expected: list[Tensor]) -> None:
    if len(actual) != len(expected):
        raise AssertionError(f"expected {len(expected)} tensors, got {len(actual)}")
    for ours, theirs in zip(actual, expected, strict=True):
        relative = op.tolerance.relative[dtype] if theirs.is_floating_point() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=relative, atol=relative * LARGEST_TERM, equal_nan=True)
