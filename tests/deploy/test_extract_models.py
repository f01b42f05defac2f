"""The paper's networks and random ones, cut out."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lps import Lifelong, models
from torch import Tensor, nn

from tests.cutouts import assert_same_answers, classes_in, cut_every_way, fabricate, graph_of, preferring, prune, sizes

NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": ({"inputs": 49, "hidden": [120, 90]}, (1, 7, 7)),
    "cifar-net": ({}, (3, 32, 32)),
    "resnet50-1d": ({}, (2, 64)),
}


def paper_network(name: str, pattern: str, density: float, shape: bool = True) -> tuple[Lifelong, Tensor]:
    arguments, input_shape = NETWORKS[name]
    backbone = models.create(name, **arguments)
    architecture = backbone.architecture
    assert isinstance(architecture, models.Architecture)
    known = input_shape if shape else None
    net = fabricate(
        backbone, architecture.features, pattern=pattern, sharing="structured", density=density, input_shape=known
    )
    return net, torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pattern", ["irregular", "column", "filter", "channel"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_networks(name: str, pattern: str) -> None:
    net, x = paper_network(name, pattern, density=0.4)
    for portable in (False, True):
        cutout = net.extract(2, portable=portable)
        assert_same_answers(net, cutout, x, 2)
        assert not cutout.notes
        assert not any(package.split(".")[0] == "lps" for package in classes_in(cutout))
    held = sum(tensor.numel() for tensor in cutout.state_dict().values())
    if pattern != "irregular":
        assert held < 0.8 * sum(parameter.numel() for parameter in net.backbone.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_they_shrink_as_much_without_shapes(name: str) -> None:
    net, x = paper_network(name, "filter", density=0.3)
    known = sizes(net.extract(1, portable=True))
    net.metadata.input_shape = None
    cutout = net.extract(1, portable=True)
    assert sizes(cutout) == known
    assert_same_answers(net, cutout, x, 1)


def test_dead_channels_of_a_residual_stream_vanish_from_every_block() -> None:
    net, x = paper_network("resnet50-1d", "irregular", density=1)
    stream = ("4.shortcut.0", "4.path.6", "5.path.6", "6.path.6")
    for name in stream:
        prune(net, name, rows=range(100))
        norm = net.backbone.get_submodule(name.replace("path.6", "path.7").replace("shortcut.0", "shortcut.1"))
        assert isinstance(norm, nn.BatchNorm1d)
        norm.running_mean.zero_()  # type: ignore[union-attr]
        norm.bias.data.zero_()
    with preferring("structured"):
        cutout = net.extract(1)
    assert_same_answers(net, cutout, x, 1)
    found = sizes(cutout)
    assert all(found[name][0] == 156 for name in stream)
    assert found["5.path.0"] == [64, 156]
    assert found["7.shortcut.0"] == [512, 156]
    # Every norm, ReLU and sum is in one of the convolutions.
    assert [node.name for node in graph_of(cutout).nodes if node.op == "call_function"] == ["flatten"]
    assert sum(node.op == "call_module" for node in graph_of(cutout).nodes) == 53 + 2 + 1  # pools, head


class RandomNet(nn.Module):
    """Branches, sums, concatenations, pools, norms and activations, drawn from a seed; 4 x 6 x 6 to 10 features."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.parts = nn.ModuleList()
        self.plan: list[tuple[str, int, list[int]]] = []  # operation, part, values it reads; its result is a new value
        widths = [4]
        for _ in range(self.random.randint(4, 9)):
            self._grow(widths)
        self.widths = widths
        self.last = nn.Linear(4 * widths[-1], 10)

    def _add(self, operation: str, sources: list[int], part: nn.Module | None = None) -> None:
        if part is not None:
            self.parts.append(part)
        self.plan.append((operation, len(self.parts) - 1, sources))

    def _grow(self, widths: list[int]) -> None:
        pick = self.random
        source = pick.choice([len(widths) - 1, pick.randrange(len(widths))])
        width = widths[source]
        operation = pick.choice(["conv", "conv", "conv", "norm", "activate", "pool", "add", "cat"])
        if operation == "conv":
            kernel, width = pick.choice([1, 3]), pick.randint(3, 9)
            bias = pick.random() < 0.6
            part: nn.Module = nn.Conv2d(widths[source], width, kernel, padding=kernel // 2, bias=bias)
            self._add("part", [source], part)
        elif operation == "norm":
            self._add("part", [source], nn.BatchNorm2d(width))
        elif operation == "activate":
            self._add("part", [source], pick.choice([nn.ReLU(), nn.GELU(), nn.Sigmoid()]))
        elif operation == "pool":
            self._add("part", [source], pick.choice([nn.MaxPool2d, nn.AvgPool2d])(3, stride=1, padding=1))
        else:
            others = [i for i, w in enumerate(widths) if operation == "cat" or w == width]
            other = pick.choice(others)
            self._add(operation, [source, other])
            width += widths[other] if operation == "cat" else 0
        widths.append(width)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for operation, part, sources in self.plan:
            read = [values[source] for source in sources]
            if operation == "part":
                values.append(self.parts[part](read[0]))
            else:
                values.append(read[0] + read[1] if operation == "add" else torch.cat(read, 1))
        pooled = F.adaptive_avg_pool2d(values[-1], 2)
        features: Tensor = self.last(pooled.flatten(1))
        return features


@pytest.mark.parametrize("seed", range(30))
def test_random_networks(seed: int) -> None:
    torch.manual_seed(seed)
    pattern = ("filter", "channel", "irregular", "column")[seed % 4]
    shape = (4, 6, 6) if seed % 3 else None
    net = fabricate(RandomNet(seed), 10, pattern=pattern, sharing="structured", density=0.5, input_shape=shape)
    cut_every_way(net, 2, torch.randn(2, 4, 6, 6))
