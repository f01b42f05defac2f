"""``python -m lps.info FILE``: what a file holds, for people or, with ``--json``, for programs.

The file is checked as a whole, digests included, but its network is not needed and nothing of it is imported or made.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lps.cli import COMMANDS, Parser, guarded
from lps.errors import escaped, in_a_sentence

if TYPE_CHECKING:
    from lps.artifact.facts import NetworkFacts

PROG = "lps.info"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['info'].capitalize()}.")
    parser.add_argument("file", type=str, metavar="FILE", help="a model.lps")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args(arguments)
    from lps.artifact.facts import facts_of
    from lps.artifact.read import load_tensors

    facts = facts_of(load_tensors(options.file))
    size = Path(options.file).stat().st_size
    if options.json:
        print(json.dumps({"file": options.file, "bytes": size, **asdict(facts)}, indent=2))
    else:
        print(_text(options.file, size, facts))
    return 0


def _text(file: str, size: int, facts: NetworkFacts) -> str:
    """The facts for people; names of tasks and classes are anybody's, and are escaped."""
    from lps.runs.progress import columns, percent

    layers = "layer" if facts.layers == 1 else "layers"
    network = "the user's own" if facts.architecture is None else f"{facts.architecture} {facts.arguments}"
    stream = "" if facts.stream is None else f"{facts.stream.benchmark}, seed {facts.stream.seed}"
    lines = [
        ("file", f"{file}, {size:,} bytes"),
        ("network", f"{in_a_sentence(network)}, {facts.features} features"),
        ("weights", f"{facts.weights:,} prunable in {facts.layers} {layers}, {percent(facts.free, 1)} free"),
        ("settings", f"pattern {facts.pattern}, sharing {facts.sharing}, norms {facts.norms}"),
        ("input", "; ".join(dict.fromkeys(task.inputs or "not known" for task in facts.tasks))),
        ("data", in_a_sentence(stream) or "the user's own"),
    ]
    heading = "\n".join(f"{name:9} {escaped(value)}" for name, value in lines)
    rows = [("task", "name", "classes", "accuracy", "val", "share", "density", "bytes", "digest")]
    rows += [
        (
            str(task.number),
            task.name,
            str(task.classes),
            percent(task.accuracy),
            percent(task.validation),
            percent(task.share, 1),
            percent(task.density, 1),
            f"{task.bytes:,}",
            task.digest[:16],
        )
        for task in facts.tasks
    ]
    named = "\n".join(
        f"task {task.number}: {', '.join(map(escaped, task.class_names))}" for task in facts.tasks if task.class_names
    )
    return f"{heading}\n\n{columns(rows)}" + (f"\n\n{named}" if named else "")


if __name__ == "__main__":
    sys.exit(main())
