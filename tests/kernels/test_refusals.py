"""Refusals beyond the registry's: whatever the input, the op says what its reference says, and as one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lps_kernels._registry import REGISTRY, Args

HUGE = 1 << 32  # its square is 0 in 64 bits


def refusal(function: Any, args: Args) -> str:
    with pytest.raises(RuntimeError) as raised:
        function(*args)
    return str(raised.value)


def assert_same_refusal(name: str, args: Args) -> None:
    op = REGISTRY[name]
    sentence = refusal(op.reference, args)
    assert sentence.startswith(f"lps::{name}: ")
    assert "\n" not in sentence
    assert refusal(op.overload, args) == sentence


def adam(**changes: object) -> Args:
    """A valid step of one layer, but for the changes."""
    names = ("effective", "grad", "v", "w_bar", "centre", "owner", "exp_avg", "exp_avg_sq")
    state: dict[str, object] = {name: [torch.ones(3)] for name in names}
    state["owner"] = [torch.zeros(3, dtype=torch.uint8)]
    scalars = {"moves": "all", "pull": "gradient", "step": 1, "lr": 1e-3, "mask_lr": 1e-3, "beta1": 0.9, "beta2": 0.999}
    scalars |= {"eps": 1e-8, "rho": 0.5, "tau": 0.5}
    return tuple((state | scalars | changes).values())


@pytest.mark.parametrize("value", [1.5, -1e-9, float("nan"), float("inf"), -0.1, 1e22, 1 + 2**-52, -123456.789])
def test_numbers_are_written_alike(value: float) -> None:
    assert_same_refusal("proximal_adam_", adam(beta1=value))
    if not value >= 0:
        assert_same_refusal("proximal_adam_", adam(rho=value))


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int16, torch.bool, torch.uint8, torch.uint16, torch.complex64, torch.float8_e4m3fn],
    ids=str,
)
def test_dtypes_are_named_alike(dtype: torch.dtype) -> None:
    assert_same_refusal("compose", (torch.zeros(3).to(dtype), torch.ones(3), torch.ones(3)))


@pytest.mark.parametrize("size", [0, 4])
def test_a_view_whose_size_overflows_is_refused(size: int) -> None:
    assert_same_refusal("project", ([torch.ones(size)], [], [0], [HUGE, HUGE, 1], "l2", "all", "values"))


def test_a_shape_whose_size_overflows_is_refused() -> None:
    assert_same_refusal("unpack_bits", (torch.zeros(0, dtype=torch.uint8), [HUGE, HUGE]))


# One number in memory, many in a loop: nothing may read these, or copy them to make them contiguous.
ENDLESS = torch.zeros(1, dtype=torch.int32).expand(2**60)


@pytest.mark.parametrize("argument", ["columns", "rows"])
def test_more_indices_than_there_can_be_are_refused(argument: str) -> None:
    indices = {"columns": (ENDLESS, None), "rows": (None, ENDLESS)}[argument]
    assert_same_refusal("structured_linear", (torch.zeros(2, 5), torch.zeros(1, 5, 16), *indices, None, 7, False))
    conv = ([1], [1], [0], [1], 1, False)
    assert_same_refusal("structured_conv1d", (torch.zeros(2, 5, 6), torch.zeros(35), *indices, None, None, 7, *conv))


@pytest.mark.parametrize("shape", [(2**31, 2**31), (0, 2**61), (2**61, 0)])
def test_an_input_whose_sizes_overflow_is_refused(shape: tuple[int, int]) -> None:
    x = torch.zeros(1, 1).expand(shape) if 0 not in shape else torch.empty(shape)
    assert_same_refusal("structured_linear", (x, torch.zeros(1, 5, 16), None, None, None, 7, False))
    assert_same_refusal("masked_linear", (x, torch.zeros(7, 5), torch.zeros(7, 5), torch.zeros(5), 1, None, False))
    packed = (torch.zeros(16), torch.zeros(0, 16), torch.zeros(0), torch.zeros(0))
    assert_same_refusal("sparse_linear", (x, *packed, None, 7, False))
    conv = ([1], [1], [0], [1], 1, False)
    assert_same_refusal("structured_conv1d", (x[:, None], torch.zeros(7), None, None, None, None, 7, *conv))
    assert_same_refusal("sparse_conv", (x[:, None], *packed, None, None, 7, *conv))


@pytest.mark.parametrize("argument", range(3))
def test_a_tensor_on_another_device_is_refused(argument: int) -> None:
    tensors = [torch.ones(3), torch.ones(3), torch.ones(3)]
    tensors[argument] = tensors[argument].to("meta")
    sentence = refusal(REGISTRY["compose"].reference, tuple(tensors))
    assert "expected device" in sentence
    assert refusal(REGISTRY["compose"].overload, tuple(tensors)) == sentence


def test_of_two_counts_that_do_not_fit_the_same_one_is_named() -> None:
    owner = [torch.zeros(3, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)]
    v, centre = [torch.ones(3), torch.ones(3)], [torch.ones(3), torch.ones(3)]
    views = [1, 3, 1, 1, 3, 1]
    assert_same_refusal("admm_update_", (v, centre, owner, [1, 7], [5, 0], views, views, False, True))
    assert_same_refusal("admm_update_", (v, centre, owner, [9, 7], [5, 9], views, views, False, True))


def test_calls_without_layers_do_nothing() -> None:
    assert REGISTRY["project"].overload([], [], [], [], "l2", "all", "values") == ([], [])
    assert REGISTRY["group_scores"].overload([], [], [], "l2", "all") == []
    REGISTRY["admm_update_"].overload([], [], [], [], [], [], [], False, True)
    REGISTRY["proximal_adam_"].overload(*[[]] * 8, *adam(rho=0.0, tau=0.0)[8:])
    numbers = (False, "all", 1, 1e-3, 1e-2, 0.9, 0.999, 1e-8, 0.0)
    REGISTRY["straight_through_adam_"].overload(*[[]] * 7, torch.empty(0, 2, 2), *[[]] * 4, *numbers, [], [])
