"""Reading the file of an offline run of W&B: a log of LevelDB, whose records are W&B's messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # bytes; the file begins with a header of its own of the same size


def records_in(file: Path) -> Iterator[Any]:
    """The whole records of the file."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 # optional

    content, place, parts = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


def history_in(file: Path) -> list[dict[str, Any]]:
    """What was logged, without W&B's own values."""
    return [
        {name: value for name, value in _items(record.history.item) if not name.startswith("_")}
        for record in records_in(file)
        if record.WhichOneof("record_type") == "history"
    ]


def config_in(file: Path) -> dict[str, Any]:
    """The settings of the run."""
    config: dict[str, Any] = {}
    for record in records_in(file):
        if record.WhichOneof("record_type") == "run":
            config |= _items(record.run.config.update)
        if record.WhichOneof("record_type") == "config":
            config |= _items(record.config.update)
    return config


def _items(items: Any) -> list[tuple[str, Any]]:
    return [("/".join(item.nested_key) or item.key, json.loads(item.value_json)) for item in items]
