"""The figures of a page, from what runs have left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan

from lps.pages.svg import MARKS, Axis, Drawing, Figure, around, shown
from lps.paper import Row

WIDTH = 760.0

# Heat maps go from light to dark, the same in light and dark pages; texts on them are black or white.
LIGHT, DARK = (233, 242, 250), (8, 48, 107)
BLACK, WHITE = "#000000", "#ffffff"
NOTHING = "#8a929c"  # a free weight


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2.2), from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def heat(share: float) -> tuple[str, str]:
    """The colour of a share from 0 to 1, and that of a text on it."""
    share = min(max(share, 0.0), 1.0)
    fill = "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(LIGHT, DARK, strict=True))
    return fill, BLACK if contrast(fill, BLACK) >= contrast(fill, WHITE) else WHITE


@cache
def task_colour(number: int) -> str:
    """The colour of a task, counted from 1: neighbours differ by the golden angle and in brightness; all have a
    contrast of at least 3 to the light and the dark background.
    """
    hue = (210 + 137.508 * (number - 1)) % 360 / 360
    wanted = (0.15, 0.27)[number % 2]
    low, high = 0.0, 1.0  # of the lightness that gives this luminance
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if luminance(_from_hsl(hue, 0.6, middle)) < wanted else (low, middle)
    return _from_hsl(hue, 0.6, low)


def _from_hsl(hue: float, saturation: float, lightness: float) -> str:
    spread = saturation * min(lightness, 1 - lightness)

    def part(offset: int) -> int:
        place = (offset + hue * 12) % 12
        return round(255 * (lightness - spread * max(-1, min(place - 3, 9 - place, 1))))

    return f"#{part(0):02x}{part(8):02x}{part(4):02x}"


Matrix = Sequence[Sequence[float | None]]


def ends_of(matrices: Iterable[Matrix]) -> tuple[float, float]:
    """The smallest and the largest value; 0 and 1 where there is none."""
    known = [value for matrix in matrices for row in matrix for value in row if value is not None]
    return (min(known), max(known)) if known else (0.0, 1.0)


def heat_map(
    name: str, title: str, text: str, values: Matrix, down: str, across: str, ends: tuple[float, float]
) -> Figure:
    """A square of percentages; a row per line of ``values``, with gaps for None. ``down`` and ``across`` name them,
    ``ends`` are the values of the lightest and the darkest colour.
    """
    count, (low, high) = max(len(row) for row in values), ends
    side = min(54.0, (WIDTH - 120) / count)
    tall = min(side, 30.0)
    left, top = 92.0, 40.0
    picture = Drawing(max(left + side * count + 20, 330), top + tall * len(values) + 46)
    picture.text(left, 16, across, "faint")
    picture.text(12, 16, down, "faint")
    every = 1 if side >= 22 else 5
    for column in range(count):
        if column == 0 or (column + 1) % every == 0:
            picture.text(left + side * (column + 0.5), 33, str(column + 1), anchor="middle", size=11)
    for line, row in enumerate(values):
        y = top + tall * line
        if line == 0 or (line + 1) % every == 0:
            picture.text(left - 10, y + tall / 2 + 4, str(line + 1), anchor="end", size=11)
        for column, value in enumerate(row):
            if value is None:
                continue
            fill, ink = heat((value - low) / (high - low) if high > low else 0.5)
            x = left + side * column
            note = f"{down} {line + 1}, {across} {column + 1}: {100 * value:.2f} %"
            picture.cell(x + 1, y + 1, side - 2, tall - 2, fill, note)
            if side >= 34:
                picture.cell_text(x + side / 2, y + tall / 2 + 4, f"{100 * value:.1f}", ink, 11)
    _scale(picture, left, top + tall * len(values) + 14, low, high)
    data = [[down, *(f"{across} {column + 1}" for column in range(count))]]
    data += [[str(line), *("" if value is None else value for value in row)] for line, row in enumerate(values, 1)]  # type: ignore[list-item]
    return Figure(name, title, text, picture.svg(name, f"{title}. {text}"), data)


def _scale(picture: Drawing, x: float, y: float, low: float, high: float) -> None:
    """What the colours mean."""
    steps = 24
    for step in range(steps):
        picture.cell(x + 5 * step, y, 5.2, 10, heat(step / (steps - 1))[0])
    picture.text(x - 8, y + 10, f"{100 * low:.1f} %", anchor="end", size=11)
    picture.text(x + 5 * steps + 8, y + 10, f"{100 * high:.1f} %", size=11)


@dataclass(frozen=True)
class Panel:
    """Accuracies of one row per task, their deviations, the average and what the paper prints."""

    label: str
    accuracy: Sequence[float]
    deviation: Sequence[float]
    average: float
    paper: Row | None  # in percent, as the paper has it


def percentage(share: float) -> str:
    """With two digits; a dash where there is none."""
    return "-" if isnan(share) else f"{100 * share:z.2f} %"


def bars(name: str, title: str, panels: Sequence[Panel]) -> Figure:
    """A small chart of bars per row, all with one scale."""
    values = [value for panel in panels for value in panel.accuracy if not isnan(value)]
    values += [number / 100 for panel in panels if panel.paper for number in (panel.paper.average, *panel.paper.tasks)]
    low, high = around(values or [0.0, 1.0], 0.01)
    low, high = max(low, 0.0), min(high, 1.0)
    columns = min(3, len(panels))
    wide, tall = WIDTH / columns, 176.0
    picture = Drawing(WIDTH, tall * -(-len(panels) // columns))
    for place, panel in enumerate(panels):
        x0, y0 = wide * (place % columns), tall * (place // columns)
        left, right, top, bottom = x0 + 46, x0 + wide - 14, y0 + 44, y0 + tall - 28
        axis = Axis(low, high, bottom, top)
        picture.text(left, y0 + 16, panel.label, "ink", size=13, bold=True)
        printed = "" if panel.paper is None else f", paper {panel.paper.average:.2f} %"
        picture.text(left, y0 + 33, f"average {percentage(panel.average)}{printed}", size=11)
        for tick in axis.ticks(4):
            picture.line(left, axis(tick), right, axis(tick))
            picture.text(left - 6, axis(tick) + 4, f"{shown(round(100 * tick, 6))}", anchor="end", size=10)
        slot = (right - left) / max(1, len(panel.accuracy))
        every = 1 if slot >= 15 else 5
        for task, (value, deviation) in enumerate(zip(panel.accuracy, panel.deviation, strict=True)):
            x = left + slot * task
            if (task + 1) % every == 0 or task == 0:
                picture.text(x + slot / 2, bottom + 14, str(task + 1), anchor="middle", size=10)
            if isnan(value):
                continue
            spread = "" if isnan(deviation) else f" ± {100 * deviation:.2f}"
            note = f"{panel.label}, task {task + 1}: {100 * value:.2f}{spread} %"
            picture.bar(x + slot * 0.14, axis(value), slot * 0.72, bottom - axis(value), "c0", note)
            if not isnan(deviation):
                middle = x + slot / 2
                ends = axis(min(value + deviation, high)), axis(max(value - deviation, low))
                picture.line(middle, ends[0], middle, ends[1], "axis")
        if panel.paper is not None:
            height = axis(panel.paper.average / 100)
            picture.line(left, height, right, height, "l1 dash")
            for task, number in enumerate(panel.paper.tasks[: len(panel.accuracy)]):
                x, y, note = left + slot * (task + 0.5), axis(number / 100), f"paper, task {task + 1}: {number:.2f} %"
                picture.mark(x, y, 1, "c1", note)
    data: list[list[object]] = [["row", "task", "accuracy", "deviation", "paper", "paper_average"]]
    for panel in panels:
        average, tasks = panel.paper or (None, ())
        for task, (value, deviation) in enumerate(zip(panel.accuracy, panel.deviation, strict=True)):
            of_task = tasks[task] / 100 if task < len(tasks) else ""
            data.append([panel.label, task + 1, value, deviation, of_task, "" if average is None else average / 100])
    text = f"Test accuracy of every task after the last one, in percent, from {shown(round(100 * low, 6))} % up"
    text += "; thin lines are deviations over seeds"
    text += (
        ", dashed lines the averages that the paper prints, marks its tasks."
        if any(panel.paper for panel in panels)
        else "."
    )
    said = "; ".join(f"{panel.label} {percentage(panel.average)}" for panel in panels)
    return Figure(name, title, text, picture.svg(name, f"{title}. Averages: {said}"), data)


@dataclass(frozen=True)
class Curve:
    """A line of a chart: its points and, where there are several runs, the deviations of their values."""

    label: str
    points: Sequence[tuple[float, float]]
    deviations: Sequence[float] = ()
    dashed: bool = False


def curves(
    name: str,
    title: str,
    text: str,
    lines: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    percent: bool = False,
    logarithmic: bool = False,
    marks: bool = True,
    breaks: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Lines over one axis; ``breaks`` are places on it where something begins, with its name, and lines too."""
    lines = [line for line in lines if line.points]
    scale = 100.0 if percent else 1.0
    spread = [
        pair for line in lines for pair in zip(line.points, line.deviations or [0.0] * len(line.points), strict=True)
    ]
    ys = [scale * (y + sign * (0.0 if isnan(d) else d)) for (_, y), d in spread for sign in (-1, 1)]
    xs = [*(x for line in lines for x, _ in line.points), *(at for at, _ in breaks)]
    low, high = (min(ys), max(ys)) if logarithmic else around(ys, 0.5 if percent else 0.0)
    height, left, right, top = 300.0, 62.0, WIDTH - 16, 40.0 + 18 * ((len(lines) - 1) // 4)
    picture = Drawing(WIDTH, height)
    x_axis = Axis(min(xs), max(xs), left + 8, right - 8)
    y_axis = Axis(low, high, height - 44, top, logarithmic=logarithmic)
    for tick in y_axis.ticks():
        picture.line(left, y_axis(tick), right, y_axis(tick))
        picture.text(left - 8, y_axis(tick) + 4, shown(tick), anchor="end", size=11)
    for tick in x_axis.ticks(8):
        picture.text(x_axis(tick), height - 26, shown(tick), anchor="middle", size=11)
    for at, what in breaks:
        picture.line(x_axis(at), top, x_axis(at), height - 44, "grid")
        picture.text(x_axis(at) + 3, top + 10, what, size=10)
    picture.text((left + right) / 2, height - 8, x_label, anchor="middle")
    for place, line in enumerate(lines):
        colour, x, y = place % MARKS, left + 178.0 * (place % 4), 14.0 + 18 * (place // 4)
        if marks:
            picture.mark(x + 5, y - 4, place, f"c{colour}")
        else:
            picture.line(x - 2, y - 4, x + 12, y - 4, f"l{colour}{' dash' if line.dashed else ''}")
        picture.text(x + 16, y, line.label, "ink", size=12)
        points = [(x_axis(px), y_axis(scale * py)) for px, py in line.points]
        _band(picture, line, x_axis, y_axis, scale, colour)
        for piece in _pieces(line.points, points, [at for at, _ in breaks]):
            picture.path(piece, f"l{colour}{' dash' if line.dashed else ''}")
        for (px, py), (sx, sy) in zip(line.points, points, strict=True):
            if marks or len(points) == 1:
                picture.mark(sx, sy, place, f"c{colour}", f"{line.label}: {shown(px)}: {scale * py:.4g}")
    picture.text(12, top - 8, y_label, size=11)
    data: list[list[object]] = [["line", x_label, y_label, "deviation"]]
    for line in lines:
        data += [
            [line.label, x, y, line.deviations[i] if line.deviations else ""] for i, (x, y) in enumerate(line.points)
        ]
    return Figure(name, title, text, picture.svg(name, f"{title}. {text}"), data)


def _pieces(
    values: Sequence[tuple[float, float]], points: Sequence[tuple[float, float]], begins: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """The points of a line, where it is drawn through: between two places at which something begins."""
    pieces: dict[int, list[tuple[float, float]]] = {}
    for (x, _), point in zip(values, points, strict=True):
        pieces.setdefault(sum(x > begin for begin in begins), []).append(point)
    return [piece for piece in pieces.values() if len(piece) > 1]


def _band(picture: Drawing, line: Curve, x_axis: Axis, y_axis: Axis, scale: float, colour: int) -> None:
    known = [(x, y, d) for (x, y), d in zip(line.points, line.deviations, strict=False) if not isnan(d)]
    if len(known) > 1:
        above = [(x_axis(x), y_axis(scale * (y + d))) for x, y, d in known]
        below = [(x_axis(x), y_axis(scale * (y - d))) for x, y, d in reversed(known)]
        picture.area([*above, *below], f"c{colour} band")


def amounts(name: str, title: str, text: str, values: Mapping[str, float], unit: str) -> Figure:
    """A bar per row, from 0, with its number."""
    known = {label: value for label, value in values.items() if not isnan(value)}
    longest = max(len(label) for label in known)
    left = min(300.0, 16 + 7.4 * longest)
    picture = Drawing(WIDTH, 26.0 * len(known) + 12)
    axis = Axis(0.0, max(known.values()) or 1.0, left, WIDTH - 110)
    for place, (label, value) in enumerate(known.items()):
        y = 8 + 26.0 * place
        picture.text(left - 8, y + 14, label, "ink", "end")
        picture.bar(left, y + 3, axis(value) - left, 14, "c0", f"{label}: {value:,.1f} {unit}")
        picture.text(axis(value) + 6, y + 14, f"{value:,.1f} {unit}", "faint")
    data: list[list[object]] = [["row", unit], *([label, value] for label, value in known.items())]
    return Figure(name, title, text, picture.svg(name, f"{title}. {text}"), data)


def stacked(
    name: str, title: str, text: str, layers: Mapping[str, Sequence[float]], pictures: Mapping[str, str]
) -> Figure:
    """A bar per layer, divided among the tasks that own its weights; what is free stays grey. Some layers have a
    picture of their weights below.
    """
    tasks = max(len(shares) for shares in layers.values())
    left, right = 150.0, WIDTH - 12
    shown_pictures = [layer for layer in layers if layer in pictures]
    keys = -(-(tasks + 1) // 12)
    tall = 34.0 + 16 * keys + 24.0 * len(layers)
    side, gap, per_line = 232.0, 16.0, 3
    lines = -(-len(shown_pictures) // per_line)
    picture = Drawing(WIDTH, tall + lines * (side / 2 + 34) + 6)
    for number in range(tasks + 1):
        x, y = 12 + 61.0 * (number % 12), 6 + 16.0 * (number // 12)
        picture.cell(x, y, 10, 10, NOTHING if number == tasks else task_colour(number + 1))
        picture.text(x + 14, y + 9, "free" if number == tasks else f"task {number + 1}", size=10.5)
    data: list[list[object]] = [["layer", *(f"task {number}" for number in range(1, tasks + 1)), "free"]]
    for place, (layer, shares) in enumerate(layers.items()):
        y, x = 18 + 16.0 * keys + 24.0 * place, left
        picture.text(left - 8, y + 13, _short(layer), "ink", "end", size=11)
        free = max(0.0, 1 - sum(shares))
        for number, share in enumerate([*shares, free], 1):
            wide = share * (right - left)
            owner = "free" if number > len(shares) else f"task {number}"
            if wide > 0:
                fill = NOTHING if number > len(shares) else task_colour(number)
                picture.cell(x, y, max(wide - 1, 0.4), 17, fill, f"{layer}, {owner}: {100 * share:.1f} %")
            x += wide
        data.append([layer, *shares, free])
    for place, layer in enumerate(shown_pictures):
        x, y = 12 + (side + gap) * (place % per_line), tall + (side / 2 + 34) * (place // per_line)
        picture.text(x, y + 12, _short(layer), "ink", size=11)
        picture.image(x, y + 18, side, side / 2, pictures[layer])
    return Figure(name, title, text, picture.svg(name, f"{title}. {text}"), data)


def _short(layer: str) -> str:
    return layer if len(layer) <= 20 else f"…{layer[-19:]}"
