"""Figures with a bound: one group per part of the project, each a function in :data:`GROUPS`.

A group yields its figures as it measures them, and :class:`Skipped` in place of one whose peer does not run here; it
raises :class:`UnmeasurableError` where measuring makes no sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures.evidence import evidence_figures
from benchmarks.figures.figure import Figure, Skipped, UnmeasurableError
from benchmarks.figures.inference import inference_figures
from benchmarks.figures.kernels import kernel_figures
from benchmarks.figures.picture import write_picture
from benchmarks.figures.training import training_figures

GROUPS: dict[str, Callable[[], Iterator[Figure | Skipped]]] = {
    "kernels": kernel_figures,
    "training": training_figures,
    "inference": inference_figures,
    "evidence": evidence_figures,
}

__all__ = ["GROUPS", "Figure", "Skipped", "UnmeasurableError", "print_figures"]


def print_figures(group: str, picture: Path | None) -> bool:
    """Print every figure of the group beside its bound as soon as it is measured; returns whether all hold."""
    results = []
    for result in GROUPS[group]():
        print(result, flush=True)
        results.append(result)
    figures = [result for result in results if isinstance(result, Figure)]
    noisy = sum(figure.noisy for figure in figures)
    if noisy:
        print(f"note: in {noisy} of {len(figures)} the calls differ by more than 2x (p10..p90): was the machine idle?")
    if picture is not None:
        write_picture(picture, figures, f"figures {group}: two threads, measured in one run")
    short = sum(not figure.holds for figure in figures)
    verdict = f"{short} of {len(figures)} figures fall short" if short else f"all {len(figures)} figures hold"
    skipped = len(results) - len(figures)
    print(f"{verdict}; {skipped} skipped" if skipped else verdict)
    return short == 0
