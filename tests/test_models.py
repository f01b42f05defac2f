"""The paper's networks and the registry that rebuilds them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch
from lps import models
from lps.errors import ConfigError
from lps.models import Architecture, create
from torch import Tensor, nn

from benchmarks.shapes import CIFAR, MLP, RESNET50_1D, Shape, weights

# name, arguments, an input of two examples, features
CASES: list[tuple[str, dict[str, Any], Shape, int]] = [
    ("mlp", {}, (2, 1, 28, 28), 2000),
    ("mlp", {"inputs": 64, "hidden": [32], "dropout": 0.2}, (2, 64), 32),
    ("cifar-net", {}, (2, 3, 32, 32), 512),
    ("cifar-net", {"side": 16, "channels": 1}, (2, 1, 16, 16), 512),
    ("resnet50-1d", {}, (2, 2, 64), 2048),
]
IDS = ["mlp", "small-mlp", "cifar-net", "small-cifar-net", "resnet50-1d"]
everywhere = pytest.mark.parametrize(("name", "arguments", "shape", "features"), CASES, ids=IDS)


def prunable(network: nn.Module) -> list[Shape]:
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return [tuple(module.weight.shape) for module in network.modules() if isinstance(module, layers)]


def architecture(network: nn.Module) -> Architecture:
    found = vars(network)["architecture"]
    assert isinstance(found, Architecture)
    return found


@pytest.mark.parametrize(
    ("name", "shapes", "count"),
    [("mlp", MLP, 5_568_000), ("cifar-net", CIFAR, 884_576), ("resnet50-1d", RESNET50_1D, 15_901_568)],
    ids=["mlp", "cifar-net", "resnet50-1d"],
)
def test_the_prunable_weights_are_the_papers(name: str, shapes: tuple[Shape, ...], count: int) -> None:
    found = prunable(create(name))
    assert sorted(found) == sorted(shapes)
    assert weights(tuple(found)) == count


@everywhere
def test_it_gives_its_features_for_each_example(
    name: str, arguments: dict[str, Any], shape: Shape, features: int
) -> None:
    network = create(name, **arguments)
    result = network(torch.rand(shape))
    assert result.shape == (shape[0], features)
    assert architecture(network).features == features


@everywhere
def test_json_brings_it_back(name: str, arguments: dict[str, Any], shape: Shape, features: int) -> None:
    first = create(name, **arguments)
    told = json.loads(json.dumps(asdict(architecture(first))))
    second = create(told["name"], **told["arguments"])
    assert architecture(second) == architecture(first)
    second.load_state_dict(first.state_dict())
    x = torch.rand(shape)
    torch.testing.assert_close(first.eval()(x), second.eval()(x), rtol=0, atol=0)


@everywhere
def test_it_can_be_traced_and_compiled_whole(name: str, arguments: dict[str, Any], shape: Shape, features: int) -> None:
    network = create(name, **arguments).eval()
    x = torch.rand(shape)
    layers = list(network.children())
    # Two blocks of ResNet stand for the sixteen, which take long to compile: one with a projection, one without.
    part = nn.Sequential(*layers[:6], *layers[-2:]) if name == "resnet50-1d" else network
    with torch.no_grad():
        torch.testing.assert_close(torch.fx.symbolic_trace(network)(x), network(x), rtol=0, atol=0)
        # The backend without code generation: what is tested is that one graph holds all of it.
        compiled = torch.compile(part, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), part(x), rtol=0, atol=0)


def test_defaults_are_written_out() -> None:
    assert architecture(models.mlp()).arguments == {"inputs": 784, "hidden": [2000, 2000], "dropout": 0.5}
    cifar = {"dropout": [0.25, 0.25, 0.5], "side": 32, "channels": 3}
    assert architecture(models.cifar_net()).arguments == cifar
    assert architecture(models.resnet50_1d()).arguments == {"channels": 2}


def test_biases_dropout_and_normalisation_are_where_the_paper_has_them() -> None:
    def count(network: nn.Module, kind: type[nn.Module]) -> int:
        return sum(isinstance(module, kind) for module in network.modules())

    mlp, cifar, resnet = models.mlp(), models.cifar_net(), models.resnet50_1d()
    assert [module.p for module in mlp.modules() if isinstance(module, nn.Dropout)] == [0.5, 0.5]
    assert [module.p for module in cifar.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.25, 0.5]
    assert [name for name, _ in mlp.named_parameters() if "bias" in name] == ["1.bias", "4.bias"]
    assert sum("bias" in name for name, _ in cifar.named_parameters()) == 1  # of the fully connected layer
    assert count(resnet, nn.BatchNorm1d) == count(resnet, nn.Conv1d) == 53


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("vgg", {}, "known are cifar-net, mlp, resnet50-1d"),
        ("mlp", {"depth": 3}, "takes inputs, hidden, dropout"),
        ("mlp", {"name": "cifar-net"}, "takes inputs, hidden, dropout"),
        ("mlp", {"inputs": 0}, "at least 1, got 0"),
        ("mlp", {"inputs": True}, "got True"),
        ("mlp", {"hidden": []}, "at least one width"),
        ("mlp", {"hidden": 5}, "got 5"),
        ("mlp", {"hidden": [10, "x"]}, "got 'x'"),
        ("mlp", {"dropout": 1.0}, "below 1, got 1.0"),
        ("mlp", {"dropout": "much"}, "got 'much'"),
        ("mlp", {"dropout": float("nan")}, "JSON"),
        ("mlp", {"inputs": torch.ones(1)}, "JSON"),
        ("cifar-net", {"dropout": [0.1, 0.2]}, "three shares"),
        ("cifar-net", {"dropout": [0.1, 0.2, -1]}, "got -1"),
        ("cifar-net", {"side": 15}, "side: expected a whole number of at least 16, got 15"),
        ("cifar-net", {"side": "32"}, "got '32'"),
        ("cifar-net", {"channels": 0}, "channels: expected a whole number of at least 1, got 0"),
        ("resnet50-1d", {"channels": 1.5}, "got 1.5"),
    ],
)
def test_a_wrong_name_or_argument_is_refused_in_one_sentence(name: str, arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(name, **arguments)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_users_register_networks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_BUILDERS", dict(models._BUILDERS))

    @models.register("tiny")
    def tiny(width: int = 3) -> tuple[nn.Module, int]:
        """One layer."""
        return nn.Linear(2, width), width

    assert architecture(tiny()) == Architecture("tiny", {"width": 3}, 3)
    assert tiny.__doc__ == "One layer."
    result: Tensor = create("tiny", width=5)(torch.rand(1, 2))
    assert result.shape == (1, 5)
    with pytest.raises(ConfigError, match="'tiny' is taken"):
        models.register("tiny")(lambda: (nn.Identity(), 1))
