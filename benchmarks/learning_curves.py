"""The accuracies of a run as a picture: one line per task, from when it was learnt to the end."""

from __future__ import annotations

import json
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 64, 150, 62, 44
INK, FAINT, GRID = "#24292f", "#6e7781", "#e6e8eb"


def draw_run(results: dict[str, Any]) -> str:
    """The picture as SVG: accuracy over the tasks learnt so far."""
    matrix, count = results["accuracy"], len(results["accuracy"])
    values = [value for row in matrix for value in row if value is not None]
    step = 0.001 if max(values) - min(values) < 0.01 else 0.01
    low, high = step * int(min(values) / step - 1), min(1.0, step * int(max(values) / step + 2))

    def x(after: int) -> float:
        return LEFT + (after - 1) * (WIDTH - LEFT - RIGHT) / max(1, count - 1)

    def y(accuracy: float) -> float:
        return TOP + (high - accuracy) * (HEIGHT - TOP - BOTTOM) / (high - low)

    size, separate = results["artifact_bytes"] / 1e6, results["separate_bytes"] / 1e6
    title = f"{results['benchmark']}: {count} tasks, average {100 * results['average_accuracy']:.2f} %"
    below = (
        f"forgetting {100 * results['forgetting']:.2f} %; one file of {size:.1f} MB instead of "
        f"{count} networks of {separate:.1f} MB together"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>',
        f'<text x="12" y="41" font-size="13" fill="{FAINT}">{escape(below)}</text>',
    ]
    for tick in range(round((high - low) / step) + 1):
        accuracy = low + tick * step
        lines += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(accuracy):.1f}" y2="{y(accuracy):.1f}" stroke="{GRID}"/>',
            f'<text x="{LEFT - 8}" y="{y(accuracy) + 4:.1f}" text-anchor="end" fill="{FAINT}">'
            f"{100 * accuracy:.{0 if step == 0.01 else 1}f} %</text>",
        ]
    labels = _apart([y(matrix[-1][task]) for task in range(count)])
    for task in range(count):
        colour = f"hsl({round(360 * task / count)} 55% 42%)"
        points = " ".join(f"{x(after + 1):.1f},{y(matrix[after][task]):.1f}" for after in range(task, count))
        lines += [
            f'<text x="{x(task + 1):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{FAINT}">'
            f"{task + 1}</text>",
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{x(task + 1):.1f}" cy="{y(matrix[task][task]):.1f}" r="3.5" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 10}" y="{labels[task] + 4:.1f}" fill="{colour}">'
            f"task {task + 1}: {100 * matrix[-1][task]:.2f} %</text>",
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines += [
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="{FAINT}">test accuracy after task</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _apart(heights: list[float], least: float = 14.0) -> list[float]:
    """The same heights, moved so that labels do not overlap and stay above the axis."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + least)
    floor = float(HEIGHT - BOTTOM)
    for i in reversed(order):
        placed[i] = min(placed[i], floor)
        floor = placed[i] - least
    return placed


def write_run(results: Path, picture: Path) -> None:
    """Draw the run whose results.json this is."""
    try:
        drawn = draw_run(json.loads(results.read_text()))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{results}: expected the results.json of a run, got {type(error).__name__}: {error}"
        ) from None
    picture.write_text(drawn)
