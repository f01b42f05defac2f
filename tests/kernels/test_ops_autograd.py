"""Gradients of every differentiable op: by finite differences, and against autograd of the plain expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lps_kernels._registry import Args, Op, Sample
from tests.helpers import OPS, assert_same_bits, copy_of, finite, names_of, small_samples

DIFFERENTIABLE = [op for op in OPS if op.differentiable]
GRADCHECKED = {(op.name, name) for op in DIFFERENTIABLE for name in op.differentiable}
CONSTANTS = [("compose", "w_bar"), ("compose_owned", "w_bar")]


def plain_compose(w: Tensor, mask: Tensor, w_bar: Tensor) -> Tensor:
    """Eq. (4) as one would write it."""
    if mask.dtype == torch.uint8:
        bits = [(mask[index // 8] >> (index % 8)) & 1 for index in range(w.numel())]
        mask = torch.stack(bits).reshape(w.shape)
    return w + mask * w_bar


def plain_compose_owned(v: Tensor, w_bar: Tensor, owner: Tensor) -> Tensor:
    """The one-tensor form as the sum of its two roles."""
    owned = ((owner & 0x7F) > 0).to(v.dtype)
    return (1 - owned) * v + owned * v * w_bar


PLAIN: dict[str, Callable[..., Tensor]] = {"compose": plain_compose, "compose_owned": plain_compose_owned}


def with_gradients(op: Op, args: Args, wanted: tuple[str, ...]) -> tuple[Args, list[Tensor]]:
    """A copy whose wanted float arguments are leaves that require grad, and these leaves."""
    copied = copy_of(args)
    leaves = [
        v.requires_grad_() for n, v in zip(names_of(op), copied, strict=True) if n in wanted and v.is_floating_point()
    ]
    return copied, leaves


def differentiable_samples(op: Op, name: str) -> list[Sample]:
    """Small finite fp64 samples in which this argument is a float."""
    index = names_of(op).index(name)
    samples = [sample for sample in small_samples(op, torch.float64, limit=100, most=110) if finite(sample)]
    return [sample for sample in samples if sample.args[index].is_floating_point()]


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in DIFFERENTIABLE for name in op.differentiable])
def test_gradient_and_second_gradient_agree_with_finite_differences(op: Op, name: str) -> None:
    samples = differentiable_samples(op, name)
    assert len(samples) >= 5, f"{op.name}: too few samples to differentiate in {name}"
    index = names_of(op).index(name)
    for sample in samples:
        args, (leaf,) = with_gradients(op, sample.args, (name,))

        def call(x: Tensor, args: Args = args) -> Any:
            return op.overload(*args[:index], x, *args[index + 1 :])

        assert torch.autograd.gradcheck(call, (leaf,)), sample.name
        assert torch.autograd.gradgradcheck(call, (leaf,)), sample.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_all_gradients_have_the_bits_of_autograd_through_the_plain_expression(op: Op, dtype: torch.dtype) -> None:
    for sample in small_samples(op, dtype, limit=100, most=500):
        if not finite(sample):
            continue
        gradients = []
        for function in (op.overload, PLAIN[op.name]):
            args, leaves = with_gradients(op, sample.args, op.differentiable)
            result = function(*args)
            result.backward(torch.linspace(-1, 1, result.numel(), dtype=dtype).reshape(result.shape))
            gradients.append([torch.empty(0) if leaf.grad is None else leaf.grad + 0.0 for leaf in leaves])
        assert_same_bits(gradients[0], gradients[1], f"{op.name}, {sample.name}")


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_only_the_arguments_that_ask_for_it_get_a_gradient(op: Op) -> None:
    for wanted in op.differentiable:
        args, (leaf,) = with_gradients(op, differentiable_samples(op, wanted)[0].args, (wanted,))
        op.overload(*args).sum().backward()
        others = [value for value in args if value is not leaf]
        assert leaf.grad is not None
        assert all(value.grad is None for value in others)


@pytest.mark.parametrize(("name", "constant"), CONSTANTS)
def test_a_committed_weight_that_requires_grad_is_refused(name: str, constant: str) -> None:
    op = next(op for op in OPS if op.name == name)
    args, _ = with_gradients(op, small_samples(op, torch.float32, limit=1, most=110)[0].args, (constant,))
    with pytest.raises(RuntimeError) as refusal:
        op.overload(*args)
    assert str(refusal.value) == (
        f"lps::{name}: {constant}: expected a constant (committed weights do not learn; pass w_bar.detach()), "
        "got a tensor that requires grad"
    )


def test_gradient_of_a_16_bit_layer_is_16_bit() -> None:
    v = torch.ones(9, dtype=torch.bfloat16, requires_grad=True)
    owner = torch.arange(9, dtype=torch.uint8) % 2
    torch.ops.lps.compose_owned(v, torch.full((9,), 0.5, dtype=torch.bfloat16), owner).sum().backward()
    assert v.grad is not None
    assert v.grad.dtype == torch.bfloat16
    assert v.grad.tolist() == [1.0, 0.5] * 4 + [1.0]


def test_first_order_gradient_reaches_both_roles_of_a_small_network() -> None:
    torch.manual_seed(0)
    x, v = torch.randn(5, 4), torch.randn(3, 4, requires_grad=True)
    w_bar, owner = torch.randn(3, 4), torch.tensor([[0, 1, 0, 2]] * 3, dtype=torch.uint8)
    loss = torch.nn.functional.linear(x, torch.ops.lps.compose_owned(v, w_bar, owner)).square().sum()
    (got,) = torch.autograd.grad(loss, v)
    weight = torch.where(owner == 0, v, v * w_bar).detach().requires_grad_()
    (plain,) = torch.autograd.grad(torch.nn.functional.linear(x, weight).square().sum(), weight)
    assert_same_bits([got], [torch.where(owner == 0, plain, plain * w_bar)], "gradient of v")
