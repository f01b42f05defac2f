"""``python -m lps.diff A B``: which tasks of two files answer alike, bit for bit, and which are in only one of them.

Two tasks answer alike if they have one digest: that of all weights, statistics and heads that they run with, which is
computed anew from each file. As in diff(1) the exit code is 0 if the files have the same tasks under the same numbers
and names, 1 if they differ, and 2 if they could not be compared.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lps.cli import COMMANDS, REFUSED, Parser, guarded
from lps.errors import LPSError

if TYPE_CHECKING:
    from lps.task import Learnt

PROG = "lps.diff"
ALIKE, DIFFERENT = 0, 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['diff'].capitalize()}.")
    parser.add_argument("first", type=str, metavar="A", help="a model.lps")
    parser.add_argument("second", type=str, metavar="B", help="another one")
    options = parser.parse_args(arguments)
    from lps.artifact.read import load_tensors
    from lps.runs.progress import columns

    try:
        first, second = (load_tensors(file).learnt for file in (options.first, options.second))
    except LPSError as error:
        error.exit_code = REFUSED  # 1 says that they differ
        raise
    rows = _rows(first, second)
    print(columns([("A", "B", "task", "answers"), *rows]))
    return ALIKE if all(answers == "alike" for *_, answers in rows) else DIFFERENT


def _rows(first: Sequence[Learnt], second: Sequence[Learnt]) -> list[tuple[str, str, str, str]]:
    """A row per task: its numbers in both files, its name, and how its answers compare.

    Tasks are matched by what they answer, then by name.
    """
    pairs = _matched(first, second, lambda task, other: task.digest == other.digest and task.name == other.name)
    pairs = _matched(first, second, lambda task, other: task.digest == other.digest, pairs)
    pairs = _matched(first, second, lambda task, other: task.name == other.name, pairs)
    rows = []
    for index, task in enumerate(first):
        if index not in pairs:
            rows.append((str(index + 1), "-", task.name, "only in A"))
            continue
        other = second[pairs[index]]
        name = task.name if task.name == other.name else f"{task.name} / {other.name}"
        rows.append((str(index + 1), str(pairs[index] + 1), name, _answers(index, task, pairs[index], other)))
    left = [index for index in range(len(second)) if index not in pairs.values()]
    return [*rows, *(("-", str(index + 1), second[index].name, "only in B") for index in left)]


def _answers(index: int, task: Learnt, place: int, other: Learnt) -> str:
    if task.digest != other.digest:
        return "differ"
    changes = ["renamed"] * (task.name != other.name) + ["moved"] * (index != place)
    changes += ["other class names"] * (task.class_names != other.class_names)
    return ", ".join(["alike", *changes])


def _matched(
    first: Sequence[Learnt],
    second: Sequence[Learnt],
    alike: Callable[[Learnt, Learnt], bool],
    before: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Places in B by those in A: those before, and for every other task of A the first one left in B that is alike."""
    pairs = dict(before or {})
    for index, task in enumerate(first):
        left = (place for place in range(len(second)) if place not in pairs.values())
        place = next((place for place in left if alike(task, second[place])), None)
        if index not in pairs and place is not None:
            pairs[index] = place
    return pairs


if __name__ == "__main__":
    sys.exit(main())
