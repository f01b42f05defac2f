"""What exporters have in common: the entry of the table, and the way of a network that runs without this package."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lps.artifact.atomic import write_atomically
from lps.deploy.trial import checked_difference, random_inputs
from lps.lifelong import Lifelong
from lps.task import Learnt

BATCH = 5  # to export and check with; above 1, which exporters take for a constant

Run = Callable[[Tensor], Tensor]
Labels = dict[str, str]  # facts that go with a network into a file that has room for them
# From a network, inputs and labels: content of a file, its answers.
Convert = Callable[[nn.Module, Tensor, Labels], tuple[bytes, Run]]


def _nothing_missing() -> str | None:
    return None


@dataclass(frozen=True)
class Exporter:
    """A format: the ending of its files and how a task of a network is written.

    ``write`` takes the network, the task and the path, checks before it writes and says what was checked. ``missing``
    says what keeps the format from being written here and what to do about it.
    """

    suffix: str
    write: Callable[[Lifelong, int, Path], str]
    needs_input_shape: bool
    missing: Callable[[], str | None] = _nothing_missing


@torch.no_grad()
def write_portable(net: Lifelong, task: int, output: Path, convert: Convert) -> str:
    """Cut the task out with torch's operators alone, convert it, and write it if its answers are the network's."""
    assert net.metadata.input_shape is not None
    inputs = random_inputs(net, task, net.metadata.input_shape, BATCH)
    with quiet():
        content, run = convert(net.extract(task, portable=True), inputs, labels_of(net.learnt[task - 1]))
    # One example too: the batch size must not have become a constant.
    difference = max(
        checked_difference(f"task {task}: the exported network", run(batch), net(batch, task=task))
        for batch in (inputs, inputs[:1])
    )
    write_atomically(output, content)
    return f"differs from the network by {difference:.1e} of its largest logit at most"


def labels_of(task: Learnt) -> Labels:
    """What the answers of a task mean: its name and, if they have names, its classes as a JSON list."""
    labels = {"task": task.name}
    return {**labels, "class_names": json.dumps(task.class_names)} if task.class_names else labels


def to_program(model: nn.Module, inputs: Tensor) -> torch.export.ExportedProgram:
    """The network as a program of ``torch.export`` for batches of any size."""
    program = torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names folders of this machine
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what torch's exporters tell their own authors."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
