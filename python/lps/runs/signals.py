"""SIGINT and SIGTERM as a request to stop: the current step is finished and the state saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lps.runs.checkpoint import Checkpoint

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Request:
    """Which signal asked to stop; 0 for none."""

    number = 0


@contextmanager
def stop_on_signals(checkpoint: Checkpoint) -> Iterator[Request]:
    """Within this block a signal sets ``checkpoint.stop``; a second one interrupts at once.

    The handlers replace any earlier ones, SIG_IGN too: a shell makes background jobs ignore SIGINT.
    """
    request = Request()

    def handle(number: int, _frame: FrameType | None) -> None:
        if request.number:
            raise KeyboardInterrupt
        request.number = number
        checkpoint.stop = True

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
