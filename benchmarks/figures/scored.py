"""The figures of the methods that learn a score per weight: their step, and its selection on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from lps import Arrays, Lifelong, Listener, LPSConfig, Task
from lps.methods import METHODS
from lps.methods.fit import Fit
from lps.sources import batches
from torch import Tensor

from benchmarks.figures.figure import Figure, faster, typically_within
from benchmarks.timing import Thunk, measure
from lps_kernels import project

STEP_SECONDS = 20.0  # for each kind of step
SELECTION_SECONDS = 3.0
SHARE = 0.3  # the best of WSN's on permuted MNIST
# The bound on a method's step as a multiple of a dense step with fused Adam.
STEPS = {"wsn": 1.15, "supsup": 1.15}


def scored_figures(make: Callable[[], Lifelong], task: Task, dense: Thunk) -> Iterator[Figure]:
    """A step of each method's second task beside the dense one, and the selection beside the one of WSN's own code."""
    functions = {"dense": dense, **{name: _step_of(name, make(), task) for name in STEPS}}
    times = measure(functions, STEP_SECONDS)
    for name, bound in STEPS.items():
        yield typically_within(f"{name} step vs dense step, fused Adam", times[name], times["dense"], bound)
    scores = [torch.rand(partition.shape) for partition, _ in make().prunable()]
    found = measure({"ours": lambda: _project(scores), "kthvalue": lambda: _kthvalues(scores)}, SELECTION_SECONDS)
    yield faster("masks of the best scores vs torch.kthvalue", found["ours"], found["kthvalue"], 3.0)


def _step_of(name: str, net: Lifelong, task: Task) -> Thunk:
    """A training step as ``learn`` takes it in the second task, on one batch."""
    kind = METHODS[name]
    config = LPSConfig(epochs=(0, 1, 0))
    method = kind(net, config, kind.reads.options(SHARE))
    method.learn(task)
    transaction, of_task = net.transaction(), config.of_task(2)
    learner = method.learner(task, of_task, transaction.__enter__())
    fit = Fit(learner, task, of_task, Listener(), None, {})
    learner.begin_epoch()
    assert isinstance(task.train, Arrays)
    inputs, labels = next(batches(task.train, len(task.train.labels)))

    def step() -> None:
        fit.step(inputs, labels, 1.0)

    step.transaction = transaction  # type: ignore[attr-defined] # open as long as the steps are taken
    return step


def _project(scores: list[Tensor]) -> list[Tensor]:
    keep, views = [round(SHARE * layer.numel()) for layer in scores], [(1, layer.numel(), 1) for layer in scores]
    masks, _ = project(scores, keep, views, score="signed", output="mask")
    return masks


def _kthvalues(scores: list[Tensor]) -> list[Tensor]:
    """The same masks layer after layer, from the threshold that ``torch.kthvalue`` finds."""
    masks = []
    for layer in scores:
        threshold = layer.view(-1).kthvalue(layer.numel() - round(SHARE * layer.numel()) + 1).values
        masks.append((layer >= threshold).to(layer.dtype))
    return masks
