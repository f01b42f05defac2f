"""Layers with packed weights: what cannot be used as indices is refused when a layer is made or loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lps_kernels._registry import REGISTRY
from lps_kernels.layers import SparseConv, SparseLinear, StructuredConv, StructuredLinear
from lps_kernels.packing import pack_conv, pack_linear, pack_sparse

INDICES = torch.tensor([0, 3])
PLACES: dict[str, Any] = {"stride": [1], "padding": [0], "dilation": [1]}


def sparse_linear() -> SparseLinear:
    return SparseLinear(torch.ones(7, 5), torch.zeros(7))


def sparse_conv() -> SparseConv:
    return SparseConv(torch.ones(7, 5, 1), torch.zeros(7), **PLACES)


def structured_linear(columns: Tensor = INDICES, rows: Tensor = INDICES) -> StructuredLinear:
    return StructuredLinear(torch.ones(2, 2), torch.zeros(7), in_features=5, out_features=7, columns=columns, rows=rows)


def structured_conv(columns: Tensor = INDICES, rows: Tensor = INDICES) -> StructuredConv:
    sizes: dict[str, Any] = {"in_channels": 5, "out_channels": 7}
    return StructuredConv(
        torch.ones(2, 2), torch.zeros(7), kernel_size=[1], columns=columns, rows=rows, **sizes, **PLACES
    )


Layers = dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]]
SPARSE: Layers = {"sparse_linear": (sparse_linear, (3, 5)), "sparse_conv": (sparse_conv, (3, 5, 6))}
STRUCTURED: Layers = {
    "structured_linear": (structured_linear, (3, 5)),
    "structured_conv1d": (structured_conv, (3, 5, 6)),
}


def first_set_to(value: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.clone().index_fill_(0, torch.tensor(0), value)


CHANGES: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "target beyond": ("targets", first_set_to(255), "targets: expected each of 0 to 6 once in a block, got 255"),
    "target twice": ("targets", first_set_to(6), "targets: expected each of 0 to 6 once in a block, got 6"),
    "targets of another dtype": ("targets", lambda t: t.long() + 256, "targets: expected dtype uint8, got int64"),
    "bits": ("bits", lambda bits: bits | 255, "bits: expected none behind those of 5 inputs, got one in row 0"),
    "fewer bits": ("bits", lambda bits: bits[1:], "bits: expected shape [7, 16]"),
    "fewer values": ("values", lambda values: values[:16], "bits: expected at most 0 in block 0"),
    "offset": ("offsets", lambda offsets: offsets + 2**40, "offsets: expected offsets from 0 to 35"),
    "not floats": ("values", lambda values: values.long(), "values: expected dtype float32"),
    "bias": ("bias", lambda bias: bias[1:], "bias: expected shape [7] (one for each output), got [6]"),
}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", SPARSE)
def test_a_state_that_does_not_fit_is_refused_and_nothing_of_it_is_loaded(kind: str, change: str, assign: bool) -> None:
    make, shape = SPARSE[kind]
    name, altered, sentence = CHANGES[change]
    layer, x = make(), torch.randn(shape)
    want, state = layer(x), layer.state_dict()
    state |= {"values": state["values"] * 2, name: altered(state[name])}
    model = nn.Sequential(layer)
    with pytest.raises(RuntimeError) as raised:
        model.load_state_dict({f"0.{key}": value for key, value in state.items()}, assign=assign)
    assert f"0: lps::{kind}: {sentence}" in str(raised.value)
    assert torch.equal(layer(x), want)


@pytest.mark.parametrize("kind", STRUCTURED)
@pytest.mark.parametrize("name", ["columns", "rows"])
@pytest.mark.parametrize("values", [[0, 99], [3, 0], [-1, 3], [2, 2]])
def test_indices_that_do_not_fit_are_refused_when_a_layer_is_made_or_loaded(
    kind: str, name: str, values: list[int]
) -> None:
    make, _ = STRUCTURED[kind]
    indices = torch.tensor(values, dtype=torch.int32)
    sentence = f"lps::{kind}: {name}: expected ascending indices below"
    with pytest.raises(RuntimeError, match=sentence):
        make(**{name: indices})
    layer = make()
    with pytest.raises(RuntimeError, match=sentence):
        layer.load_state_dict(layer.state_dict() | {name: indices})
    assert torch.equal(getattr(layer, name), INDICES.int())


@pytest.mark.parametrize("kind", STRUCTURED | SPARSE)
def test_a_state_that_fits_is_loaded(kind: str) -> None:
    make, shape = (STRUCTURED | SPARSE)[kind]
    first, second, x = make(), make(), torch.randn(shape)
    state = {name: tensor * 2 if tensor.is_floating_point() else tensor for name, tensor in first.state_dict().items()}
    second.load_state_dict({name: tensor.double() if name == "bias" else tensor for name, tensor in state.items()})
    assert torch.equal(second(x), 2 * first(x))
    meta = make().to("meta")
    meta.load_state_dict(state, assign=True)
    assert torch.equal(meta(x), 2 * first(x))


def test_what_is_no_tensor_is_refused() -> None:
    layer = sparse_linear()
    with pytest.raises(RuntimeError, match="SparseLinear: bits: expected a tensor, got str"):
        layer.load_state_dict(layer.state_dict() | {"bits": "none"})


@pytest.mark.parametrize("pack", [pack_linear, pack_conv, pack_sparse])
@pytest.mark.parametrize(
    ("weight", "got"), [(torch.ones(2, 3, 4), "float32 in 3"), (torch.ones(2, 3).int(), "int32 in 2")]
)
def test_only_matrices_of_floats_are_packed(pack: Callable[[Tensor], object], weight: Tensor, got: str) -> None:
    with pytest.raises(RuntimeError, match=f"{pack.__name__}: weight: expected floats in 2 dimensions, got {got}"):
        pack(weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("examples", [1, 4, 5])
def test_a_zero_that_is_stored_is_multiplied(dtype: torch.dtype, examples: int) -> None:
    values, *marks = pack_sparse(torch.ones(7, 5, dtype=dtype))
    x = torch.ones(examples, 5, dtype=dtype)
    x[0, 3] = torch.inf
    args = (x, torch.zeros_like(values), *marks, None, 7, False)
    want = torch.where(torch.arange(examples)[:, None] == 0, torch.nan, torch.zeros(examples, 7)).to(dtype)
    for function in (REGISTRY["sparse_linear"].reference, REGISTRY["sparse_linear"].overload):
        torch.testing.assert_close(function(*args), want, equal_nan=True)
