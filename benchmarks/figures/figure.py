"""A measured number beside the bound that it has to keep."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Timing


class UnmeasurableError(Exception):
    """The figures would say nothing: the message is one sentence that says why."""


@dataclass(frozen=True)
class Figure:
    """A number whose ``relation`` to the bound is ``>=`` or ``<=``; the unit follows it without a space."""

    what: str
    value: float
    unit: str
    relation: str
    bound: float
    detail: str  # what it was made from
    noisy: bool = False

    @property
    def holds(self) -> bool:
        """Whether the unrounded value keeps the bound."""
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound

    def __str__(self) -> str:
        """One line: what, value, bound, verdict, detail."""
        verdict = "ok" if self.holds else "SHORT"
        bound = f"{self.relation} {self.bound:g}{self.unit}"
        return f"{self.what:<50}{self.value:>7.2f}{self.unit}  {bound:<9} {verdict:<5}  {self.detail}"


@dataclass(frozen=True)
class Skipped:
    """A figure that this machine cannot measure, because a peer does not run on it: neither held nor short."""

    what: str
    reason: str

    def __str__(self) -> str:
        """One line: what and why not."""
        return f"{self.what:<50}skipped: {self.reason}"


def faster(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At least ``bound`` times as fast as the peer, best against best."""
    return _ratio(what, peer.best / ours.best, peer.p50 / ours.p50, ">=", bound, ours, peer)


def within(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At most ``bound`` times the peer's time, best against best."""
    return _ratio(what, ours.best / peer.best, ours.p50 / peer.p50, "<=", bound, ours, peer)


def typically_within(what: str, ours: Timing, peer: Timing, bound: float) -> Figure:
    """At most ``bound`` times the peer's time, median against median.

    For calls of tens of milliseconds and more: every one of them meets other work on the machine, so the best of them
    is a matter of luck.
    """
    p50, best = ours.p50 / peer.p50, ours.best / peer.best
    detail = f"best {best:.2f}x; p50 {1e3 * ours.p50:.1f} ms against {1e3 * peer.p50:.1f} ms"
    return Figure(what, p50, "x", "<=", bound, detail, noisy=ours.noisy or peer.noisy)


def _ratio(what: str, best: float, p50: float, relation: str, bound: float, ours: Timing, peer: Timing) -> Figure:
    detail = f"p50 {p50:.2f}x; best {ours} against {peer}"
    return Figure(what, best, "x", relation, bound, detail, noisy=ours.noisy or peer.noisy)
