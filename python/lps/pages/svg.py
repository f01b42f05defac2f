"""Figures as SVG: text, lines, areas and axes, in colours that the page and a file of its own both know.

Colours are classes, so that one figure serves light and dark: ``ink`` and ``faint`` are texts, ``grid`` lines, ``c0``
to ``c5`` marks. Every text has a contrast of at least 4.5 to the background, every mark of 3 (WCAG 2.2, AA); a test
measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

# Of light and of dark.
COLOURS = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1f2328", "#e8eaed"),
    "faint": ("#59636e", "#a3adb8"),
    "grid": ("#d9dee3", "#343a42"),
    "c0": ("#0b62b8", "#5aa9f5"),
    "c1": ("#b5470b", "#f08a4b"),
    "c2": ("#1a7a44", "#4cc27f"),
    "c3": ("#8a3ea8", "#c98be0"),
    "c4": ("#a02c4a", "#ee7f9c"),
    "c5": ("#5c6470", "#9aa4b1"),
}
MARKS = 6  # c0 to c5
# Of marks: square, diamond, triangle.
CORNERS: dict[int, list[tuple[float, float]]] = {
    1: [(-4, -4), (4, -4), (4, 4), (-4, 4)],
    2: [(0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)],
    3: [(0, -5), (5, 4), (-5, 4)],
}
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


def colour_rules() -> str:
    """CSS of a page: variables for light and dark, and the classes of the figures."""
    light, dark = (";".join(f"--{name}:{pair[i]}" for name, pair in COLOURS.items()) for i in range(2))
    return "\n".join(
        [
            f":root{{color-scheme:light dark;{light}}}",
            f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}",
            f"@media print{{:root{{{light}}}}}",
            _class_rules({name: f"var(--{name})" for name in COLOURS}),
        ]
    )


def _class_rules(colour: Mapping[str, str]) -> str:
    return "\n".join(
        [
            f".ink{{fill:{colour['ink']}}}.faint{{fill:{colour['faint']}}}.paper{{fill:{colour['paper']}}}",
            f".grid{{stroke:{colour['grid']};stroke-width:1}}.axis{{stroke:{colour['faint']};stroke-width:1}}",
            ".dash{stroke-dasharray:5 4}.band{fill-opacity:.18}",
            *(f".c{i}{{fill:{colour[f'c{i}']}}}" for i in range(MARKS)),
            *(f".l{i}{{stroke:{colour[f'c{i}']};fill:none;stroke-width:2}}" for i in range(MARKS)),
        ]
    )


@dataclass(frozen=True)
class Figure:
    """A picture with its name (of its files and its place in the page), what it shows in words, and its numbers."""

    name: str
    title: str
    text: str
    svg: str
    data: Sequence[Sequence[object]]  # a heading and rows

    def file(self) -> str:
        """The picture as a file of its own, in the light colours: few programs know variables."""
        head, _, body = self.svg.partition(">")
        rules = _class_rules({name: light for name, (light, _) in COLOURS.items()})
        behind = f'<style>{rules}</style><rect width="100%" height="100%" class="paper"/>'
        return f'{head} xmlns="http://www.w3.org/2000/svg">{behind}{body}\n'


class Drawing:
    """Collects the elements of a picture."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def _add(self, tag: str, content: str = "", /, **attributes: float | str) -> None:
        written = " ".join(f'{name.replace("_", "-")}="{_n(value)}"' for name, value in attributes.items())
        self._parts.append(f"<{tag} {written}>{content}</{tag}>" if content else f"<{tag} {written}/>")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        css: str = "faint",
        anchor: str = "start",
        size: float = 12,
        *,
        bold: bool = False,
    ) -> None:
        """A line of text; ``anchor`` is start, middle or end."""
        weight = {"font_weight": "600"} if bold else {}
        self._add("text", escape(text), x=x, y=y, **{"class": css}, text_anchor=anchor, font_size=size, **weight)

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str = "grid") -> None:
        """A line from one point to another."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, **{"class": css})

    def bar(self, x: float, y: float, width: float, height: float, css: str, note: str = "") -> None:
        """A rectangle; ``note`` is shown where a pointer rests on it."""
        size = {"width": max(width, 0), "height": max(height, 0)}
        self._add("rect", _note(note), x=x, y=y, **size, **{"class": css})

    def cell(self, x: float, y: float, width: float, height: float, fill: str, note: str = "") -> None:
        """A rectangle of a colour that is the same in light and dark."""
        self._add("rect", _note(note), x=x, y=y, width=width, height=height, fill=fill)

    def cell_text(self, x: float, y: float, text: str, fill: str, size: float) -> None:
        """A text in the middle of a cell, of a colour of its own."""
        self._add("text", escape(text), x=x, y=y, fill=fill, text_anchor="middle", font_size=size)

    def path(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A line through points."""
        self._add("polyline", points=_listed(points), **{"class": css})

    def area(self, points: Sequence[tuple[float, float]], css: str, note: str = "") -> None:
        """A filled area."""
        self._add("polygon", _note(note), points=_listed(points), **{"class": css})

    def mark(self, x: float, y: float, shape: int, css: str, note: str = "") -> None:
        """A mark whose shape goes with its colour: circle, square, diamond, triangle."""
        if shape % 4 == 0:
            self._add("circle", _note(note), cx=x, cy=y, r=4, **{"class": css})
        else:
            self.area([(x + dx, y + dy) for dx, dy in CORNERS[shape % 4]], css, note)

    def image(self, x: float, y: float, width: float, height: float, address: str) -> None:
        """A picture of pixels, which stay sharp."""
        form = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated"}
        self._add("image", x=x, y=y, width=width, height=height, href=address, **form)

    def svg(self, name: str, title: str) -> str:
        """The picture; who cannot see it hears the title."""
        return (
            f'<svg role="img" aria-label="{escape(title)}" id="{escape(name)}-picture" '
            f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{_n(self.width)}" font-family="{FONT}">'
            + "".join(self._parts)
            + "</svg>"
        )


class Axis:
    """Maps values to a side of a picture, with round numbers to mark."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool = False) -> None:
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(max(value, self.low))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the axis."""
        if self.logarithmic:
            powers = [10.0**power for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1)]
            marks = [factor * power for power in powers for factor in ((1, 2, 5) if len(powers) <= 3 else (1,))]
            within = [mark for mark in marks if self.low * 0.999 <= mark <= self.high * 1.001]
            return within[:: max(1, ceil(len(within) / most))]
        step = round_step((self.high - self.low) / most)
        first_tick = ceil(self.low / step - 1e-9)
        return [tick * step for tick in range(first_tick, floor(self.high / step + 1e-9) + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    if least <= 0 or not isfinite(least):
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def around(values: Sequence[float], least: float) -> tuple[float, float]:
    """A range with a little room around values, at least ``least`` wide, that ends at round numbers."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.08, (least - (high - low)) / 2)
    step = round_step((high - low + 2 * room) / 10)
    return step * floor((low - room) / step), step * ceil((high + room) / step)


def shown(value: float) -> str:
    """A number as an axis has it: no more digits than it needs."""
    return f"{value:.6g}" if abs(value) < 1e6 and (value == 0 or abs(value) >= 1e-3) else f"{value:.0e}"


def _n(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _listed(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _note(note: str) -> str:
    return f"<title>{escape(note)}</title>" if note else ""
