"""``python -m lps.export FILE --task T --format {torch,onnx,lps}``: one task for use elsewhere.

``torch`` writes a program of ``torch.export`` (.pt2) and ``onnx`` an ONNX model, both of the cut-out network, with
standard operators only and for batches of any size: they run without this package. ``lps`` writes a file like the
original one, with the one task in it. Nothing is written before it was checked.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from pathlib import Path

from lps.cli import COMMANDS, Parser, check_output, guarded
from lps.deploy.exporters import EXPORTERS, check_available, default_output, export_task
from lps.file_options import add_backbone, add_task, load_for

PROG = "lps.export"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['export'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    add_task(parser)
    parser.add_argument("--format", choices=list(EXPORTERS), required=True, help="what to write")
    parser.add_argument("--output", type=str, metavar="PATH", help="by default <FILE>-task<T> and the format's ending")
    parser.add_argument("--input-shape", type=str, metavar="N,N,...", help="of one example, if FILE does not tell it")
    add_backbone(parser)
    options = parser.parse_args(arguments)
    check_available(options.format)
    file = Path(options.file)
    if options.output is not None:
        check_output(options.output, [file])
    net = load_for(options)
    task = net.check_task(options.task)
    default = default_output(file, task, options.format)
    output = check_output(str(default) if options.output is None else options.output, [file])
    checked = export_task(net, task, output, options.format, source=file, input_shape=options.input_shape)
    print(f"{output}  {output.stat().st_size:,} bytes  {checked}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
