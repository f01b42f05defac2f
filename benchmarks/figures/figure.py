"""A measured number beside the bound that it has to keep."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Timing


class Unmeasurable(Exception):
    """The figures would say nothing: the message is one sentence that says why."""


@dataclass(frozen=True)
class Figure:
    """``relation`` is ``>=`` or ``<=``; ``detail`` gives the times behind the value."""

    what: str
    value: float
    relation: str
    bound: float
    unit: str
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the unrounded value keeps the bound."""
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound

    def __str__(self) -> str:
        verdict = "ok   " if self.holds else "SHORT"
        bound = f"{self.relation} {self.bound:g}{self.unit}"
        return f"{self.what:<52}{self.value:>7.2f}{self.unit:<2} {bound:<9} {verdict}  {self.detail}"


def faster(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At least ``bound`` times as fast as the peer, by p50."""
    return Figure(what, peer.p50 / ours.p50, ">=", bound, "x", f"{ours} against {peer}")


def within(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At most ``bound`` times the peer's time, by p50."""
    return Figure(what, ours.p50 / peer.p50, "<=", bound, "x", f"{ours} against {peer}")
