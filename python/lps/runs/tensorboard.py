"""Events for TensorBoard.

Only the messages and the checksum come from tensorboardX. Its own writer has a thread, which a full disk ends without a
word; the training then waits for it for ever.
"""

from __future__ import annotations

import struct
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboardX.record_writer import masked_crc32c  # type: ignore[import-untyped]
from tensorboardX.summary import scalar  # type: ignore[import-untyped]

from lps.artifact.atomic import Log

PREFIX = "events.out.tfevents."


class Events:
    """A new file of events in a directory; events of earlier files at the step ``purge`` and after it are to be
    forgotten.
    """

    def __init__(self, directory: Path, purge: int) -> None:
        number = len(list(directory.glob(f"{PREFIX}*")))  # two files may be of one second
        self._log = Log(directory / f"{PREFIX}{int(time())}.{gethostname()}.{number}")
        self._add(file_version="brain.Event:2")
        self._add(step=purge, session_log=SessionLog(status=SessionLog.START))

    def add(self, name: str, value: float, step: int) -> None:
        """Add a value of the curve of this name."""
        self._add(step=step, summary=scalar(name, value))

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def _add(self, **content: Any) -> None:
        """Append a TFRecord: the length and its checksum, the event and its checksum, all numbers little-endian."""
        event: bytes = Event(wall_time=time(), **content).SerializeToString()
        length = struct.pack("<Q", len(event))
        checksums = (struct.pack("<I", masked_crc32c(data)) for data in (length, event))
        self._log.add(b"".join((length, next(checksums), event, next(checksums))))
