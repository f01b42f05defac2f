"""Cutting out tasks of networks whose code does more than call layers in sequence."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from torch import Tensor, nn

from lps_kernels.layers import MaxPool2d
from tests.cutouts import assert_same_answers, fabricate


class ByKind(nn.Module):
    """Cannot be traced, and depends on the classes of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512), nn.Linear(512, 512)])

    def forward(self, x: Tensor) -> Tensor:
        assert float(x.abs().max()) < 1e6
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.Linear):
                x = torch.relu(x)
        return x


class Encoder(nn.TransformerEncoderLayer):
    """Contains torch's encoder layer, whose code reads the weights of its submodules."""


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(256, 4, 512, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        assert float(x.abs().max()) < 1e6
        result: Tensor = self.encoder(x).mean(1)
        return result


@pytest.mark.parametrize("shape", [(512,), None], ids=["shape", "no shape"])
def test_code_that_breaks_with_other_layers_keeps_its_own(shape: tuple[int, ...] | None) -> None:
    net = fabricate(ByKind(), 512, density=0.1, input_shape=shape)
    cutout = net.extract(1)
    assert "kept as it is" in cutout.notes[-1]
    assert {layer.format for layer in cutout.layers} == {"dense"}
    assert_same_answers(net, cutout, torch.randn(8, 512), 1)


def test_what_derives_from_torchs_own_modules_is_left_alone() -> None:
    net = fabricate(Encoded(), 256, density=0.1, input_shape=(5, 256))
    assert_same_answers(net, net.extract(1), torch.randn(4, 5, 256), 1)


class InPlace(nn.Module):
    """Changes a tensor in place that it still reads under another name; takes integers, so no trial run is possible."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change
        self.embedding = nn.Embedding(50, 32)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.first(self.embedding(indices).mean(1))
        before = x
        x = self.change(x, self.second(F.relu(x)))
        result: Tensor = x - before * 0.5
        return result


def plus(x: Tensor, y: Tensor) -> Tensor:
    x += y
    return x


def times(x: Tensor, y: Tensor) -> Tensor:
    x *= y
    return x


@pytest.mark.parametrize("change", [plus, times, operator.iadd])
def test_a_tensor_that_is_changed_in_place_is_not_taken_for_a_new_one(change: Any) -> None:
    net = fabricate(InPlace(change), 32, density=0.3, input_shape=(7,))
    assert_same_answers(net, net.extract(1), torch.randint(0, 50, (6, 7)), 1)


def pooled(pool: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Conv2d(8, 6, 3), nn.Flatten())


def test_a_pool_with_a_hook_keeps_it() -> None:
    pool = nn.MaxPool2d(2)
    pool.register_forward_hook(lambda module, inputs, output: 2 * output + 1)
    net = fabricate(pooled(pool), 6 * 16, density=0.5, input_shape=(3, 14, 14))
    assert_same_answers(net, net.extract(2), torch.randn(4, 3, 14, 14), 2)


@pytest.mark.parametrize("pool", [nn.MaxPool2d((2,)), nn.MaxPool2d((3, 2), (1, 2)), nn.MaxPool2d(2, ceil_mode=True)])
def test_pools_of_any_size_pool_alike(pool: nn.MaxPool2d) -> None:
    backbone = pooled(pool)
    features = backbone(torch.zeros(1, 3, 15, 15)).shape[1]
    net = fabricate(backbone, features, density=0.5, input_shape=(3, 15, 15))
    cutout = net.extract(2)
    assert any(isinstance(module, MaxPool2d) for module in cutout.modules()) != pool.ceil_mode
    assert_same_answers(net, cutout, torch.randn(4, 3, 15, 15), 2)


class Named(nn.Module):
    """Calls functions with keyword arguments; some of its outputs are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.cat(tensors=[self.first(x), self.second(x)], dim=1))


def test_keyword_arguments_and_answers_that_are_not_numbers() -> None:
    net = fabricate(Named(), 16, pattern="filter", density=0.4, input_shape=(12,))
    x = torch.randn(5, 12)
    with torch.no_grad():
        torch.testing.assert_close(net.extract(1)(x), net(x, task=1), equal_nan=True, rtol=1e-5, atol=1e-5)
