"""What keeps its shape in a cut-out: unknown operations, shared layers, code that cannot be traced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.cutouts import assert_same_answers, cut_every_way, fabricate, prune, sizes
from tests.deploy.test_extract_channels import Function, whole
from tests.test_lifelong import Attention


def test_what_is_not_known_reads_every_channel(caplog: pytest.LogCaptureFixture) -> None:
    net = whole(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4)), 4)
    prune(net, "0", rows=[0, 1])
    prune(net, "2", rows=[0, 1])
    with caplog.at_level(logging.INFO, "lps.extract"):
        cutout = net.extract(1)
    assert sizes(cutout) == {"0": [8, 6], "2": [5, 8], "4": [4, 5], "head": [5, 4]}
    note = "1 keeps its shape: LayerNorm is not known to work channel by channel"
    assert [record.message for record in caplog.records if record.message == note] == cutout.notes
    cut_every_way(net, 1, torch.randn(3, 6))


def test_attention_stays_as_it_is() -> None:
    net = fabricate(Attention(), 12, density=0.4, input_shape=(12,))
    for task in (1, 2):
        cutout = cut_every_way(net, task, torch.randn(5, 12))
    assert sizes(cutout)["first"] == [12, 12]
    assert any(note.startswith("first keeps its shape: it shares its weights") for note in cutout.notes)


def test_an_encoder_layer_stays_as_it_is() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    backbone = Function(
        lambda self, x: self.last(self.encoder(self.first(x)).mean(1)),
        first=nn.Linear(6, 8),
        encoder=encoder,
        last=nn.Linear(8, 4),
    )
    net = fabricate(backbone, 4, density=0.5, input_shape=(3, 6))
    cut_every_way(net, 2, torch.randn(5, 3, 6))


@pytest.mark.parametrize("shape", [None, (6,)])
def test_a_layer_that_is_called_twice_keeps_its_shape(shape: tuple[int, ...] | None) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = self.norm(self.shared(F.relu(self.shared(x))))
        return self.last(F.relu(x))  # type: ignore[no-any-return]

    backbone = Function(
        forward, first=nn.Linear(6, 8), shared=nn.Linear(8, 8), norm=nn.BatchNorm1d(8), last=nn.Linear(8, 4)
    )
    net = whole(backbone, 4, shape)
    prune(net, "first", rows=[0, 1, 2])
    prune(net, "shared", rows=[3, 4])
    cutout = cut_every_way(net, 1, torch.randn(5, 6))
    assert sizes(cutout) == {"first": [8, 6], "shared": [8, 8], "last": [4, 8], "head": [5, 4]}
    assert "shared keeps its shape: it is called more than once" in cutout.notes


def test_a_norm_that_is_called_twice_is_not_cut_to_one_of_its_sizes() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x, y = self.norm(F.relu(self.first(x))), self.norm(F.gelu(self.second(x)))
        return self.third(x) + self.fourth(y)  # type: ignore[no-any-return]

    layers = {name: nn.Linear(6, 8) for name in ("first", "second")} | {
        name: nn.Linear(8, 4) for name in ("third", "fourth")
    }
    backbone = Function(forward, norm=nn.BatchNorm1d(8), **layers)
    net = whole(backbone, 4, (6,))
    prune(net, "first", rows=[0, 1, 2])
    prune(net, "second", rows=[0, 1])
    cut_every_way(net, 1, torch.randn(5, 6))


def test_weights_that_the_code_reads_stay_where_they_are() -> None:
    backbone = Function(
        lambda self, x: self.last(F.linear(self.first(x), self.first.weight.t())),
        first=nn.Linear(6, 8),
        last=nn.Linear(6, 4),
    )
    net = whole(backbone, 4, (6,))
    prune(net, "first", rows=[0, 1, 2])
    cut_every_way(net, 1, torch.randn(5, 6))


@pytest.mark.parametrize(
    "middle",
    [
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.Sequential(nn.Unflatten(1, (8, 1)), nn.Conv3d(8, 8, (1, 3, 3)), nn.Flatten(1, 2)),
        nn.ConvTranspose2d(8, 8, 3),
        nn.PReLU(8),
        nn.GroupNorm(2, 8),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.MaxPool2d(2, return_indices=True),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3)),
        nn.LazyConv2d(8, 1),
        Function(lambda self, x: x.chunk(2, 1)[1].repeat(1, 2, 1, 1)),
        Function(lambda self, x: x.transpose(1, 2).transpose(1, 2)),
        Function(lambda self, x: x * x.mean((2, 3), keepdim=True).softmax(1)),
        Function(lambda self, x: F.pad(x, (1, 1)) + 1),
        Function(lambda self, x: torch.add(x, x, alpha=2)),
        Function(lambda self, x: torch.cat([x, x.flip(1)], dim=2)),
        Function(lambda self, x: x + torch.arange(8.0).view(8, 1, 1)),
    ],
)
def test_layers_around_an_operation_that_is_not_known(middle: nn.Module) -> None:
    if isinstance(middle, nn.MaxPool2d):
        middle = Function(lambda self, x: self.pool(x)[0], pool=middle)
    if isinstance(middle, nn.LazyConv2d):
        middle(torch.zeros(1, 8, 4, 4))
    body = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), middle, nn.Conv2d(8, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    for shape in (None, (2, 9, 9)):
        net = fabricate(body, 6, pattern="filter", density=0.5, input_shape=shape)
        cut_every_way(net, 2, torch.randn(3, 2, 9, 9))


def test_hooks_are_heard() -> None:
    net = whole(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), 4, (6,))
    prune(net, "0", rows=[0, 1, 2])
    net.backbone[0].register_forward_hook(lambda module, args, result: result + 1)  # type: ignore[index]
    cutout = cut_every_way(net, 1, torch.randn(5, 6))
    assert sizes(cutout) == {"2": [4, 8], "head": [5, 4]}


def branches(self: Any, x: Tensor) -> Tensor:
    x = F.relu(self.first(x))
    if x.sum() < 0:
        raise AssertionError
    return self.last(x)  # type: ignore[no-any-return]


def changes_what_is_read_later(self: Any, x: Tensor) -> Tensor:
    x = self.first(x)
    return self.last(F.relu(x, inplace=True) + x)  # type: ignore[no-any-return]


def changes_a_view(self: Any, x: Tensor) -> Tensor:
    x = self.first(x)
    x.view(-1).relu_()
    return self.last(x)  # type: ignore[no-any-return]


def changes_under_another_name(self: Any, x: Tensor) -> Tensor:
    x = before = self.first(x)
    x += 1  # torch.fx alone would take it for x + 1
    return self.last(x + before)  # type: ignore[no-any-return]


def changes_without_a_twin(self: Any, x: Tensor) -> Tensor:
    x = self.first(x)
    torch.mul(x, 2, out=x)
    return self.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (branches, "torch.fx says: symbolically traced variables cannot be used as inputs to control flow"),
        (changes_what_is_read_later, "relu changes a tensor in place that is read after it"),
        (changes_a_view, "relu_ changes a tensor in place that is read after it"),
        (changes_under_another_name, "iadd changes a tensor in place that is read after it"),
        (changes_without_a_twin, "mul changes a tensor in place"),
    ],
)
def test_code_that_is_no_graph_keeps_its_shape(
    forward: Callable[..., Tensor], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = whole(Function(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 4)), 4, (6,))
    prune(net, "first", rows=[0, 1, 2])
    cutout = cut_every_way(net, 1, torch.randn(5, 6))
    assert sizes(cutout) == {"first": [8, 6], "last": [4, 8], "head": [5, 4]}
    assert cutout.notes == [f"every layer keeps its shape: {reason}"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert cutout.summary().endswith(reason)


def test_what_is_done_in_place_and_not_read_again_is_no_obstacle() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        y = self.second(x)
        x = x.mul_(2).add_(y)
        x += self.third(F.dropout(x, training=self.training, inplace=True))
        return torch.relu_(x)

    layers = {name: nn.Linear(8, 8) for name in ("second", "third")}
    net = whole(Function(forward, first=nn.Linear(6, 8), relu=nn.ReLU(inplace=True), **layers), 8, (6,))
    for name in ("first", "second", "third"):
        prune(net, name, rows=[0, 1])
    cutout = cut_every_way(net, 1, torch.randn(5, 6))
    assert sizes(cutout) == {"first": [6, 6], "second": [6, 6], "third": [6, 6], "head": [5, 6]}


def test_layers_inside_of_torchs_own_modules_are_left_alone_without_a_graph() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if x.sum() != x.sum():
            raise AssertionError
        x = self.first(x.view(-1, 3, 4))
        return self.last(self.encoder(x).flatten(1))  # type: ignore[no-any-return]

    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = fabricate(Function(forward, first=nn.Linear(4, 8), encoder=encoder, last=nn.Linear(24, 4)), 4, density=0.3)
    cutout = cut_every_way(net, 2, torch.randn(5, 12))
    assert list(sizes(cutout)) == ["first", "last", "head"]


def test_a_compiled_backbone_is_cut_out_all_the_same() -> None:
    net = whole(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), 4, (6,))
    prune(net, "0", rows=[0, 1, 2])
    net.backbone.compile(backend="eager")
    cutout = net.extract(1)
    assert sizes(cutout)["0"] == [5, 6]
    assert_same_answers(net, cutout, torch.randn(5, 6), 1)
