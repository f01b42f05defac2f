"""Connections with bounds that uvicorn's own lack: on the time and size of a request's head, on bodies that nobody
reads, and on how many connections there are. When the server stops, a request that is on its way on an idle connection
is still answered.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 1 << 15  # bytes of a request line and headers
HEAD_SECONDS = 10.0  # from the first byte of a head, or from the connection, to its last
LINGER = 1.0  # seconds for a client to read an answer that came before the request's end
LAST_SECONDS = 0.5  # in which a stopping server still takes a request on an idle connection

_LATE = "the head of the request took longer than it may"
_LONG = f"the head of the request is longer than {MOST_HEAD:,} bytes"
_MANY = "there are too many connections; ask again"


def bounded(most: int) -> type[HttpToolsProtocol]:
    """The class of connections of which there are at most so many."""

    class Connection(_Connection):
        most_connections = most

    return Connection


class _Connection(HttpToolsProtocol):  # type: ignore[misc]
    most_connections = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: TimerHandle | None = None
        self._head = 0  # bytes of a head that has not ended
        self._in_body = False
        self._stopping = False

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(b"503 Service Unavailable", _MANY, b"retry-after: 1\r\n")
        else:
            self._after(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._in_body:
            self._head += len(data)
            if self._timer is None:
                self._after(HEAD_SECONDS, self._late)
        super().data_received(data)
        if not self._in_body and self._head > MOST_HEAD and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", _LONG)

    def on_headers_complete(self) -> None:
        self._in_body, self._head = True, 0
        self._cancel()
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._in_body = False
        self._cancel()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._after(LINGER, self.transport.close)

    def shutdown(self) -> None:
        self._stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self.loop.call_later(seconds, action)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self._head:
            self._refuse(b"408 Request Timeout", _LATE)
        else:
            self.transport.close()

    def _refuse(self, status: bytes, sentence: str, more: bytes = b"") -> None:
        if self.transport.is_closing():
            return
        body = f'{{"error":"{sentence}"}}'.encode()
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n"
        self.transport.write(head % (status, len(body), more) + body)
        self.transport.close()
