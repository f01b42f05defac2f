"""Chromium, told what to do over pipes by its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# The browser reads commands from 3 and writes to 4.
START = """
import os, sys
read, write = (os.dup(int(number)) for number in sys.argv[1:3])
read, write = os.dup(read), os.dup(write)  # above 4
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """A page in the browser."""

    def __init__(self, to: int, found: int) -> None:
        self._to, self._from, self._rest, self._number = to, found, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []  # errors and refusals of the page's policy
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.tell("Runtime.enable")
        self.tell("Log.enable")

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(message["params"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def run(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        done = self.tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, at most 20 seconds."""
        look = f"if ({condition}) done(true); else if (!left--) done(false); else setTimeout(look, 50);"
        promise = f"new Promise((done) => {{ let left = 400; const look = () => {{ {look} }}; look(); }})"
        assert self.run(promise), condition


@contextmanager
def browsing(folder: Path) -> Iterator[Tab]:
    """A tab of a browser that ends with the block."""
    read, to = os.pipe()
    found, write = os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
    line = [sys.executable, "-c", START, str(read), str(write), str(BROWSER), *options]
    process = subprocess.Popen(line, pass_fds=(read, write), stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    try:
        yield Tab(to, found)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to)
        os.close(found)
