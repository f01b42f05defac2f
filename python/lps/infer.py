"""``python -m lps.infer FILE --task T INPUT ...``: classify arrays and images with one task of a file.

The task runs cut out of the network, as a smaller one; ``--dense`` runs the whole network with the task's weights, and
``--benchmark`` measures both.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from lps.artifact.atomic import write_atomically
from lps.cli import COMMANDS, Parser, between, check_output, guarded, use_device, whole
from lps.errors import complain
from lps.file_options import add_backbone, add_task, load_for
from lps.runs.settings import MOST_THREADS

PROG = "lps.infer"
FORMATS = ("csv", "json")  # those of lps.deploy.classify.TEXTS
SWITCHES = ("--benchmark", "--dense", "--help", "-h")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    options = _parse(arguments)
    from lps.deploy.classify import TEXTS, classify, open_files, unanswered
    from lps.deploy.speed import compare, inputs_to_measure
    from lps.deploy.trial import use_signature

    output = None if options.output is None else check_output(options.output, [options.file, *options.inputs])
    device = use_device(options.device, options.threads)
    net = load_for(options).to(device)
    task = net.check_task(options.task)
    net.require_backbone()
    signature = use_signature(net, task, options.file, options.input_shape)
    files, scaled = open_files(net, task, signature, options.inputs)
    if scaled:
        print(
            f"{PROG}: {options.file} does not say how images become inputs: pixels are scaled to 0..1", file=sys.stderr
        )
    if options.benchmark:
        print(compare(net, task, inputs_to_measure(net, task, signature, files, options.batch_size)))
        return 0
    answers = classify(net, task, files, top=options.top, batch_size=options.batch_size, dense=options.dense)
    text = TEXTS[options.format](answers)
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomically(output, text.encode())
    if notice := unanswered(answers):
        complain(PROG, notice)
    return 0


def _parse(arguments: list[str]) -> Any:
    parser = Parser(PROG, f"{COMMANDS['infer'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument(
        "inputs",
        type=str,
        nargs="*",
        default=[],
        metavar="INPUT",
        help=".npy files, images, folders of them, .npz files",
    )
    add_task(parser)
    parser.add_argument("--format", choices=FORMATS, default="csv", help="of the answers")
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
    add_backbone(parser)
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


if __name__ == "__main__":
    sys.exit(main())
