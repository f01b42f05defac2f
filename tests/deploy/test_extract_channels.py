"""Which channels a cut-out removes, and which it must keep."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lps import Lifelong
from torch import Tensor, nn

from tests.cutouts import cut_every_way, fabricate, graph_of, preferring, prune, sizes


class Function(nn.Module):
    """Applies a function to the outputs of modules."""

    def __init__(self, function: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def whole(backbone: nn.Module, features: int, shape: tuple[int, ...] | None = None, classes: int = 5) -> Lifelong:
    """A network with one task that owns all weights; tests prune it by hand."""
    return fabricate(backbone, features, density=1, tasks=1, input_shape=shape, classes=classes)


def set_bias(net: Lifelong, name: str, value: float) -> None:
    with torch.no_grad():
        net.backbone.get_parameter(f"{name}.bias").fill_(value)


@pytest.mark.parametrize("shape", [None, (3, 9, 9)])
@pytest.mark.parametrize(
    ("bias", "padding", "inputs"),
    [
        (0.7, 0, 5),  # no padding: what the constants add is in the next bias
        (0.7, 1, 8),  # a border sees zeros instead of the constant
        (0.0, 1, 5),
        (-0.7, 1, 5),  # ReLU makes it 0
    ],
)
def test_constants_move_into_a_bias_unless_they_are_padded(
    bias: float, padding: int, inputs: int, shape: tuple[int, ...] | None
) -> None:
    second = nn.Conv2d(8, 6, 3, padding=padding)
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 10)
    )
    net = whole(backbone, 10, shape)
    set_bias(net, "0", bias)
    prune(net, "0", rows=[0, 3, 7])
    cutout = cut_every_way(net, 1, torch.randn(3, 3, 9, 9))
    assert sizes(cutout) == {"0": [inputs, 3], "2": [6, inputs], "6": [10, 24], "head": [5, 10]}


def test_constants_pass_through_norms_that_cannot_be_folded() -> None:
    # Before an activation that leaves no 0, and read twice, so that the norm stays and is cut to size.
    backbone = Function(
        lambda self, x: self.last(torch.sigmoid(self.norm(F.gelu(self.first(x)))).mean((2, 3))),
        first=nn.Conv2d(2, 7, 3),
        norm=nn.BatchNorm2d(7),
        last=nn.Linear(7, 4),
    )
    for shape in (None, (2, 6, 6)):
        net = whole(backbone, 4, shape)
        prune(net, "first", rows=[1, 2])
        cutout = cut_every_way(net, 1, torch.randn(3, 2, 6, 6))
        assert sizes(cutout) == {"first": [5, 2], "last": [4, 5], "head": [5, 4]}
        assert cutout.network.get_submodule("backbone.norm").num_features == 5


def test_a_folded_norm_with_a_scale_of_0_prunes_its_filter() -> None:
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    net = whole(backbone, 4)
    with torch.no_grad():
        net.backbone.get_parameter("1.weight")[2:4] = 0
    assert sizes(cut_every_way(net, 1, torch.randn(5, 6)))["0"] == [6, 6]


@pytest.mark.parametrize(
    ("pool", "kept"),
    [
        (nn.MaxPool2d(3, 2, padding=1), 6),
        (nn.AvgPool2d(3, 2), 6),
        (nn.AvgPool2d(3, 2, ceil_mode=True), 6),
        (nn.AvgPool2d(3, 2, padding=1), 8),  # averages zeros with the constant
        (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), 6),
        (nn.AvgPool2d(2, divisor_override=3), 8),
        (nn.AdaptiveMaxPool2d(3), 6),
        (Function(lambda self, x: F.max_pool2d(x, 3, 2, padding=1)), 6),
        (Function(lambda self, x: F.avg_pool2d(x, 3, 2, padding=1)), 8),
        (Function(lambda self, x: F.avg_pool2d(x, 3, 2, 0)), 6),
        (Function(lambda self, x: F.adaptive_avg_pool2d(x, 3)), 6),
    ],
)
def test_constants_pass_through_pools(pool: nn.Module, kept: int) -> None:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Conv2d(8, 4, 2), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    net = whole(body, 4, (3, 9, 9))
    prune(net, "0", rows=[4, 5])
    assert sizes(cut_every_way(net, 1, torch.randn(2, 3, 9, 9)))["0"] == [kept, 3]


@pytest.mark.parametrize("add", [operator.add, torch.add, operator.iadd, lambda x, y: x.add(y), lambda x, y: x.add_(y)])
@pytest.mark.parametrize("shape", [None, (4, 6, 6)])
def test_a_sum_keeps_what_lives_in_any_part(add: Any, shape: tuple[int, ...] | None) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(add(self.second(x), self.shortcut(x)))
        return torch.flatten(self.third(x), 1)

    backbone = Function(
        forward,
        first=nn.Conv2d(4, 6, 3),
        second=nn.Conv2d(6, 8, 3, padding=1),
        shortcut=nn.Conv2d(6, 8, 1, bias=False),
        third=nn.Conv2d(8, 3, 4),
    )
    net = whole(backbone, 3, shape)
    prune(net, "second", rows=[0, 1, 2])
    prune(net, "shortcut", rows=[2, 3, 4])
    cutout = cut_every_way(net, 1, torch.randn(3, 4, 6, 6))  # channel 2 is dead in both
    assert sizes(cutout) == {"first": [6, 4], "second": [7, 6], "shortcut": [7, 6], "third": [3, 7], "head": [5, 3]}


def test_a_residual_goes_into_the_convolution() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)  # must run after the second, to add its result
        return torch.flatten(F.relu(y + F.relu(self.second(x))), 1)

    backbone = Function(forward, first=nn.Conv1d(3, 5, 3, padding=1), second=nn.Conv1d(3, 5, 3, padding=1))
    net = whole(backbone, 30, (3, 6))
    cut_every_way(net, 1, torch.randn(2, 3, 6))
    with preferring("structured"):
        calls = [node.op for node in graph_of(net.extract(1)).nodes]
    assert calls == ["placeholder", "call_module", "call_module", "call_function", "call_module", "output"]  # flatten


def test_a_broadcast_is_no_residual() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.flatten(F.relu(self.first(x) + self.second(x).mean(2, keepdim=True)), 1)

    backbone = Function(forward, first=nn.Conv1d(3, 5, 3, padding=1), second=nn.Conv1d(3, 5, 3))
    net = whole(backbone, 30, (3, 6))
    prune(net, "first", rows=[0, 1])
    prune(net, "second", rows=[1, 2])
    assert sizes(cut_every_way(net, 1, torch.randn(2, 3, 6)))["first"] == [4, 3]


def test_a_concatenation_keeps_the_order_of_its_parts() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = torch.cat([self.left(x), x, self.right(x)], dim=1)
        return torch.flatten(self.last(F.relu(x)), 1)

    backbone = Function(
        forward,
        stem=nn.Conv1d(2, 4, 3),
        left=nn.Conv1d(4, 5, 1),
        right=nn.Conv1d(4, 6, 1),
        last=nn.Conv1d(15, 3, 4, stride=4),
    )
    net = whole(backbone, 3, (2, 7))
    prune(net, "left", rows=[0, 4])
    prune(net, "stem", rows=[2])
    prune(net, "last", columns=[9, 10])  # two of the right
    prune(net, "last", columns=[5])  # the stem's first, which others read
    cutout = cut_every_way(net, 1, torch.randn(4, 2, 7))
    assert sizes(cutout) == {"stem": [3, 2], "left": [3, 3], "right": [4, 3], "last": [3, 10], "head": [5, 3]}


FLATTENS: list[Callable[[Any, Tensor], Tensor]] = [
    lambda self, x: x.flatten(1),
    lambda self, x: torch.flatten(x, start_dim=1),
    lambda self, x: x.view(x.size(0), -1),
    lambda self, x: x.reshape(x.shape[0], -1),
    lambda self, x: torch.reshape(x, (x.size()[0], -1)),
    lambda self, x: x.view(-1, 72),
    lambda self, x: x.permute(0, 2, 3, 1).flatten(1),
]


@pytest.mark.parametrize("shape", [None, (2, 5, 5)])
@pytest.mark.parametrize("number", range(len(FLATTENS)))
def test_a_flattening_spreads_channels(number: int, shape: tuple[int, ...] | None) -> None:
    body = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), Function(FLATTENS[number]), nn.Dropout(), nn.Linear(72, 6))
    net = whole(body, 6, shape)
    prune(net, "0", rows=[0, 6])
    prune(net, "4", columns=range(9, 18))  # all of channel 1
    prune(net, "4", columns=range(18, 26))  # a part of channel 2, which stays
    cutout = cut_every_way(net, 1, torch.randn(3, 2, 5, 5))
    unknown = number == 6 or (number == 5 and shape is None)
    assert sizes(cutout)["0"] == [8 if unknown else 5, 2]
    assert sizes(cutout)["4"] == [6, 72 if unknown else 45]


def test_channels_go_where_another_reader_needs_them() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.second(y) + self.third(y)  # type: ignore[no-any-return]

    backbone = Function(forward, first=nn.Linear(6, 10), second=nn.Linear(10, 4), third=nn.Linear(10, 4))
    net = whole(backbone, 4)
    prune(net, "second", columns=range(8))
    prune(net, "third", columns=range(5, 10))
    cutout = cut_every_way(net, 1, torch.randn(5, 6))  # channels 5 to 7 have no reader
    assert sizes(cutout) == {"first": [7, 6], "second": [4, 7], "third": [4, 7], "head": [5, 4]}
    assert {layer.name: layer.format for layer in cutout.layers}["second"] == "gather"


def test_linears_on_tokens_shrink_along_the_last_dimension() -> None:
    backbone = Function(
        lambda self, x: self.second(F.gelu(self.first(x))).sum(1), first=nn.Linear(6, 10), second=nn.Linear(10, 4)
    )
    for shape in (None, (10, 6)):  # as many tokens as features, so that confusing them would go unnoticed by shapes
        net = whole(backbone, 4, shape)
        prune(net, "first", rows=[3, 4])
        assert sizes(cut_every_way(net, 1, torch.randn(3, 10, 6))) == {
            "first": [8, 6],
            "second": [4, 8],
            "head": [5, 4],
        }


@pytest.mark.parametrize("shape", [None, (8, 6)])
def test_channels_are_not_taken_for_tokens(shape: tuple[int, ...] | None) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))  # features last, but the norm works on the 8 tokens
        x = F.relu(self.conv(x))  # tokens are its channels
        return self.last(x).flatten(1)  # type: ignore[no-any-return]

    conv, last = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 2)
    backbone = Function(forward, first=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), conv=conv, last=last)
    net = whole(backbone, 16, shape)
    for name in ("first", "conv"):
        prune(net, name, rows=[1, 2, 5])
    prune(net, "last", columns=[0])
    cutout = cut_every_way(net, 1, torch.randn(3, 8, 6))
    assert sizes(cutout) == {"first": [8, 6], "conv": [8, 8], "last": [2, 8], "head": [5, 16]}
    assert "last keeps its shape: it does not read the channels of the layer before it" in cutout.notes


def test_a_relu_is_not_taken_into_a_layer_that_others_read() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.only(x)
        return F.relu(y) + torch.sigmoid(y)

    cut_every_way(whole(Function(forward, only=nn.Linear(6, 4)), 4, (6,)), 1, torch.randn(5, 6))


def test_a_network_that_is_all_constant_still_answers() -> None:
    net = whole(nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU()), 6, (2, 6))
    prune(net, "0", rows=range(4))
    prune(net, "3", rows=range(6))
    cutout = cut_every_way(net, 1, torch.randn(3, 2, 6))
    assert sizes(cutout) == {"0": [1, 2], "3": [1, 4], "head": [5, 1]}


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 3])
def test_taps_that_are_zero_in_every_filter_are_left_out(stride: int, dilation: int) -> None:
    conv = nn.Conv2d(4, 6, 3, stride=stride, padding=2, dilation=dilation)
    net = whole(nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 6, (4, 9, 9))
    partition, _ = next(net.prunable())
    partition.w_bar[:, :, 0] = 0
    partition.w_bar[:, 2, :, 1] = 0
    cut_every_way(net, 1, torch.randn(2, 4, 9, 9))
