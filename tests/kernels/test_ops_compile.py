"""Every op inside ``torch.compile(fullgraph=True)`` with inductor gives what it gives without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lps_kernels
from lps_kernels._registry import Op
from tests.helpers import (
    assert_same_bits,
    copy_of,
    each_op,
    map_tensors,
    names_of,
    results_of,
    small_samples,
    tensors_in,
)


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> None:
    torch.compiler.reset()


@each_op
def test_compiled_call_gives_the_bits_of_the_eager_call(op: Op) -> None:
    # The last small sample is the least regular one: not contiguous, NaN and Inf, or several layers.
    sample = small_samples(op, op.dtypes[0], limit=100, most=10_000)[-1]

    def call(*args: Any) -> Any:
        return op.overload(*args)

    want = results_of(op, call, copy_of(sample.args))
    got = results_of(op, torch.compile(call, fullgraph=True), copy_of(sample.args))
    assert_same_bits(got, want, f"{op.name}, {sample.name}")


@each_op
def test_compiled_call_amid_generated_code_gives_the_bits_of_the_eager_call(op: Op) -> None:
    # Arguments made and results used inside the graph: a mutation that the compiler overlooked would show.
    sample = small_samples(op, op.dtypes[0], limit=100, most=10_000)[0]
    written = [names_of(op).index(name) for name in op.mutates]

    def call(*args: Any) -> Any:
        made = map_tensors(args, lambda tensor: tensor.flip(0).flip(0))
        returned = op.overload(*made)
        results = [made[index] for index in written] if written else returned
        return map_tensors(results, lambda tensor: ~tensor if tensor.dtype == torch.bool else tensor + tensor)

    args = copy_of(sample.args)
    want = call(*args)
    got = torch.compile(call, fullgraph=True)(*args)
    assert_same_bits(tensors_in(got), tensors_in(want), f"{op.name}, {sample.name}")
    assert_same_bits(tensors_in(args), tensors_in(sample.args), f"{op.name}, {sample.name}: arguments of the graph")


def test_compiled_loss_gives_the_gradient_of_the_eager_one() -> None:
    torch.manual_seed(0)
    x, start, w_bar = torch.randn(4, 9), torch.randn(6, 9), torch.randn(6, 9)
    owner = torch.randint(0, 3, (6, 9), dtype=torch.uint8)

    def loss(v: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, lps_kernels.compose_owned(v, w_bar, owner)).square().sum()

    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        v = start.clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(v), v))
    # Inductor may contract or reorder the arithmetic around the op.
    torch.testing.assert_close(gradients[1], gradients[0])


def test_one_compiled_graph_serves_layers_of_any_size() -> None:
    compiled = torch.compile(lps_kernels.compose, fullgraph=True, dynamic=True)
    for size in (5, 33, 70):
        w, mask, w_bar = torch.randn(3, size).unbind()
        assert_same_bits([compiled(w, mask, w_bar)], [lps_kernels.compose(w, mask, w_bar)], f"size {size}")
