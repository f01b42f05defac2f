"""Runs that differ from task 2 on begin with copies of one task 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from lps.artifact.atomic import is_temporary, write_atomically
from lps.runs.directory import check_unused
from lps.runs.lock import LOCK, locked, locks
from lps.runs.run import train
from lps.runs.settings import CONFIG, Settings, first_task_alone, read_settings, settings_from

TURNS = ".{}.turns"  # beside the directory of task 1: the lock of those who wait for it


def begin_with_first_task(settings: Settings, output: Path, first: Path, device: torch.device) -> None:
    """Make ``output`` a run with these settings whose task 1 is learnt: a copy of the run of task 1 in ``first``.

    If task 1 is not learnt there yet, this is done first; of several processes one learns it and the others wait.
    """
    _learn_first_task(settings, first, device)
    with locked(output):
        files = [file for file in first.iterdir() if file.is_file() and file.name != LOCK and not is_temporary(file)]
        if not {file.name for file in output.iterdir()} <= {LOCK, *(file.name for file in files)} - {CONFIG}:
            check_unused(output)  # what is there is not half a copy
        for file in files:
            if file.name != CONFIG:
                write_atomically(output / file.name, file.read_bytes())
        # Last of all: without it there is no run to go on with, and the copy is made again.
        write_atomically(output / CONFIG, replace(settings, output=None).to_yaml().encode())


def _learn_first_task(settings: Settings, first: Path, device: torch.device) -> None:
    alone = first_task_alone(settings)
    first.parent.mkdir(parents=True, exist_ok=True)
    with (first.parent / TURNS.format(first.name)).open("w") as turns:
        fcntl = locks()
        fcntl.lockf(turns, fcntl.LOCK_EX)
        before = settings_from(read_settings(first / CONFIG)) if (first / CONFIG).is_file() else None
        train(alone, first, before, device)
