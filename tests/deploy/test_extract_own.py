"""What a task has for itself beside its weights goes with it: a head of any kind, norms and biases of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from lps import Lifelong
from lps.deploy.exporters import EXPORTERS
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from tests.cutouts import TOLERANCE, assert_same_answers, fabricate
from tests.toy import toy_convnet, toy_mlp


class CosineHead(nn.Module):
    """A head that is no stack of torch's layers."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16))
        self.register_buffer("scale", torch.tensor(7.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * linear(normalize(x), normalize(self.weight))


HEADS: dict[str, Callable[[], nn.Module]] = {
    "two layers": lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
    "with a norm": lambda: nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 3, bias=False)),
    "cosines": CosineHead,
}
BACKBONES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (toy_mlp, (12,)),
    "convolutions": (toy_convnet, (3, 8, 8)),
}


def with_head(backbone: str, head: str) -> tuple[Lifelong, Tensor]:
    """Two tasks, of which the second has this head; and inputs."""
    make, shape = BACKBONES[backbone]
    net = fabricate(make(), 16, pattern="filter", density=0.4, input_shape=shape)
    net.heads[1] = HEADS[head]()
    return net.requires_grad_(False).eval(), torch.randn(9, *shape)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("portable", [False, True])
def test_heads_of_any_kind_are_cut_out(backbone: str, head: str, portable: bool) -> None:
    net, x = with_head(backbone, head)
    assert_same_answers(net, net.extract(2, portable=portable), x, 2)
    assert_same_answers(net, net.extract(1, portable=portable), x, 1)


def test_layers_of_a_head_shrink_too() -> None:
    net, _ = with_head("mlp", "two layers")
    with torch.no_grad():
        net.heads[1][0].weight[:5], net.heads[1][0].bias[:5] = 0, 0  # type: ignore[index]
    shapes = {layer.name: layer.after for layer in net.extract(2).layers}
    assert shapes["head.0"][0] == 3
    assert shapes["head.2"] == (3, 3)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_heads_of_any_kind_are_exported(tmp_path: Path, kind: str, head: str) -> None:
    net, x = with_head("mlp", head)
    exporter, path = EXPORTERS[kind], tmp_path / "task"
    assert exporter.write(net, 2, path).startswith("differs from the network by ")
    if kind == "torch":
        logits = torch.export.load(path).module()(x)
    else:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        logits = torch.from_numpy(session.run(None, {"input": x.numpy()})[0])
    torch.testing.assert_close(logits, net(x, task=2), rtol=1e-5, atol=1e-5)


class OwnNorms(Lifelong):
    """Task 2 runs with other biases, norms and statistics than the backbone holds."""

    def tensors_of(self, task: int) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.common_tensors():
            yield name, tensor + 0.5 if task == 2 and tensor.is_floating_point() else tensor


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("portable", [False, True])
def test_the_cut_out_has_the_tensors_of_its_task(backbone: str, portable: bool) -> None:
    make, shape = BACKBONES[backbone]
    net = fabricate(make(), 16, input_shape=shape)
    net.__class__ = OwnNorms
    x = torch.randn(9, *shape)
    first, second = net.extract(1, portable=portable), net.extract(2, portable=portable)
    before = {name: tensor.clone() for name, tensor in net.common_tensors()}
    assert_same_answers(net, first, x, 1)
    with torch.no_grad():
        shared = net(x, task=2)
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.common_tensors())
        for _, tensor in net.common_tensors():
            if tensor.is_floating_point():
                tensor.add_(0.5)
        own = net(x, task=2)
    assert float((own - shared).abs().max()) > 0.01
    torch.testing.assert_close(second(x), own, rtol=TOLERANCE, atol=TOLERANCE * float(own.abs().max()))
