"""``python -m lps.export FILE --task T --format {torch,onnx,lps}``: one task for use elsewhere.

``torch`` writes a program of ``torch.export`` (.pt2) and ``onnx`` an ONNX model, both of the cut-out network, with
standard operators only and for batches of any size: they run without this package. ``lps`` writes a file like the
original one, with the one task in it. Nothing is written before it was checked.
"""

from __future__ import annotations

import importlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lps.artifact.atomic import write_atomically
from lps.artifact.one_task import one_task
from lps.artifact.read import load
from lps.cli import COMMANDS, Parser, check_output, guarded
from lps.errors import ConfigError, LPSError
from lps.lifelong import Lifelong

PROG = "lps.export"
SUFFIXES = {"torch": ".pt2", "onnx": ".onnx", "lps": ".lps"}

BATCH = 5  # to export and check with; above 1, which exporters take for a constant
OPSET = 18
PROTOBUF_BYTES = 2**31  # a protobuf message, so also an ONNX file without others beside it, is smaller than this

# Largest difference to the network in the file, as a share of its largest logit, in steps (eps) of the dtype. Other
# kernels sum in another order: sums of some thousand products in dozens of layers then differ by some tens of steps,
# and what is wrong in earnest by far more than a thousand (1.2e-4 in float32).
TOLERANCE = 1000

MOST = 2**31  # of a size of an input: more than any memory holds

Run = Callable[[Tensor], Tensor]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['export'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument("--task", type=int, required=True, metavar="T", help="the task, counted from 1")
    parser.add_argument("--format", choices=list(SUFFIXES), required=True, help="what to write")
    parser.add_argument("--output", type=str, metavar="PATH", help="by default <FILE>-task<T> and the format's ending")
    parser.add_argument("--input-shape", type=str, metavar="N,N,...", help="of one example, if FILE does not tell it")
    options = parser.parse_args(arguments)
    file = Path(options.file)
    default = file.with_name(f"{file.stem}-task{options.task}{SUFFIXES[options.format]}")
    output = check_output(str(default) if options.output is None else options.output, [file])
    missing = why_no_onnx() if options.format == "onnx" else None
    if missing is not None:
        raise LPSError(f"--format onnx: {missing}; pip install learn-prune-share[export]")
    net = load(file)
    net.check_task(options.task)
    if options.format == "lps":
        one_task(net, options.task).save(output)  # which checks the digest
        checked = "the digest is unchanged"
    else:
        shape = input_shape(net, file, options.input_shape)
        content, difference = _exported(net, options.task, shape, options.format)
        write_atomically(output, content)
        checked = f"differs from the network by {difference:.1e} of its largest logit at most"
    print(f"{output}  {output.stat().st_size:,} bytes  {checked}")
    return 0


def input_shape(net: Lifelong, file: Path, given: str | None) -> list[int]:
    """The shape of one example: what the user says, which the network then knows too, else what the file says."""
    if given is None:
        if net.metadata.input_shape is None:
            raise ConfigError(f"{file}: does not tell the shape of its inputs; pass --input-shape, as in 3,32,32")
        return net.metadata.input_shape
    try:
        sizes = [int(size) for size in given.split(",")]
    except ValueError:
        sizes = [0]
    if not all(0 < size < MOST for size in sizes):
        raise ConfigError(f"--input-shape: expected whole numbers above 0, as in 3,32,32, got {given}")
    net.metadata.input_shape = sizes  # which cutting out makes use of
    return sizes


@torch.no_grad()
def random_inputs(net: Lifelong, task: int, shape: list[int], batch: int) -> Tensor:
    """Random inputs that the network can read; a shape that does not fit is refused."""
    _, weight = next(net.prunable())
    try:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(batch, *shape, generator=generator, dtype=weight.dtype).to(weight.device)
        net(inputs, task=task)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--input-shape: the network cannot read inputs of shape {shape}: {reason}") from None
    return inputs


@torch.no_grad()
def _exported(net: Lifelong, task: int, shape: list[int], kind: str) -> tuple[bytes, float]:
    """The bytes of the exported task and how far its answers are from those of the network."""
    inputs = random_inputs(net, task, shape, BATCH)
    model = net.extract(task, portable=True)
    with quiet():
        content, run = (_onnx if kind == "onnx" else _torch)(model, inputs)
    # One example too: the batch size must not have become a constant.
    differences = (
        checked_difference(f"task {task}: the exported network", run(batch), net(batch, task=task))
        for batch in (inputs, inputs[:1])
    )
    return content, max(differences)


def checked_difference(what: str, got: Tensor, expected: Tensor) -> float:
    """Largest difference of logits to those of the network in the file, as a share of the largest; one that rounding
    does not explain is refused.
    """
    tiny = torch.finfo(expected.dtype).tiny
    difference = float((got - expected).abs().max() / expected.abs().max().clamp(min=tiny))
    if not difference <= TOLERANCE * torch.finfo(expected.dtype).eps:
        raise LPSError(
            f"{what} differs from the one in the file by {difference:.1e} of its largest logit on {len(expected)} "
            "inputs, which rounding does not explain; it is not used; please report it"
        )
    return difference


def _program(model: nn.Module, inputs: Tensor) -> torch.export.ExportedProgram:
    program = torch.export.export(model, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names folders of this machine
    return program


def _torch(model: nn.Module, inputs: Tensor) -> tuple[bytes, Run]:
    """The bytes of a .pt2 file, and what they answer once they are loaded again."""
    file = io.BytesIO()
    torch.export.save(_program(model, inputs), file)
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


def _onnx(model: nn.Module, inputs: Tensor) -> tuple[bytes, Run]:
    """The bytes of an .onnx file, and what ONNX Runtime answers with them."""
    import onnx  # noqa: PLC0415  an optional extra
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415

    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size >= PROTOBUF_BYTES:
        raise ConfigError(f"--format: an ONNX file holds less than 2 GB, got weights of {size:,} bytes; use torch")
    exported = torch.onnx.export(
        _program(model, inputs),
        dynamo=True,
        opset_version=OPSET,
        external_data=False,
        verbose=False,
        input_names=["input"],
        output_names=["logits"],
    )
    assert exported is not None
    proto = exported.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # of use to the exporter only
    foreign = {node.domain for node in proto.graph.node} - {""}
    assert not foreign, f"operators of {foreign} in a portable network"
    content: bytes = proto.SerializeToString()
    onnx.checker.check_model(content, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    return content, lambda batch: torch.from_numpy(session.run(None, {"input": batch.numpy()})[0])


def why_no_onnx() -> str | None:
    """Which package of the extra is missing, and why; None where ONNX files can be written and run."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            return f"{package} cannot be imported ({error})"
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporters from telling users what only their authors can change."""
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


if __name__ == "__main__":
    sys.exit(main())
