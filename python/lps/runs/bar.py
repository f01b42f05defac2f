"""The line that a terminal shows while a task is learnt: as much as fits, what matters most first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TextIO

from tqdm import tqdm
from tqdm.utils import disp_len

USUAL_COLUMNS = 80  # of a terminal that does not say how many it has
LEAST_NAME, LEAST_BAR = 6, 8  # columns; a shorter name or bar says nothing


class Place(NamedTuple):
    """Where learning is: ``task 3/10``, the name of the task, ``final 2/6``, ``ETA 00:12``, and figures, of which the
    first are wanted most.
    """

    number: str
    name: str
    phase: str
    eta: str
    figures: tuple[str, ...]


class Bar(tqdm):  # type: ignore[type-arg] # it is generic in its stubs alone
    """Shows how many of a task's steps are done; ``place`` is asked whenever the line is drawn."""

    def __init__(self, steps: int, place: Callable[[], Place], file: TextIO) -> None:
        self.place = place
        super().__init__(total=steps, file=file, leave=False, dynamic_ncols=True)

    def __str__(self) -> str:
        """The line; one column is left free, as some terminals break a line that fills the last."""
        share = min(1.0, self.n / max(1, self.total or 0))
        columns = self.format_dict["ncols"] or USUAL_COLUMNS
        return line(self.place(), share, columns - 1, plain=self.ascii is True)


def line(place: Place, share: float, width: int, *, plain: bool = False) -> str:
    """The line in ``width`` columns, ``plain`` if the terminal has ASCII alone.

    The task's number, the percentage and the ETA are always there; the phase is for 54 columns and more. Then come the
    first figure, the name, the other figures and a bar, each if there is room.
    """
    where = f"{place.phase} {100 * share:3.0f} %"
    room = width - len(f"{place.number}  {where}  {place.eta}")
    if room < 0:
        return f"{place.number}  {100 * share:.0f} %  {place.eta}"
    figures, name = "", ""
    for index, figure in enumerate(place.figures):
        if len(figure) + 2 <= room:
            figures += f"  {figure}"
            room -= len(figure) + 2
        if index == 0 and (name := _shortened(place.name, room - 1, "~" if plain else "…")):
            room -= disp_len(name) + 1
            name = f" {name}"
    filled = ("#" if plain else "█") * round(share * (room - 3))
    bar = f" |{filled.ljust(room - 3)}|" if room - 3 >= LEAST_BAR else ""
    return f"{place.number}{name}  {where}{bar}  {place.eta}{figures}"


def _shortened(name: str, room: int, ending: str) -> str:
    """The name, with an ending for the rest if it is too long; nothing if there is hardly room."""
    if disp_len(name) <= room:
        return name
    if room < LEAST_NAME:
        return ""
    kept = name
    while disp_len(kept) >= room:
        kept = kept[:-1]
    return f"{kept}{ending}"
