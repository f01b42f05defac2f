"""The figures of inference: single layers beside torch's ways, cut-out tasks beside the whole network and DeepSparse.

Networks are fabricated, not trained (:mod:`benchmarks.figures.networks`). Every callable's answer is compared with that
of a dense product before it is timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks import deepsparse
from benchmarks.dense import dense_runs, fastest
from benchmarks.environments import install
from benchmarks.figures import networks
from benchmarks.figures.checks import check_answers, check_operators
from benchmarks.figures.figure import Figure, Skipped, faster
from benchmarks.figures.networks import Subject
from benchmarks.figures.one_layer import layer_figures
from benchmarks.peers import UnavailableError
from benchmarks.timing import SPIN_SECONDS, measure
from lps_kernels._registry import REGISTRY
from lps_kernels.cutout import Cutout

# For each callable and batch size; DeepSparse and ours beside it get their own.
SECONDS = 3.0
DEEPSPARSE_SECONDS = 2.0


@dataclass(frozen=True)
class Bounds:
    """What a cut-out has to reach at one batch size: times as fast as the best dense network, and as DeepSparse."""

    batch: int
    dense: float
    deepsparse: float | None = None


@dataclass(frozen=True)
class Network:
    """A network and its bounds; how much a cut-out may hold depends on the pattern."""

    name: str
    pattern: str
    make: Callable[[], Subject]
    bounds: Sequence[Bounds]


def _mlp(density: float, large: float, middle: float) -> Network:
    bounds = (Bounds(128, large, deepsparse=1.25), Bounds(16, middle), Bounds(1, 1.0, deepsparse=2.0))
    return Network(f"MLP irregular {100 * density:.0f} %", "irregular", lambda: networks.mlp(density), bounds)


def _resnet(name: str, pattern: str, tasks: int, *bounds: Bounds) -> Network:
    return Network(f"ResNet50-1D {name}", pattern, lambda: networks.resnet50_1d(pattern, tasks), bounds)


NETWORKS = (
    _mlp(0.1, 5.5, 3.0),
    _mlp(0.2, 3.0, 2.0),
    _mlp(0.5, 1.3, 1.1),
    Network("CIFAR net column 50 %", "column", networks.cifar_net, (Bounds(128, 1.5),)),
    _resnet("column 20 %", "column", 1, Bounds(1, 3.0), Bounds(128, 4.0)),
    _resnet("filter 20 %", "filter", 1, Bounds(1, 3.0), Bounds(128, 4.0)),
    _resnet("column task 3", "column", 3, Bounds(128, 1.8)),
)


def inference_figures() -> Iterator[Figure | Skipped]:
    """All of them take about four minutes, without the first installation of DeepSparse."""
    check_operators(*(op.name for op in REGISTRY.values() if op.sums == "products"))
    yield from layer_figures(SECONDS)
    with ExitStack() as stack:
        peer = _start_deepsparse(stack)
        for network in NETWORKS:
            yield from network_figures(network, peer)


def _start_deepsparse(stack: ExitStack) -> deepsparse.DeepSparse | str:
    """DeepSparse, running until the stack ends, or why it does not."""
    try:
        return stack.enter_context(deepsparse.DeepSparse(install(deepsparse.NAME, deepsparse.INSTALL)))
    except UnavailableError as error:
        return str(error)


def network_figures(network: Network, peer: deepsparse.DeepSparse | str) -> Iterator[Figure | Skipped]:
    """How fast the network's cut-outs are and how much they hold; ``peer`` may be why there is no DeepSparse."""
    subject, cutouts = network.make(), []
    for bounds in network.bounds:
        cutout, inputs = subject.cut_out(bounds.batch), subject.inputs(bounds.batch)
        cutouts.append(cutout)
        name = f"{network.name}, batch {bounds.batch}"
        yield _against_dense(f"{name} vs best dense", bounds.dense, subject, cutout, inputs)
        if bounds.deepsparse is not None:
            yield _against_deepsparse(f"{name} vs DeepSparse", bounds.deepsparse, subject, cutout, inputs, peer)
    yield held(network.name, network.pattern, subject, cutouts)


@torch.inference_mode()
def _against_dense(what: str, bound: float, subject: Subject, cutout: Cutout, inputs: Tensor) -> Figure:
    peers, missing = dense_runs(subject.dense, inputs)
    answers = {"the cut-out": cutout(inputs), **{name: run() for name, run in peers.items()}}
    check_answers(what, answers, subject.dense(inputs))
    times = measure({"ours": lambda: cutout(inputs), **peers}, SECONDS, rest=SPIN_SECONDS)
    name, best = fastest(times, peers)
    figure = faster(what, times["ours"], best, bound)
    others = [f"{peer} {times[peer]}" for peer in peers if peer != name]
    detail = f"{figure.detail} of {'; '.join([name, *others])}"
    return replace(figure, detail=detail if missing is None else f"{detail}; no ONNX Runtime: {missing}")


@torch.inference_mode()
def _against_deepsparse(
    what: str, bound: float, subject: Subject, cutout: Cutout, inputs: Tensor, peer: deepsparse.DeepSparse | str
) -> Figure | Skipped:
    if isinstance(peer, str):
        return Skipped(what, peer)
    try:
        answers = {"the cut-out": cutout(inputs), "DeepSparse": peer.load(subject.dense, inputs)}
        check_answers(what, answers, subject.dense(inputs))
        ours, theirs = deepsparse.in_rounds(lambda: cutout(inputs), peer, DEEPSPARSE_SECONDS)
    except UnavailableError as error:
        return Skipped(what, str(error))
    return faster(what, ours, theirs, bound)


def held(name: str, pattern: str, subject: Subject, cutouts: Sequence[Cutout]) -> Figure | Skipped:
    """Bytes of the layers that are not kept dense, against the weights that the task has in them.

    Formats depend on the batch size that a cut-out is made for; the one that holds most counts.
    """
    figures = [_held(name, pattern, subject, cutout) for cutout in cutouts if cutout.weight_bytes()[1]]
    if not figures:
        return Skipped(f"{name}, weights held", "every layer is kept dense")
    return max(figures, key=lambda figure: figure.value)


def _held(name: str, pattern: str, subject: Subject, cutout: Cutout) -> Figure:
    held_bytes, dense_bytes = cutout.weight_bytes()
    changed = [layer for layer in cutout.layers if not layer.kept_dense]
    share, density = held_bytes / dense_bytes, subject.density(changed)
    formats = ", ".join(f"{count} {format}" for format, count in Counter(layer.format for layer in changed).items())
    detail = f"{100 * share:.2f} % of the bytes for {100 * density:.2f} % of the weights; layers: {formats}"
    if pattern == "irregular":
        # The bitmap takes one bit per weight, 1/32 of the bytes; the bound leaves room for as much again.
        return Figure(f"{name}, bytes beyond the weights", 100 * (share - density), " %", "<=", 100 / 16, detail)
    return Figure(f"{name}, bytes per weight kept", share / density, "x", "<=", 1.15, detail)
