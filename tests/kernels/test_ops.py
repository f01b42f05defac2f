"""Every op of the registry: values, refusals, version counters and fresh memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lps_kernels._registry import Args, Op
from tests.helpers import (
    OPS,
    CorrectSqrt,
    assert_close,
    assert_same_bits,
    copy_of,
    each_op,
    each_op_and_dtype,
    each_op_where,
    each_sample,
    names_of,
    results_of,
    small_samples,
    tensors_in,
    upcast,
)

ROUNDED = (torch.float32, torch.bfloat16, torch.float16)

mutating = each_op_where(lambda op: bool(op.mutates))
functional = each_op_where(lambda op: not op.mutates)


@each_op_and_dtype(lambda op, dtype: True)
def test_op_gives_the_bits_of_its_reference(op: Op, dtype: torch.dtype) -> None:
    for name, args in each_sample(op, dtype):
        with CorrectSqrt():
            want = results_of(op, op.reference, copy_of(args))
            got = results_of(op, op.overload, args)
        if op.sums:
            assert_close(op, dtype, got, want, name)
        else:
            assert_same_bits(got, want, name)


@each_op_and_dtype(lambda op, dtype: dtype in ROUNDED)
def test_op_is_within_its_tolerance_of_fp64_and_selects_the_same(op: Op, dtype: torch.dtype) -> None:
    # Upcasting is exact, so selections agree exactly. Those of admm_update_ follow a rounded v + dual: they may differ
    # only where two scores are closer than that rounding, which no sample has.
    for name, args in each_sample(op, dtype):
        want = results_of(op, op.reference, upcast(args))
        got = results_of(op, op.overload, args)
        assert_close(op, dtype, got, want, name)


@each_op
def test_bad_input_is_refused_with_its_sentence_and_nothing_is_written(op: Op) -> None:
    functions: list[Callable[..., Any]] = [op.reference, op.overload]
    for bad in op.bad_inputs():
        tensors = [tensor for tensor in tensors_in(bad.args) if tensor.device.type == "cpu"]
        before = [tensor.clone() for tensor in tensors]
        for function in functions:
            with pytest.raises(RuntimeError) as refusal:
                function(*bad.args)
            assert str(refusal.value) == bad.message, f"{op.name}, {bad.name}"
            assert_same_bits(tensors, before, f"{op.name}, {bad.name}")


@each_op
def test_opcheck(op: Op) -> None:
    dtype = op.dtypes[0]
    for sample in small_samples(op, dtype, limit=3, most=10_000):
        args = copy_of(sample.args)
        for name, value in zip(names_of(op), args, strict=True):
            if name in op.differentiable and value.is_floating_point():
                value.requires_grad_()
        torch.library.opcheck(op.overload, args)


@mutating
def test_version_counters_rise_for_exactly_the_mutated_arguments(op: Op) -> None:
    for sample in small_samples(op, op.dtypes[0], limit=3, most=10_000):
        args = copy_of(sample.args)
        before = [[tensor._version for tensor in tensors_in(value)] for value in args]
        op.overload(*args)
        for name, value, versions in zip(names_of(op), args, before, strict=True):
            for tensor, version in zip(tensors_in(value), versions, strict=True):
                rose = tensor._version > version
                assert rose == (name in op.mutates), f"{op.name}, {sample.name}: version of {name}"


@each_op
def test_arguments_that_are_only_read_keep_their_bits(op: Op) -> None:
    for name, args in each_sample(op, op.dtypes[0]):
        read = [value for key, value in zip(names_of(op), args, strict=True) if key not in op.mutates]
        before = copy_of(tuple(read))
        op.overload(*args)
        assert_same_bits(tensors_in(read), tensors_in(before), name)


def _mutated_arguments() -> list[Any]:
    return [pytest.param(op, name, id=f"{op.name}-{name}") for op in OPS for name in op.mutates]


@pytest.mark.parametrize(("op", "name"), _mutated_arguments())
def test_autograd_refuses_a_saved_tensor_that_the_op_has_overwritten(op: Op, name: str) -> None:
    args = copy_of(small_samples(op, op.dtypes[0], limit=1, most=10_000)[0].args)
    saved = tensors_in(args[names_of(op).index(name)])[0]
    leaf = torch.ones(saved.shape, requires_grad=True)
    loss = (leaf * saved).sum()
    op.overload(*args)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, leaf)


def _fresh_results(op: Op, args: Args) -> list[Tensor]:
    return tensors_in(op.overload(*args))


@functional
def test_results_have_memory_of_their_own(op: Op) -> None:
    for dtype in op.dtypes:
        for name, args in each_sample(op, dtype):
            results = [tensor for tensor in _fresh_results(op, args) if tensor.numel() > 0]
            storages = [tensor.untyped_storage().data_ptr() for tensor in tensors_in(args) + results]
            shared = set(storages[: -len(results)]) & set(storages[-len(results) :]) if results else set()
            assert not shared, f"{name}: a result is an argument's memory"
            assert len(set(storages[len(storages) - len(results) :])) == len(results), f"{name}: results share memory"
            assert all(tensor.is_contiguous() for tensor in results), f"{name}: result is not contiguous"


@functional
def test_every_element_of_a_fresh_result_is_written(op: Op) -> None:
    # In this mode torch fills new memory with NaN (integers with their largest value) instead of leaving it as found.
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    for dtype in op.dtypes:
        for name, args in each_sample(op, dtype):
            want = results_of(op, op.reference, copy_of(args))
            got = _fresh_results(op, args)
            if op.sums:
                assert_close(op, dtype, got, want, name)
            else:
                assert_same_bits(got, want, name)
