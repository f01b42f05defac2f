"""Entries by name, each imported when it is first asked for: a command's help needs the names alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar, cast

Entry = TypeVar("Entry")


class Table(Mapping[str, Entry]):
    """``homes`` says where each entry is, as in ``{"ewc": "lps.methods.ewc:EWC"}``."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> Entry:
        """The entry, imported now."""
        module, _, attribute = self._homes[name].partition(":")
        return cast("Entry", getattr(import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        """Whether there is an entry of this name; imports nothing."""
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._homes)

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._homes)
