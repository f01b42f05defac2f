"""Figures with a bound: one group a part of the project, each a function in :data:`GROUPS`.

A group yields its figures as it measures them and raises :class:`Unmeasurable` where that makes no sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.figures.figure import Figure, Unmeasurable
from benchmarks.figures.kernels import kernels

GROUPS: dict[str, Callable[[], Iterator[Figure]]] = {"kernels": kernels}

__all__ = ["GROUPS", "Figure", "Unmeasurable", "print_figures"]


def print_figures(group: str) -> bool:
    """Print every figure of the group beside its bound as soon as it is measured; returns whether all hold."""
    held = []
    for figure in GROUPS[group]():
        print(figure, flush=True)
        held.append(figure.holds)
    short = held.count(False)
    print(f"{short} of {len(held)} figures fall short" if short else f"all {len(held)} figures hold")
    return short == 0
