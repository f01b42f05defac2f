"""Requests that get no answer, each with a status of HTTP and a sentence for the client."""

from __future__ import annotations


class RefusedError(Exception):
    """What is wrong with a request, in one sentence; the client can put it right."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class BusyError(Exception):
    """There is more to do than the limits allow; the same request may be answered in ``seconds``."""

    status = 503

    def __init__(self, sentence: str, seconds: int = 1) -> None:
        super().__init__(sentence)
        self.seconds = seconds
