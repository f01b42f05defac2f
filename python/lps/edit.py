"""``python -m lps.edit FILE ... -o OUT``: other names for tasks, and the removal of the last one.

All other tasks stay as they are, to the bit: their digests are computed anew before the file is written, and from the
file afterwards. The network's code is not needed. Only the last task can be removed, because later ones reuse the
weights of earlier ones; to replace it, remove it and learn another in its place.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import argparse
import re
import sys

from lps.cli import COMMANDS, Parser, check_output, guarded
from lps.errors import LPSError

PROG = "lps.edit"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['edit'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument(
        "--rename", type=_renaming, action="append", default=[], metavar="T=NAME", help="T is a number or a name"
    )
    parser.add_argument("--drop-last", action="store_true", help="remove the last task; its weights are free again")
    parser.add_argument("-o", "--output", type=str, required=True, metavar="OUT", help="file to write; may be FILE")
    options = parser.parse_args(arguments)
    if not (options.rename or options.drop_last):
        parser.error("expected --rename T=NAME or --drop-last, got neither")
    from lps.artifact.read import load_tensors
    from lps.names import label

    output = check_output(options.output, [])
    net = load_tensors(options.file)
    numbers = [net.check_task(task) for task, _ in options.rename]  # before any has another name
    if len(set(numbers)) < len(numbers):
        parser.error("--rename: expected one new name per task, got two")
    done = []
    for number, (_, name) in zip(numbers, options.rename, strict=True):
        before = net.learnt[number - 1].name
        net.rename(number, name)
        done.append(f"{label(number, before)} is now {label(number, name)}")
    if options.drop_last:
        last = label(len(net.learnt), net.learnt[-1].name)
        done.append(f"{last} was removed: {net.drop_last():,} weights are free again")
    net.save(output)
    if load_tensors(output).learnt != net.learnt:
        raise LPSError(f"{output}: was written, but does not hold these tasks; check the disk")
    alike = ", ".join(map(str, range(1, len(net.learnt) + 1)))
    print("\n".join([*done, f"{output}  {output.stat().st_size:,} bytes  digests of tasks {alike} are unchanged"]))
    return 0


def _renaming(text: str) -> tuple[int | str, str]:
    """Digits are always a number here: where that is also the name of another task, this is the way out."""
    task, equals, name = text.partition("=")
    if not (task and equals and name):
        raise argparse.ArgumentTypeError(f"expected T=NAME, as in 3=faces, got {text}")
    return (int(task) if re.fullmatch("[0-9]{1,9}", task) else task), name


if __name__ == "__main__":
    sys.exit(main())
