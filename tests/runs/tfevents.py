"""Reading event files as TensorBoard does, up to the first record that is not whole."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from lps.runs.loggers.tensorboard import PREFIX
from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboardX.record_writer import masked_crc32c  # type: ignore[import-untyped]


def event_files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{PREFIX}*"))


def events_in(file: Path) -> tuple[list[Any], int]:
    """The events of a file, and how many bytes follow the last whole one."""
    content, place, events = file.read_bytes(), 0, []
    while place + 12 <= len(content):
        length, checksum = struct.unpack_from("<QI", content, place)
        if place + 16 + length > len(content):
            break
        assert checksum == masked_crc32c(content[place : place + 8])
        data = content[place + 12 : place + 12 + length]
        (checksum,) = struct.unpack_from("<I", content, place + 12 + length)
        assert checksum == masked_crc32c(data)
        events.append(Event.FromString(data))
        place += 16 + length
    return events, len(content) - place
