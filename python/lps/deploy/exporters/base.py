"""What exporters have in common: the entry of the table, and the way of a network that runs without this package."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lps.artifact.atomic import write_atomically
from lps.batch import picked
from lps.deploy.extraction.trace import argument_names
from lps.deploy.trial import checked_difference, random_inputs
from lps.errors import LPSError, in_a_sentence
from lps.lifelong import Lifelong
from lps.observed import dtype_name
from lps.signature import Input, Signature
from lps.task import Learnt
from lps_kernels.calls import Inputs, arguments
from lps_kernels.cutout import Cutout

MOST_REASON = 200  # letters of what an exporter says
BATCH = 5  # to export and check with; above 1, which exporters take for a constant

Run = Callable[[Inputs], Tensor]
Labels = dict[str, str]  # facts that go with a network into a file that has room for them
# From a cut-out network, inputs, their kind and labels: the content of a file, and what it answers.
Convert = Callable[[Cutout, Inputs, Signature, Labels], tuple[bytes, Run]]


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
    signature = net.metadata.signature(task, dtype_name(net.like))
    assert signature is not None
    inputs = random_inputs(net, task, signature, BATCH)
    with quiet():
        labels = labels_of(net.learnt[task - 1])
        alone = net.extract(task, portable=True)
        try:
            content, run = convert(alone, inputs, signature, labels)
        except (LPSError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # of torch's exporters, which say it in many ways
            lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
            reason = in_a_sentence(" ".join([type(error).__name__, *lines[:2]]))
            raise LPSError(
                f"task {task}: torch cannot export this network's code: {reason[:MOST_REASON]}; often it is len(x), "
                "for which x.shape[0] works, or a branch that depends on the values of a tensor"
            ) from error
    # One example too: the batch size must not have become a constant.
    difference = max(
        checked_difference(f"task {task}: the exported network", run(batch), net(batch, task=task))
        for batch in (inputs, picked(inputs, slice(1)))
    )
    write_atomically(output, content)
    return f"differs from the network by {difference:.1e} of its largest logit at most"


def labels_of(task: Learnt) -> Labels:
    """What the answers of a task mean: its name and, if they have names, its classes as a JSON list."""
    labels = {"task": task.name}
    return {**labels, "class_names": json.dumps(task.class_names)} if task.class_names else labels


def to_program(model: Cutout, inputs: Inputs, signature: Signature) -> torch.export.ExportedProgram:
    """The network as a program of ``torch.export`` for batches of any size, and for any size of dynamic axes.

    Several inputs are its arguments, by their names.
    """
    sizes = [_dynamic(each) for each in signature]
    if isinstance(inputs, Tensor):
        program = torch.export.export(model, (inputs,), dynamic_shapes=(sizes[0],))
    else:
        names = argument_names(signature)
        by_place, by_name = arguments(inputs)
        program = torch.export.export(
            _Signed(model.network, names), by_place, by_name, dynamic_shapes=dict(zip(names, sizes, strict=True))
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names folders of this machine
    return program


def _dynamic(kind: Input) -> dict[int, Any]:
    """The axes of any size: two of them may have to be equal, which torch finds out."""
    return {0: torch.export.Dim("batch"), **{axis + 1: torch.export.Dim.AUTO for axis in kind.dynamic}}


class _Signed(nn.Module):
    """A network that tells the names of its arguments, which torch.export asks for."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network = network

        def forward(*inputs: Tensor, **named: Tensor) -> Tensor:
            logits: Tensor = network(*inputs, **named)
            return logits

        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


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
