"""``python -m lps.infer FILE --task T INPUT ...``: classify arrays and images with one task of a file.

The task runs cut out of the network, as a smaller one; ``--dense`` runs the whole network with the task's weights, and
``--benchmark`` measures both.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from lps.artifact.atomic import write_atomically
from lps.artifact.read import load
from lps.cli import COMMANDS, Parser, between, check_output, guarded, use_device, whole
from lps.data import Raw, raw
from lps.data.inputs import Form, ImageFile, InputFile, input_batches, open_inputs
from lps.deploy.speed import compare
from lps.errors import ConfigError
from lps.export import input_shape, random_inputs
from lps.lifelong import Lifelong
from lps.runs.settings import MOST_THREADS

PROG = "lps.infer"
SWITCHES = ("--benchmark", "--dense", "--help", "-h")

Row = dict[str, str | int | float]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    options = _parse(arguments)
    output = None if options.output is None else check_output(options.output, [options.file, *options.inputs])
    device = use_device(options.device, options.threads)
    net = load(options.file).to(device)
    net.check_task(options.task)
    classes = net.learnt[options.task - 1].classes
    if not 1 <= options.top <= classes:
        raise ConfigError(f"--top: expected 1 to {classes}, the classes of task {options.task}, got {options.top}")
    shape = input_shape(net, Path(options.file), options.input_shape)
    inputs = random_inputs(net, options.task, shape, 1 if options.inputs else options.batch_size)
    form = Form(tuple(shape), inputs.dtype, _raw_form(net, options.task))
    files = list(open_inputs(map(Path, options.inputs), form))
    if form.raw is None and any(isinstance(file, ImageFile) for file in files):
        print(
            f"{PROG}: {options.file} does not say how images become inputs: pixels are scaled to 0..1", file=sys.stderr
        )
    if options.benchmark:
        if files:
            _, inputs = next(input_batches(files, options.batch_size))
        print(compare(net, options.task, inputs.to(device)))
        return 0
    rows = _classify(net, options.task, files, options)
    text = _json(rows) if options.format == "json" else _csv(rows)
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomically(output, text.encode())
    return 0


def _parse(arguments: list[str]) -> Any:
    parser = Parser(PROG, f"{COMMANDS['infer'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument(
        "inputs", type=str, nargs="*", default=[], metavar="INPUT", help=".npy files, images, folders of images"
    )
    parser.add_argument("--task", type=whole, required=True, metavar="T", help="the task, counted from 1")
    parser.add_argument("--format", choices=["csv", "json"], default="csv", help="of the answers")
    parser.add_argument("--output", type=str, metavar="PATH", help="file to write; by default the standard output")
    parser.add_argument("--top", type=whole, default=1, metavar="K", help="give the K best classes")
    parser.add_argument("--batch-size", type=between(1, 2**31 - 1), default=128, metavar="N", help="examples at a time")
    parser.add_argument("--dense", action="store_true", help="run the whole network instead of the task's part")
    parser.add_argument("--benchmark", action="store_true", help="measure both, on INPUT or on random inputs")
    parser.add_argument("--input-shape", type=str, metavar="N,N,...", help="of one example, if FILE does not tell it")
    parser.add_argument("--device", type=str, default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--threads", type=between(1, MOST_THREADS), metavar="N", help="threads of torch; by default torch's choice"
    )
    options = parser.parse_args(_options_first(arguments))
    if options.benchmark and (options.output or options.dense):
        parser.error("--benchmark: it classifies nothing and measures both networks; leave out --output and --dense")
    if not options.benchmark and not options.inputs:
        parser.error("INPUT: expected .npy files, images or folders of images, got none")
    return options


def _options_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments in an order that argparse understands.

    In ``FILE --task 3 INPUT`` it takes FILE for all the positional arguments that there are.
    """
    options: list[str] = []
    places: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            places += rest
        elif not argument.startswith("-"):
            places.append(argument)
        else:
            options.append(argument)
            if argument not in SWITCHES and "=" not in argument:
                options += islice(rest, 1)  # its value
    return [*options, "--", *places] if places else options


def _raw_form(net: Lifelong, task: int) -> Raw | None:
    """How the data of the task become inputs, if the file names the benchmark that the task comes from."""
    origin = net.metadata.origin(task)
    if origin.stream is None:
        return None
    return raw(origin.stream.benchmark, origin.task, seed=origin.stream.seed, options=origin.stream.options)


@torch.no_grad()
def _classify(net: Lifelong, task: int, files: Sequence[InputFile], options: Any) -> list[Row]:
    net.activate(task)
    run: nn.Module = net if options.dense else net.extract(task, batch_size=options.batch_size)
    rows = []
    with tqdm(total=sum(map(len, files)), unit=" examples", disable=None, leave=False) as bar:
        for places, inputs in input_batches(files, options.batch_size):
            logits = run(inputs.to(options.device))
            best = logits.double().softmax(1).topk(options.top)
            for (path, index), shares, classes in zip(places, best.values.tolist(), best.indices.tolist(), strict=True):
                rows.append(_row(path, index, shares, classes))
            bar.update(len(places))
    return rows


def _row(path: Path, index: int, shares: list[float], classes: list[int]) -> Row:
    """The answer for one example; what follows the best class is numbered from 2."""
    row: Row = {"input": str(path), "index": index}
    for place, (number, share) in enumerate(zip(classes, shares, strict=True), start=1):
        suffix = "" if place == 1 else str(place)
        row[f"class{suffix}"] = number
        row[f"probability{suffix}"] = float(f"{share:.6g}")  # what float32 knows of it
    return row


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json(rows: Sequence[Row]) -> str:
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    sys.exit(main())
