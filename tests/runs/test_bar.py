"""The line of progress for every width of a terminal."""

from __future__ import annotations

import re

import pytest
from lps.runs.bar import Place, line
from tqdm.utils import disp_len

NAMES = ("permuted-digits-10", "x", "", "日本語のとても長い名前のタスク", "a name of a task that nobody can read " * 9)


def place(name: str, phase: str = "straight-through 60/60") -> Place:
    return Place("task 10/10", name, phase, "ETA 1:23:45", ("val 98.12 %", "loss 0.1234", "12,345 samples/s"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("plain", [False, True])
def test_it_fits_every_width_and_keeps_the_eta(name: str, plain: bool) -> None:
    for width in range(30, 200):
        for share in (0.0, 0.5, 1.0):
            text = line(place(name), share, width, plain=plain)
            assert disp_len(text) <= width, text
            assert "task 10/10" in text
            assert "ETA 1:23:45" in text
            assert f"{100 * share:.0f} %" in text
            assert text.isascii() or not plain or not name.isascii()


def test_80_columns_hold_the_accuracy_and_the_begin_of_the_name() -> None:
    text = line(place("permuted-digits-10"), 0.5, 79)
    assert text == "task 10/10 permuted-di…  straight-through 60/60  50 %  ETA 1:23:45  val 98.12 %"


def test_more_columns_show_more() -> None:
    wide = line(place("permuted-digits-10"), 0.5, 159)
    assert all(figure in wide for figure in place("").figures)
    assert re.search(r"\|█+ +\|", wide)


def test_a_narrow_terminal_loses_the_phase_first() -> None:
    assert line(place("name"), 0.5, 53) == "task 10/10  straight-through 60/60  50 %  ETA 1:23:45"
    assert line(place("name"), 0.5, 52) == "task 10/10  50 %  ETA 1:23:45"
