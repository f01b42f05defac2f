"""Scenarios of Continuum (https://continuum.readthedocs.io) as tasks; needs the package ``continuum``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lps.adapters.examples import VALIDATION, make_task
from lps.errors import DataError
from lps.task import Task


def tasks_of(
    train: Iterable[Any], test: Iterable[Any], *, name: str = "task", validation: float = VALIDATION, seed: int = 0
) -> list[Task]:
    """The tasks of a scenario, from its training and its test side, with labels from 0 in each.

    A share ``validation`` of the training examples is held out.
    """
    tasks, sides = [], (list(train), list(test))
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"Continuum: expected as many test tasks as training tasks, got {[len(side) for side in sides]}"
        )
    for number, (learn, judge) in enumerate(zip(*sides, strict=True), 1):
        classes = [int(label) for label in learn.get_classes()]
        tasks.append(make_task(f"{name}-{number}", classes, learn, judge, validation=validation, seed=seed))
    return tasks
