"""Processes on this machine, a few at once."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from signal import SIGTERM
from time import sleep

from lps.launchers.base import Command, Launch, Stop
from lps.runs.signals import stop_on_signals

SECONDS = 0.05  # between two looks at the processes


def launcher(how: Launch) -> Callable[[Sequence[Command]], None]:
    """There is nothing to refuse."""
    return partial(_launch, how)


def _launch(how: Launch, commands: Sequence[Command]) -> None:
    """Run the commands, the next one whenever one has ended. Signals are passed on, so that each saves its state."""
    waiting, running = deque(commands), dict[str, subprocess.Popen[bytes]]()
    with stop_on_signals() as request:
        request.checkpoint = stop = Stop()
        asked = False
        try:
            while running or (waiting and not stop.stop):
                while waiting and len(running) < (how.jobs or 1) and not stop.stop:
                    command = waiting.popleft()
                    running[command.name] = command.start()
                if stop.stop and not asked:
                    asked = True
                    _signal(running.values(), request.number)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    del running[name]
                    how.ended(name)
                sleep(SECONDS)
        except BaseException as error:  # a second signal, or an error of our own
            _signal(running.values(), request.number or SIGTERM)
            for process in running.values():
                process.wait()
            if not isinstance(error, KeyboardInterrupt):
                raise
        if stop.stop:
            raise request.stopped("interrupted")


def _signal(processes: Iterable[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        process.send_signal(number)
