"""What several test files share: walking the registry, copying calls, comparing results bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lps_kernels._checks import STATE_FLOATS
from lps_kernels._registry import REGISTRY, Args, BadInput, Op, Sample
from lps_kernels._selftest import LARGEST_TERM

# An integer of the same width: floats are compared as these, so that -0.0 differs from 0.0.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

OPS = list(REGISTRY.values())


def raw_cpu_dtypes(op: Op) -> tuple[torch.dtype, ...]:
    """Dtypes of the raw CPU kernels: for products, 16-bit floats are converted to fp32 before the call."""
    return STATE_FLOATS if op.sums == "products" else op.dtypes


def each_op_where(wanted: Callable[[Op], bool]) -> pytest.MarkDecorator:
    """Parametrize a test over the ops that satisfy the condition."""
    return pytest.mark.parametrize("op", [op for op in OPS if wanted(op)], ids=lambda op: op.name)


each_op = each_op_where(lambda op: True)


def each_op_and_dtype(wanted: Callable[[Op, torch.dtype], bool]) -> pytest.MarkDecorator:
    """Parametrize a test over ops and dtypes; the test loops over samples itself, which is faster."""
    pairs = [(op, dtype) for op in OPS for dtype in op.dtypes if wanted(op, dtype)]
    return pytest.mark.parametrize(
        ("op", "dtype"), [pytest.param(*pair, id=f"{pair[0].name}-{str(pair[1])[6:]}") for pair in pairs]
    )


def tensors_in(value: object) -> list[Tensor]:
    """Every tensor of an argument, a result, or a nest of them, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with every tensor replaced."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def copy_of(args: Args) -> Args:
    """Arguments with the same values, sizes and strides in memory of their own."""
    copied: Args = map_tensors(args, _copy)
    return copied


def _copy(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.clone()
    twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return twin.copy_(tensor)


def upcast(args: Args) -> Args:
    """Floats as fp64 (exactly), everything else as it is."""
    widened: Args = map_tensors(args, lambda tensor: tensor.double() if tensor.is_floating_point() else _copy(tensor))
    return widened


def names_of(op: Op) -> list[str]:
    """The op's arguments in the order of its schema."""
    return [argument.name for argument in op.overload._schema.arguments]


def counts_of(op: Op) -> list[int]:
    """Indices of the arguments that say how many groups to keep; empty for ops that select none."""
    return [index for index, name in enumerate(names_of(op)) if name.startswith("keep")]


def shortfalls(op: Op) -> list[BadInput]:
    """Calls whose counts the kernels refuse. Upper bounds, where there is ``emerging``, are refused before them."""
    return [
        bad
        for bad in op.bad_inputs()
        if "groups of layer" in bad.message and (bad.reads_values or "emerging" not in names_of(op))
    ]


each_selecting_op = each_op_where(lambda op: bool(shortfalls(op)))


def results_of(op: Op, function: Callable[..., Any], args: Args) -> list[Tensor]:
    """Call the op; returns every tensor that it returns or writes."""
    returned = function(*args)
    written = [args[names_of(op).index(name)] for name in op.mutates]
    return tensors_in(returned) + tensors_in(written)


class CorrectSqrt(TorchFunctionMode):
    """Square roots by numpy: torch's vectorised one is off by one ulp for one fp64 number in seventy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.sqrt:
            return torch.from_numpy(np.sqrt(args[0].numpy()))
        return func(*args, **(kwargs or {}))


def equal_bits(first: Tensor, second: Tensor) -> Tensor:
    """True at the elements with the same bits; any NaN equals any other. Dtypes and shapes agree."""
    width = BITS[first.element_size()]
    equal = first.contiguous().view(width) == second.contiguous().view(width)
    return equal | (first.isnan() & second.isnan()) if first.is_floating_point() else equal


def same_bits(first: Tensor, second: Tensor) -> bool:
    """The same dtype, shape and bits; any NaN equals any other."""
    alike = first.dtype == second.dtype and first.shape == second.shape
    return alike and bool(equal_bits(first, second).all())


def assert_same_bits(got: list[Tensor], want: list[Tensor], what: str) -> None:
    """Every tensor has the expected bits; a failure names the tensor and shows its first difference."""
    assert len(got) == len(want), f"{what}: {len(got)} results, wanted {len(want)}"
    for index, (first, second) in enumerate(zip(got, want, strict=True)):
        if not same_bits(first, second):
            raise AssertionError(f"{what}: result {index}: {_difference(first, second)}")


def assert_close(op: Op, dtype: torch.dtype, got: list[Tensor], want: list[Tensor], what: str) -> None:
    """Floats within the op's tolerance, counts and bits exactly."""
    computed = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    relative, absolute = op.tolerance.relative[dtype], LARGEST_TERM * op.tolerance.relative[computed]
    for index, (first, second) in enumerate(zip(got, want, strict=True)):
        if second.is_floating_point():
            torch.testing.assert_close(
                first.double(),
                second.double(),
                rtol=relative,
                atol=absolute,
                equal_nan=True,
                msg=partial("{}: result {}: {}".format, what, index),
            )
        else:
            assert_same_bits([first], [second], what)


def _difference(got: Tensor, want: Tensor) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {list(got.shape)}, wanted {want.dtype} {list(want.shape)}"
    wrong = (~equal_bits(got, want)).flatten().nonzero().flatten().tolist()
    first, second = got.flatten()[wrong[0]].item(), want.flatten()[wrong[0]].item()
    return f"{len(wrong)} of {got.numel()} differ, the first at {wrong[0]}: {first!r}, wanted {second!r}"


def weights_in(sample: Sample) -> int:
    """How many elements all tensors of the call have together."""
    return sum(tensor.numel() for tensor in tensors_in(sample.args))


def small_samples(op: Op, dtype: torch.dtype, limit: int, most: int) -> list[Sample]:
    """Up to ``limit`` samples, spread over the list, of calls with few but not zero elements."""
    samples = [sample for sample in op.samples(dtype) if 0 < weights_in(sample) <= most]
    assert samples, f"{op.name}: no sample of at most {most} elements"
    stride = -(-len(samples) // limit)
    return samples[::stride]


def finite(sample: Sample) -> bool:
    """No NaN or infinity among the inputs."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors_in(sample.args) if tensor.is_floating_point())


def each_sample(op: Op, dtype: torch.dtype) -> Iterator[tuple[str, Args]]:
    """Name and a private copy of the arguments of every sample."""
    for sample in op.samples(dtype):
        yield f"{op.name}, {sample.name}", copy_of(sample.args)
