"""Tables as plain text, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lps.options import one_line
from lps.runs.progress import columns

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


@dataclass(frozen=True)
class Table:
    """A heading, rows of cells of which the first is the row of headings, and notes below."""

    heading: str
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal."""
        return "\n".join([self.heading, "", columns(self.rows), *(f"\n{note}" for note in self.notes)])

    def markdown(self) -> str:
        """With a heading of the second level."""
        return "\n".join([f"## {self.heading}", "", self.markdown_rows(), *(f"\n{note}" for note in self.notes)])

    def markdown_rows(self) -> str:
        """The rows alone."""
        lines = ["| " + " | ".join(one_line(cell).replace("|", r"\|") for cell in row) + " |" for row in self.rows]
        rule = "|---" + "|---:" * (len(self.rows[0]) - 1) + "|"
        return "\n".join([lines[0], rule, *lines[1:]])

    def tex(self) -> str:
        """A tabular, with heading and notes as comments; needs no packages."""
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in self.rows]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.rows[0]) - 1)}}}"
        body = [begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
        return "\n".join([f"% {self.heading}", *body, *(f"% {note}" for note in self.notes)])


def _tex(cell: str) -> str:
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _TEX.get(found[0], f"\\{found[0]}"), one_line(cell))
