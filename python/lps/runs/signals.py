"""SIGINT, SIGTERM and SIGHUP as a request to stop: the current step is finished and the state saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from lps.errors import StoppedError

_SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, _SIGHUP) if number is not None)


class Stoppable(Protocol):
    """What can be asked to stop, as a checkpoint."""

    stop: bool


class Request:
    """Which signal asked to stop, 0 for none, and whom; before there is a checkpoint, a signal stops at once."""

    number = 0
    checkpoint: Stoppable | None = None

    def stopped(self, sentence: str) -> StoppedError:
        """The error to raise, with the exit code that shells give for the signal."""
        error = StoppedError(sentence)
        error.exit_code = 128 + (self.number or signal.SIGINT)
        return error


@contextmanager
def stop_on_signals() -> Iterator[Request]:
    """Within this block a signal sets ``stop`` of the request's checkpoint; a second one interrupts at once.

    The handlers replace any earlier ones, SIG_IGN too: a shell makes background jobs ignore SIGINT. An ignored SIGHUP
    stays so, as ``nohup`` wants it.
    """
    request = Request()

    def handle(number: int, _frame: FrameType | None) -> None:
        first = not request.number
        request.number = request.number or number
        if request.checkpoint is None or not first:
            raise KeyboardInterrupt
        request.checkpoint.stop = True

    handled = [number for number in SIGNALS if number != _SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield request
    except KeyboardInterrupt:
        if request.checkpoint is not None:
            raise
        raise request.stopped("interrupted before it began to learn") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
