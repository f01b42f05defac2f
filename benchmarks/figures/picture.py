"""Figures as a picture: one bar a figure, as far beyond or short of its bound as it is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.figures.figure import Figure

ROW, LABEL, SCALE, END = 26, 380, 130, 130
GOOD, BAD, INK, FAINT = "#2a7f62", "#c0392b", "#24292f", "#8b949e"
# A bar longer than this many times its bound is cut: how far beyond no longer matters.
LONGEST = 3.0


def margin(figure: Figure) -> float:
    """How many times better than its bound: 1 is the bound itself."""
    if figure.value == figure.bound:  # also where both are 0
        return 1.0
    return figure.value / figure.bound if figure.relation == ">=" else figure.bound / figure.value


def draw(figures: Sequence[Figure], title: str) -> str:
    """The picture as SVG."""
    width, height = LABEL + int(LONGEST * SCALE) + END, ROW * (len(figures) + 3)
    bound_x = LABEL + SCALE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>',
    ]
    for index, figure in enumerate(figures):
        top = ROW * (index + 1) + 12
        middle = top + ROW // 2 + 1
        length = min(margin(figure), LONGEST) * SCALE
        colour = GOOD if figure.holds else BAD
        value = f"{figure.value:.2f}{figure.unit} ({figure.relation} {figure.bound:g}{figure.unit})"
        lines += [
            f'<text x="{LABEL - 10}" y="{middle}" text-anchor="end" fill="{INK}">{escape(figure.what)}</text>',
            f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{ROW - 8}" rx="2" fill="{colour}"/>',
            f'<text x="{LABEL + length + 6:.1f}" y="{middle}" fill="{INK}">{escape(value)}</text>',
        ]
    bottom = ROW * (len(figures) + 1) + 10
    lines += [
        f'<line x1="{bound_x}" y1="{ROW + 6}" x2="{bound_x}" y2="{bottom}" stroke="{INK}" stroke-dasharray="4 3"/>',
        f'<text x="{bound_x}" y="{bottom + 18}" text-anchor="middle" fill="{FAINT}">the bound</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def write_picture(path: Path, figures: Sequence[Figure], title: str) -> None:
    """Write the picture to a file."""
    path.write_text(draw(figures, title))
