"""How a task is cut out for a GPU. No GPU is needed: what is chosen depends on the kind of device alone."""

from __future__ import annotations

import pytest
import torch
from lps.deploy.extraction import extract
from lps.deploy.extraction.formats import GPU_NOTE, Shrunk, Target, choose
from torch import nn

from lps_kernels.layers import MaxPool2d
from tests.cutouts import assert_same_answers, fabricate, sizes

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def held(weight: torch.Tensor, device: torch.device, *, portable: bool = False) -> str:
    """The format that a linear layer with this weight gets."""
    template = nn.Linear(weight.shape[1], weight.shape[0])
    return choose(Shrunk(template, weight, None, positions=128), Target(128, portable, device))


@pytest.mark.parametrize(
    ("columns", "density", "on_cpu", "on_gpu"),
    [
        (1.0, 0.1, "sparse", "dense"),  # scattered weights
        (0.1, 1.0, "structured", "structured"),  # whole columns: a smaller dense product
        (0.5, 1.0, "structured", "structured"),
        (0.9, 1.0, "structured", "dense"),  # hardly smaller
        (0.5, 0.1, "sparse", "structured"),  # the columns that are left, with their zeros
        (1.0, 1.0, "structured", "dense"),
    ],
)
def test_on_a_gpu_only_whole_columns_make_a_layer_smaller(
    columns: float, density: float, on_cpu: str, on_gpu: str
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(2000, 2000) * (torch.rand(2000, 2000) < density)
    weight[:, int(columns * 2000) :] = 0
    assert held(weight, CPU) == on_cpu
    assert held(weight, GPU) == held(weight, torch.device("cuda", 1)) == on_gpu
    assert held(weight, GPU, portable=True) == held(weight, CPU, portable=True)


@pytest.mark.parametrize("pattern", ["irregular", "column", "filter"])
def test_a_task_cut_out_for_a_gpu_answers_alike_and_says_how_it_was_chosen(pattern: str) -> None:
    backbone = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 36, 256), nn.ReLU()
    )
    net = fabricate(backbone, 256, pattern=pattern, density=0.2, tasks=1, input_shape=(3, 14, 14))
    for_cpu = net.extract(1)
    assert GPU_NOTE not in for_cpu.notes
    assert any(isinstance(module, MaxPool2d) for module in for_cpu.modules())
    cutout = extract(net, 1, Target(128, False, GPU))
    assert cutout.notes[0] == GPU_NOTE
    assert GPU_NOTE in cutout.summary()
    assert not {layer.format for layer in cutout.layers} & {"sparse", "packed"}
    assert not any(isinstance(module, MaxPool2d) for module in cutout.modules())
    assert sizes(cutout) == sizes(for_cpu)  # channels vanish on every device
    assert_same_answers(net, cutout, torch.randn(7, 3, 14, 14), 1)
    assert extract(net, 1, Target(128, True, GPU)).notes == []
