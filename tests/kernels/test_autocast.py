"""Every operator and every layer under ``torch.autocast``, alone and amid layers of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lps_kernels import compose, layers
from lps_kernels._autocast import DEVICES, autocast_key
from lps_kernels._registry import Op
from tests.cutouts import fabricate
from tests.helpers import assert_same_bits, copy_of, each_op, each_op_where, each_sample, results_of
from tests.kernels.test_layers import SPARSE, STRUCTURED
from tests.toy import toy_convnet, toy_mlp

BF16 = torch.bfloat16


def test_every_registered_operator_has_a_rule() -> None:
    """However it was registered; what begins with an underscore takes no tensors."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("lps::")]
    missing = [
        f"{name}: {autocast_key(device)}"
        for name in names
        for device in DEVICES
        if not name.startswith("lps::_")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, autocast_key(device))
    ]
    assert len(names) > 10
    assert not missing


@each_op
def test_a_call_gives_what_it_gives_without(op: Op) -> None:
    """To the bit; a product in the type of the region."""
    for name, args in each_sample(op, op.dtypes[0]):
        want = results_of(op, op.overload, copy_of(args))
        if op.sums == "products" and want[0].dtype != torch.float64:
            want = [tensor.to(BF16) for tensor in want]
        with torch.autocast("cpu", BF16):
            got = results_of(op, op.overload, args)
        assert_same_bits(got, want, name)


@each_op_where(lambda op: op.sums == "products")
def test_activations_in_bf16_meet_weights_in_fp32(op: Op) -> None:
    for name, (x, *others) in each_sample(op, torch.float32):
        want = op.overload(x.to(BF16).float(), *others).to(BF16)
        with torch.autocast("cpu", BF16):
            got = op.overload(x.to(BF16), *others)
        assert_same_bits([got], [want], name)


def test_gradients_pass_a_cast() -> None:
    w_bar, mask = torch.randn(4, 3), torch.rand(4, 3)
    w = torch.randn(4, 3, dtype=BF16, requires_grad=True)
    with torch.autocast("cpu", BF16):
        composed = compose(w, mask, w_bar)
    composed.sum().backward()  # type: ignore[no-untyped-call]
    assert composed.dtype == torch.float32
    assert w.grad is not None
    assert torch.equal(w.grad, torch.ones(4, 3, dtype=BF16))


def each_layer() -> Iterator[tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    for make, shape in (*SPARSE.values(), *STRUCTURED.values()):
        yield make(), torch.randn(shape)
    sizes: dict[str, Any] = {"kernel_size": [2, 2], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    conv = layers.StructuredConv(torch.randn(7, 20), torch.zeros(7), in_channels=5, out_channels=7, **sizes)
    yield conv, torch.randn(2, 5, 4, 4)
    yield layers.MaxPool2d((2, 2), (2, 2)), torch.randn(2, 3, 4, 4)


def test_every_layer_answers_in_the_type_that_torchs_own_would_have() -> None:
    tried = set()
    for layer, x in each_layer():
        tried.add(type(layer).__name__)
        want = layer(x.to(BF16).float())
        with torch.autocast("cpu", BF16):
            answers = layer(x.to(BF16)), layer(x)
        assert torch.equal(answers[0], want.to(BF16))
        assert answers[1].dtype == (torch.float32 if isinstance(layer, layers.MaxPool2d) else BF16)
    kinds = [kind for name, kind in vars(layers).items() if name[0] != "_" and isinstance(kind, type)]
    ours = {kind.__name__ for kind in kinds if issubclass(kind, nn.Module) and kind.__module__ == layers.__name__}
    assert tried == ours


@pytest.mark.parametrize("density", [0.1, 0.5])
@pytest.mark.parametrize("pattern", ["irregular", "column", "filter", "channel"])
@pytest.mark.parametrize(("make", "shape"), [(toy_convnet, (3, 8, 8)), (toy_mlp, (12,))], ids=["convnet", "mlp"])
def test_a_cut_out_task_answers_as_the_network_does(
    make: type, shape: tuple[int, ...], pattern: str, density: float
) -> None:
    net = fabricate(make(), 16, pattern=pattern, density=density, input_shape=shape)
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))
    for portable in (False, True):
        cutout = net.extract(2, portable=portable)
        with torch.no_grad(), torch.autocast("cpu", BF16):
            want, got = net(x, task=2), cutout(x)
        assert got.dtype == want.dtype == BF16
        # Three layers, each of which rounds to 8 bits.
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * float(want.abs().max()))


def test_tasks_per_example_and_compiled_cut_outs() -> None:
    net = fabricate(toy_mlp(), 16, density=0.3, input_shape=(12,))
    x, cutout = torch.randn(6, 12), net.extract(2)
    compiled = torch.compile(cutout, fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        served, alone, want, got = net(x, task=[1, 2] * 3), net(x, task=2), cutout(x), compiled(x)
    torch.testing.assert_close(served[1::2], alone[1::2], rtol=0.05, atol=0.02 * float(alone.abs().max()))
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.01 * float(want.abs().max()))
