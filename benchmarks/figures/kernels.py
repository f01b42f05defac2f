"""The figures of the operators, each measured beside its peers in one go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.figures.checks import check_operators
from benchmarks.figures.figure import Figure, faster, within
from benchmarks.peers import (
    eager_compose,
    eager_compose_out,
    fused_adam,
    partition_project,
    percentile_project,
    topk_project,
)
from benchmarks.roofline import readers
from benchmarks.shapes import MLP, RESNET50_1D, weights
from benchmarks.timing import Thunk, measure
from lps_kernels import compose, group_scores, group_view, pack_bits, project
from lps_kernels._registry import REGISTRY

# For each callable, of which there are 28; with their preparation the group takes about eighty seconds.
SECONDS = 3.0
SIDE = 2000
KEPT_SHARE = 0.1


def kernel_figures() -> Iterator[Figure]:
    """Composition, projection, the fused step and group scores."""
    check_operators("compose", "compose_out", "project", "proximal_adam_", "group_scores")
    yield from _compose()
    yield from _project_layer()
    yield from _project_network()
    yield from _fused_step()
    yield from _group_scores()


def _compose() -> Iterator[Figure]:
    w, w_bar, selected = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.rand(SIDE, SIDE) < 0.5
    mask, bits = selected.float(), pack_bits(selected)
    out, product = torch.zeros(SIDE, SIDE), torch.zeros(SIDE, SIDE)
    into_new: dict[str, Thunk] = {
        "ours": lambda: compose(w, mask, w_bar),
        "packed": lambda: compose(w, bits, w_bar),
        "eager": lambda: eager_compose(w, mask, w_bar),
        "addcmul": lambda: torch.addcmul(w, mask, w_bar),
    }
    yield from _compose_figures("new tensors", into_new)
    into_out: dict[str, Thunk] = {
        "ours": lambda: compose(w, mask, w_bar, out=out),
        "packed": lambda: compose(w, bits, w_bar, out=out),
        "eager": lambda: eager_compose_out(w, mask, w_bar, out, product),
        "addcmul": lambda: torch.addcmul(w, mask, w_bar, out=out),
    }
    yield from _compose_figures("out=", into_out)


def _compose_figures(where: str, functions: dict[str, Thunk]) -> Iterator[Figure]:
    times = measure(functions, SECONDS)
    yield faster(f"compose fp32 {where} vs eager", times["ours"], times["eager"], 1.6)
    yield faster(f"compose fp32 {where} vs addcmul", times["ours"], times["addcmul"], 1.0)
    yield faster(f"compose fp32 packed mask {where} vs addcmul", times["packed"], times["addcmul"], 1.25)


def _project_layer() -> Iterator[Figure]:
    x = torch.randn(SIDE, SIDE)
    flat, array = x.view(-1), x.view(-1).numpy()
    keep = round(KEPT_SHARE * x.numel())
    view = group_view(x.shape, "irregular")
    functions: dict[str, Thunk] = {
        "ours": lambda: project([x], [keep], [view], score="magnitude"),
        "np.partition": lambda: partition_project(array, keep),
        "np.percentile": lambda: percentile_project(array, keep),
        "torch.topk": lambda: topk_project(flat, keep),
    }
    times = measure(functions, SECONDS)
    for peer, bound in (("np.partition", 4.0), ("np.percentile", 15.0), ("torch.topk", 35.0)):
        yield faster(f"project 10 % of 4 M vs {peer}", times["ours"], times[peer], bound)


def _project_network() -> Iterator[Figure]:
    layers = [torch.randn(shape) for shape in RESNET50_1D]
    keeps = [round(KEPT_SHARE * layer.numel()) for layer in layers]
    views = [group_view(layer.shape, "irregular") for layer in layers]
    single = torch.randn(weights(RESNET50_1D))
    view = group_view(single.shape, "irregular")
    functions: dict[str, Thunk] = {
        "network": lambda: project(layers, keeps, views, score="magnitude"),
        "single": lambda: project([single], [sum(keeps)], [view], score="magnitude"),
    }
    times = measure(functions, SECONDS)
    yield within("project 53 layers vs one of the same size", times["network"], times["single"], 1.3)


def _fused_step() -> Iterator[Figure]:
    step = REGISTRY["proximal_adam_"]
    (args,) = step.workload(MLP)
    _, gradients, v, *_ = args
    functions = {"ours": lambda: step.overload(*args), "fused Adam": fused_adam(v, gradients)}
    times = measure(functions, SECONDS)
    yield within("proximal_adam_ of the MLP vs torch's fused Adam", times["ours"], times["fused Adam"], 1.65)


def _group_scores() -> Iterator[Figure]:
    x = torch.randn(SIDE, SIDE)
    for pattern in ("column", "filter"):
        view = group_view(x.shape, pattern)
        ours = partial(group_scores, [x], [view], score="l2")
        times = measure({"ours": ours, **readers(x)}, SECONDS / 2)
        scores = times.pop("ours")
        read = min(times.values(), key=lambda timing: timing.best)
        bandwidth = f"{x.nbytes / read.best / 1e9:.0f} GB/s"
        yield faster(f"group_scores l2 {pattern}, share of {bandwidth} read", scores, read, 0.7)
