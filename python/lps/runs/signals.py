"""SIGINT and SIGTERM as a request to stop: the step at hand is finished and its state saved."""

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

    The handlers are set whatever was there before: a shell lets the commands of a background job ignore SIGINT.
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
