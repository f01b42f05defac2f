"""The two kinds of sets: rows are methods (``lps.compare``), or values of settings (``lps.sweep``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from urllib.parse import unquote

from lps import paper
from lps.data import BENCHMARKS
from lps.methods import METHODS
from lps.runs.report import Kind, Outcome

ALONE = "single"  # what forward transfer is measured against
OURS = "lps"  # what is compared with every other method, seed by seed

_KNOWN = list(METHODS)


def kind_of(rows: Iterable[str]) -> Kind:
    """The kind of a set with these rows: those of a sweep are ``name=value``."""
    return SWEEP if all("=" in row for row in rows) else COMPARE


def values_of(row: str) -> dict[str, str]:
    """The values that a row of a sweep is named for, by what was varied."""
    pairs = [part.partition("=") for part in row.split(",")]
    return {name: unquote(value) for name, _, value in pairs}


def number_in(text: str) -> float:
    """The number that a value is, or infinity."""
    try:
        return float(text)
    except ValueError:
        return inf


def _method_order(row: str) -> tuple[int, str]:
    return _KNOWN.index(row) if row in _KNOWN else len(_KNOWN), row


def _printed_of_method(outcome: Outcome) -> paper.Row | None:
    settings = outcome.settings
    if settings is None or settings.tasks != BENCHMARKS[settings.benchmark].tasks:
        return None
    return paper.METHODS.get(settings.benchmark, {}).get(settings.method)


def _varied(rows: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in values_of(row)))


def _value_order(row: str) -> list[tuple[str, float, str]]:
    """By the names of what was varied, then by value: numbers by size, then texts."""
    return [(name, number_in(text), text) for name, text in values_of(row).items()]


def _printed_of_values(outcome: Outcome) -> paper.Row | None:
    settings, values = outcome.settings, values_of(outcome.row)
    if settings is None or settings.method != "lps" or settings.tasks != BENCHMARKS[settings.benchmark].tasks:
        return None
    if set(values) == {"capacity"}:
        return paper.CAPACITY.get(settings.benchmark, {}).get(number_in(values["capacity"]))
    if "beta" in values and set(values) <= {"pattern", "beta"}:
        return paper.SHARES.get(settings.benchmark, {}).get((settings.pattern, number_in(values["beta"])))
    return None


COMPARE = Kind(lambda _rows: ["method"], lambda row: {"method": row}, _method_order, _printed_of_method, ALONE, OURS)
SWEEP = Kind(_varied, values_of, _value_order, _printed_of_values)
