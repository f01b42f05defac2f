"""The page with the table."""

from __future__ import annotations

from pathlib import Path

from tests.backbones.cases import table

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
BEGIN, END = "<!-- table -->\n", "\n<!-- /table -->"


def write() -> None:
    """Put the table into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}")


def written() -> str:
    """The table that the page has."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]
