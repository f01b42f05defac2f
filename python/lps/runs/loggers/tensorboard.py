"""Events for TensorBoard.

Only the messages and the checksum come from tensorboardX. Its own writer has a thread, which a full disk ends without a
word; the training then waits for it for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from socket import gethostname
from time import time
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboardX.record_writer import masked_crc32c  # type: ignore[import-untyped]
from tensorboardX.summary import scalar  # type: ignore[import-untyped]

from lps.artifact.atomic import Log
from lps.runs.loggers.base import Logger, Start

PREFIX = "events.out.tfevents."
_START = SessionLog(status=SessionLog.START)


class Events(Logger):
    """A new file of events in the run directory, from the first value on; a run that is refused or killed before leaves
    the earlier files as they are.
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._directory = start.directory

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add a value to each of these curves."""
        for name, value in values.items():
            self._log.add(_record({"step": step, "summary": scalar(name, value)}))

    def close(self, *, complete: bool) -> None:
        """Close the file."""
        if "_log" in vars(self):
            self._log.close()

    @cached_property
    def _log(self) -> Log:
        number = len(list(self._directory.glob(f"{PREFIX}*")))  # two files may be of one second
        log = Log(self._directory / f"{PREFIX}{int(time())}.{gethostname()}.{number}")
        # TensorBoard forgets events at the step and after it, but what was told of the last step that was saved stands.
        purge = self.steps + 1 if self.steps else 0
        for content in ({"file_version": "brain.Event:2"}, {"step": purge, "session_log": _START}):
            log.add(_record(content))
        return log


def _record(content: Mapping[str, Any]) -> bytes:
    """A TFRecord: the length and its checksum, the event and its checksum, all numbers little-endian."""
    event: bytes = Event(wall_time=time(), **content).SerializeToString()
    length = struct.pack("<Q", len(event))
    checksums = (struct.pack("<I", masked_crc32c(data)) for data in (length, event))
    return b"".join((length, next(checksums), event, next(checksums)))
