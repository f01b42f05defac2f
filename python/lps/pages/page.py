"""The page: one HTML file with everything in it, which loads nothing."""

from __future__ import annotations

import csv
import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from lps.artifact.atomic import write_atomically
from lps.errors import LPSError, complain, in_a_sentence
from lps.pages import PAGE
from lps.pages.collect import Section, Set, collect, sections
from lps.pages.svg import Figure, colour_rules
from lps.runs.table import Table
from lps_kernels import __version__

OPEN = 2  # so many figures of a section are seen at once; the others are unfolded by a click
ON_ONE_PAGE = 8  # figures of a section that need no folding
IN_TITLE = 2  # so many titles of sets stand in the page's own; of more their number


def data_of(figure: Figure) -> str:
    """The numbers of a figure as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(figure.data)
    return text.getvalue()


def make_page(sets: Sequence[Set]) -> tuple[str, list[Figure]]:
    """The page, and the figures in it."""
    found = [(group, sections(group)) for group in sets]
    titles = list(dict.fromkeys(group.title for group in sets))
    title = "; ".join(titles) if len(titles) <= IN_TITLE else f"{len(sets)} sets of runs"
    rules, script = colour_rules() + _resource("page.css"), _resource("page.js")
    body = "".join(part for group, parts in found for part in _set(group, parts))
    links = "".join(f'<li><a href="#{group.name}">{escape(group.title)}</a></li>' for group, _ in found)
    # No address may be loaded: what a run directory says can at worst be shown.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)} - learn-prune-share</title><style>{rules}</style></head><body>"
        f'<a class="skip" href="#results">To the results</a><header><h1>{escape(title)}</h1>'
        f'<p class="note">One network, many tasks: what {_count(sets)} have shown.</p>'
        + (f'<nav aria-label="Sets of runs"><ul>{links}</ul></nav>' if len(found) > 1 else "")
        + f'</header><main id="results">{body}<p id="status" role="status" class="note"></p></main>'
        f"<footer>Written by lps.report of learn-prune-share {escape(__version__)}.</footer><script>{script}</script>"
        "</body></html>\n"
    )
    return page, [figure for _, parts in found for part in parts for figure in part.figures]


def report_on(prog: str, directory: Path) -> str | None:
    """Write the page of a run or of a set into its directory; returns its path. What stands in its way is told, but is
    no failure: the results are there without it.
    """
    output = directory / PAGE
    try:
        write_atomically(output, make_page(collect([directory]))[0].encode())
    except (LPSError, OSError) as error:
        complain(prog, f"{output}: is not written: {in_a_sentence(error)}")
        return None
    return str(output)


def _resource(name: str) -> str:
    return files("lps.pages").joinpath(name).read_text(encoding="utf-8")


def _count(sets: Sequence[Set]) -> str:
    runs = [run for group in sets for run in group.report.outcomes]
    complete = sum(run.results is not None for run in runs)
    return f"{complete} runs" if complete == len(runs) else f"{complete} of {len(runs)} runs, the complete ones,"


def _set(group: Set, parts: Sequence[Section]) -> Iterator[str]:
    yield f'<section id="{group.name}" aria-labelledby="{group.name}-title">'
    yield f'<h2 id="{group.name}-title">{escape(group.title)}</h2>'
    for number, table in enumerate(group.report.tables(), 1):
        yield _table(f"{group.name}-table{number}", table)
    for part in parts:
        yield f"<h3>{escape(part.title)}</h3>"
        if part.note:
            yield f'<p class="note">{escape(part.note)}</p>'
        shown = len(part.figures) if len(part.figures) <= ON_ONE_PAGE else OPEN
        yield '<div class="figures">'
        yield from (_figure(figure) for figure in part.figures[:shown])
        yield "</div>"
        yield from (
            f"<details><summary>{escape(figure.title)}</summary>{_figure(figure)}</details>"
            for figure in part.figures[shown:]
        )
    yield "</section>"


def _table(name: str, table: Table) -> str:
    head = "".join(f'<th scope="col"><button type="button">{escape(cell)}</button></th>' for cell in table.rows[0])
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows[1:])
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<h3 id="{name}-title">{escape(table.heading)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">'
        f'<table id="{name}" aria-labelledby="{name}-title"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<p><button type="button" class="copy" data-table="{name}">Copy the table</button></p>{notes}'
    )


def _figure(figure: Figure) -> str:
    address = f"data:text/csv;base64,{b64encode(data_of(figure).encode()).decode()}"
    link = f'<a class="data" download="{figure.name}.csv" href="{address}">numbers (CSV)</a>'
    return (
        f'<figure id="{figure.name}">{figure.svg}<figcaption><strong>{escape(figure.title)}</strong>. '
        f"{escape(figure.text)} {link}</figcaption></figure>"
    )
