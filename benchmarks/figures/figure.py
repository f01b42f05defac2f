"""A measured number beside the bound that it has to keep."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Timing


class UnmeasurableError(Exception):
    """The figures would say nothing: the message is one sentence that says why."""


@dataclass(frozen=True)
class Figure:
    """A ratio of the best times of ours and a peer; ``relation`` to the bound is ``>=`` or ``<=``."""

    what: str
    value: float
    median_value: float  # the same ratio of the p50s
    relation: str
    bound: float
    ours: Timing
    peer: Timing

    @property
    def holds(self) -> bool:
        """Whether the unrounded value keeps the bound."""
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound

    def __str__(self) -> str:
        """One line: what, value, bound, verdict, times."""
        verdict = "ok" if self.holds else "SHORT"
        bound = f"{self.relation} {self.bound:g}x"
        times = f"p50 {self.median_value:.2f}x; best {self.ours} against {self.peer}"
        return f"{self.what:<50}{self.value:>7.2f}x  {bound:<9} {verdict:<5}  {times}"


def faster(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At least ``bound`` times as fast as the peer."""
    return Figure(what, peer.best / ours.best, peer.p50 / ours.p50, ">=", bound, ours, peer)


def within(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At most ``bound`` times the peer's time."""
    return Figure(what, ours.best / peer.best, ours.p50 / peer.p50, "<=", bound, ours, peer)
