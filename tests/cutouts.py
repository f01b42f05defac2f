"""Untrained Lifelong networks whose tasks have weights with the patterns that training would produce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from lps import Lifelong
from lps.task import Learnt
from torch import Tensor, fx, nn

from benchmarks.figures.networks import liven
from lps_kernels import group_view, pack_bits
from lps_kernels.cutout import Cutout

# A sum in another order and a folded norm move a logit by some rounding errors of its largest terms: a float32 has 24
# bits, and sums here have up to a few thousand terms whose errors partly cancel.
TOLERANCE = 5e-6
TOLERANCE64 = 1e-12


def fabricate(
    backbone: nn.Module,
    features: int,
    *,
    pattern: str = "irregular",
    sharing: str = "elementwise",
    density: float = 0.2,
    beta: float = 0.5,
    tasks: int = 2,
    classes: int = 5,
    seed: int = 0,
    input_shape: Sequence[int] | None = None,
) -> Lifelong:
    """As after learning ``tasks`` tasks that took ``density`` of every layer and reuse ``beta`` of the earlier ones."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    liven(backbone, generator)
    net = Lifelong(backbone, features, pattern=pattern, sharing=sharing, norms="frozen")
    dtype = next(backbone.parameters()).dtype
    for task in range(1, tasks + 1):
        for partition, weight in net.prunable():
            free = partition.free()
            chosen = free & _flags(weight, pattern, density, generator)
            reused = ~free & _flags(weight, pattern if sharing == "structured" else "irregular", beta, generator)
            values = torch.randn(weight.shape, generator=generator).to(dtype) * 2 * weight[0].numel() ** -0.5
            partition.w_bar = torch.where(chosen, values, partition.w_bar)
            partition.owner = torch.where(chosen, task, partition.owner).to(torch.uint8)
            partition.add_task(pack_bits(reused))
        net.heads.append(nn.Linear(features, classes, dtype=dtype))
        net.learnt.append(Learnt(f"task-{task}", classes, ""))
    if input_shape is not None:
        net.metadata.input_shape = list(input_shape)
    return net.eval()


def _flags(weight: Tensor, pattern: str, share: float, generator: torch.Generator) -> Tensor:
    """True for about this share of the pattern's groups."""
    view = group_view(weight.shape, pattern)
    flags = torch.rand(view[1], generator=generator) < share
    return flags.view(1, -1, 1).expand(view).reshape(weight.shape)


def assert_same_answers(net: Lifelong, cutout: nn.Module, x: Tensor, task: int) -> None:
    """The cut-out gives the logits of the whole network, and the whole network did not change."""
    with torch.no_grad():
        expected, found = net.eval()(x, task=task), cutout(x)
    tolerance = TOLERANCE if x.dtype == torch.float32 else TOLERANCE64
    assert found.shape == expected.shape
    assert torch.isfinite(expected).all()
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= tolerance, f"largest error {error:.1e} of the largest logit"


@contextmanager
def preferring(format: str) -> Iterator[None]:
    """Use this format for every layer, ignoring the cost model."""
    with patch("lps.deploy.extraction.formats.seconds", lambda candidate, work: float(candidate != format)):
        yield


def graph_of(cutout: Cutout) -> fx.Graph:
    """The graph of a network that could be traced."""
    assert isinstance(cutout.network, fx.GraphModule)
    return cutout.network.graph


def cut_every_way(net: Lifelong, task: int, x: Tensor) -> Cutout:
    """Cut a task out in every format, ignoring the cost model; check all logits and return the portable cut-out."""
    for format in ("dense", "structured", "sparse"):
        with preferring(format):
            assert_same_answers(net, net.extract(task), x, task)
    assert_same_answers(net, net.extract(task), x, task)
    cutout = net.extract(task, portable=True)
    assert_same_answers(net, cutout, x, task)
    return cutout


def prune(net: Lifelong, name: str, *, rows: Sequence[int] = (), columns: Sequence[int] = ()) -> None:
    """Zero filters, and weights on input channels, of the layer of this name."""
    partition = next(partition for partition, _ in net.prunable() if partition.name == f"{name}.weight")
    partition.w_bar[list(rows)] = 0
    partition.w_bar[:, list(columns)] = 0
    net._switch.forget()  # the backbone holds what it held before


def sizes(cutout: Cutout) -> dict[str, list[int]]:
    """Outputs and inputs of every layer."""
    return {layer.name: list(layer.after[:2]) for layer in cutout.layers}


def classes_in(module: nn.Module) -> set[str]:
    """Packages of the classes of all submodules."""
    return {type(part).__module__ for part in module.modules()}
