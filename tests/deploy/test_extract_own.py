"""A cut-out includes the task's own head, of any kind, and its private norms and biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from lps import Lifelong
from lps.deploy.exporters import EXPORTERS
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from tests.cutouts import assert_same_answers, fabricate
from tests.toy import QUICK, toy_convnet, toy_mlp, toy_task


class CosineHead(nn.Module):
    """A head that is not built from torch's layers."""

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
    """A network with two tasks, of which the second has this head, and inputs."""
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


@pytest.mark.parametrize("backbone", BACKBONES)
def test_private_norms_of_the_task_are_cut_out(backbone: str, tmp_path: Path) -> None:
    make, shape = BACKBONES[backbone]
    torch.manual_seed(0)
    net = Lifelong(make(), 16, norms="per-task")
    for seed in range(3):
        net.learn(toy_task(seed, shape), QUICK)
    net.eval()
    x = torch.randn(9, *shape)
    for task in (1, 2, 3):
        for portable in (False, True):
            net.activate(1 + task % 3)  # the backbone holds the norms of another task
            assert_same_answers(net, net.extract(task, portable=portable), x, task)
        net.activate(1 + task % 3)
        EXPORTERS["torch"].write(net, task, tmp_path / "task.pt2")  # refuses other answers
