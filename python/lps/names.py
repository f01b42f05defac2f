"""Names of tasks: which ones may be given, and which task a number or a name means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lps.errors import ConfigError, escaped
from lps.options import is_unicode, shown

if TYPE_CHECKING:
    from lps.task import Learnt

LISTED = 10  # names in a refusal, of at most 127


def check_name(name: object) -> None:
    """Refuse what cannot name a task: a file has to hold it, and somebody has to ask for it."""
    if not isinstance(name, str) or not name or not is_unicode(name):
        raise ConfigError(f"task: name: expected text that is not empty and is Unicode, got {shown(repr(name))}")


def check_class_names(task: str, names: Sequence[object]) -> None:
    """Refuse names of classes that no file can hold."""
    for name in names:
        if not isinstance(name, str) or not is_unicode(name):
            raise ConfigError(f"task {escaped(task)}: class_names: expected Unicode text, got {shown(repr(name))}")


def check_new_name(learnt: Sequence[Learnt], name: str, own: int = 0) -> None:
    """Refuse a name that another learnt task has; the task that is to have it may have a number already."""
    check_name(name)
    for number, task in enumerate(learnt, 1):
        if task.name == name and number != own:
            raise ConfigError(f"task: name: {shown(name)} is the name of task {number} already; choose another")


def number_of(learnt: Sequence[Learnt], task: object) -> int:
    """The number, counted from 1, of the task that a number or a name means; it need not exist.

    Text of digits, as a flag gives it, is a number; where that could also be meant as the name of another task it is
    refused.
    """
    if isinstance(task, int) and not isinstance(task, bool):
        return task
    if not isinstance(task, str):
        raise ConfigError(f"Lifelong: task: expected a number or a name, got {shown(repr(task))}")
    named = [number for number, known in enumerate(learnt, 1) if known.name == task]
    if len(named) > 1:  # in files from before names had to differ
        numbers = ", ".join(map(str, named))
        raise ConfigError(f"Lifelong: task: {shown(task)} is the name of tasks {numbers}; pass a number")
    if re.fullmatch(r"[+-]?[0-9]{1,9}", task):
        number = int(task)
        if named not in ([], [number]):
            raise ConfigError(
                f"Lifelong: task: {task} is a number and the name of task {named[0]}; rename that task (lps edit)"
            )
        return number
    if not named:
        raise ConfigError(f"Lifelong: task: expected {_known(learnt)}, got {shown(task)}")
    return named[0]


def _known(learnt: Sequence[Learnt]) -> str:
    names = ", ".join(shown(task.name) for task in learnt[:LISTED])
    more = ", ..." if len(learnt) > LISTED else ""
    return f"1 to {len(learnt)} or a name ({names}{more})"


def label(number: int, name: str) -> str:
    """A task in a sentence, as in ``task 3 (faces)``, whatever its name holds."""
    return f"task {number} ({escaped(name)})"
