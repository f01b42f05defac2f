"""A server in a process of its own, as its users run it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.command import ENVIRONMENT, command


class Server:
    """The process, where it listens, what it logs, and a client."""

    def __init__(self, *arguments: str | Path, cwd: Path | None = None) -> None:
        line = command("lps.serve", *arguments, "--port", "0", "--threads", "1")
        self.process = subprocess.Popen(line, cwd=cwd, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.address = self.event("serving")["address"]
        except BaseException:
            self.end()
            raise
        self.port = int(self.address.rpartition(":")[2])
        self.client = httpx.Client(base_url=self.address, timeout=60)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of this name."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def event(self, name: str, number: int = 1, seconds: float = 60) -> dict[str, Any]:
        """The log's event of this name, once it is there."""
        self.until(lambda: len(self.events(name)) >= number or self.process.poll() is not None, seconds)
        found = self.events(name)
        assert len(found) >= number, "".join(self.lines)
        return found[number - 1]

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for something."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "".join(self.lines)
            time.sleep(0.02)

    def stop(self) -> int:
        """Stop it as a service manager does; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def end(self) -> None:
        """Let nothing of it stay."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def serving(*arguments: str | Path, cwd: Path | None = None) -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server(*arguments, cwd=cwd)
    try:
        with server.client:
            yield server
    finally:
        server.end()
