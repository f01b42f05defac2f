"""How fast a cut-out task is beside the whole network."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from lps.batch import examples_in, moved, picked, tensors_of
from lps.data.inputs import InputFile, input_batches
from lps.deploy.trial import checked_difference, random_inputs
from lps.errors import escaped
from lps.lifelong import Lifelong
from lps.observed import seen
from lps.runs.progress import columns
from lps.signature import Signature, text_of
from lps_kernels.calls import Inputs

# Calls of each network: as many as fit into the time, within these bounds; after 5000 the figures no longer change.
SECONDS, LEAST, MOST = 2.0, 10, 5000
WARM_UP = 3


def inputs_to_measure(
    net: Lifelong, task: int, signature: Signature, files: Sequence[InputFile], batch_size: int
) -> Inputs:
    """The first batch of the user's inputs, or random ones if there are no files, on the network's device."""
    if not files:
        return random_inputs(net, task, signature, batch_size)
    _, inputs = next(input_batches(files, batch_size))
    return moved(inputs, next(net.parameters()).device)


@torch.no_grad()
def compare(net: Lifelong, task: int, inputs: Inputs) -> str:
    """Latency of one example and throughput of the whole batch, of the cut-out and of the dense network.

    Both run in turns, so that what else the machine does slows both, and their answers are compared first. Cutting out
    depends on the batch size, so each has a cut-out of its own; the summary is that of the larger one.
    """
    net.eval()
    net.activate(task)
    rows, summary, calls = [("", "best", "median")], "", 0
    one = picked(inputs, slice(1))
    for what, batch in (("latency", one), ("throughput", inputs)):
        small = net.extract(task, batch_size=examples_in(batch))
        summary = small.summary()
        checked_difference(f"task {task}: the cut-out", small(batch), net(batch))
        cut, dense = _in_turns((small, net), batch)
        rows += _rows(what, examples_in(batch), cut, dense)
        calls += len(cut)
    threads = torch.get_num_threads()
    title = f"task {task} ({escaped(net.learnt[task - 1].name)}), cut out for batches of {examples_in(inputs)}"
    read = list(inputs.shape[1:]) if isinstance(inputs, Tensor) else text_of(seen(inputs))
    where = f"{net.like.device}, {threads} thread{'s' * (threads > 1)}, inputs of {read}"
    how = f"{calls} calls of each network, in turns; each cut-out is made for its batch size"
    return f"{title}\n{summary}\n\n{columns(rows)}\n\n{where}; {how}"


def _in_turns(networks: tuple[nn.Module, ...], batch: Inputs) -> list[list[float]]:
    """Seconds of each call of each network."""
    device = next(tensors_of(batch)).device
    times: list[list[float]] = [[] for _ in networks]
    for _ in range(WARM_UP):
        for network in networks:
            network(batch)
    begin = perf_counter()
    while len(times[0]) < LEAST or (perf_counter() - begin < SECONDS and len(times[0]) < MOST):
        for network, taken in zip(networks, times, strict=True):
            _wait(device)
            start = perf_counter()
            network(batch)
            _wait(device)
            taken.append(perf_counter() - start)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(what: str, batch: int, cut: list[float], dense: list[float]) -> list[tuple[str, str, str]]:
    def row(name: str, times: list[float]) -> tuple[str, str, str]:
        label = f"{what}, batch {batch}: {name}"
        return label, _shown(what, batch, min(times)), _shown(what, batch, median(times))

    best, usual = min(dense) / min(cut), median(dense) / median(cut)
    ratios = ("  speed-up of the cut-out", f"{best:.2f}x", f"{usual:.2f}x")
    return [row("cut-out", cut), row("dense network", dense), ratios]


def _shown(what: str, batch: int, seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if what == "latency" else f"{batch / seconds:,.0f} /s"
