"""Counters and histograms, and their text for Prometheus (text format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from lps.environment import peak_memory

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric:
    """Numbers by the values of some labels."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}
        self._lock = Lock()

    def add(self, *labels: str, value: float = 1) -> None:
        """Count."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + value

    def value(self, *labels: str) -> float:
        """What was counted."""
        return self._values.get(labels, 0)

    def lines(self) -> Iterator[str]:
        """Its samples."""
        with self._lock:
            found = sorted(self._values.items())
        for labels, value in found:
            yield sample(self.name, dict(zip(self.labels, labels, strict=True)), value)


class Gauge(Metric):
    """Numbers that are asked for when they are shown."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        super().__init__(name, text, labels)
        self._read = read

    def lines(self) -> Iterator[str]:
        """Its samples as they are now."""
        for labels, value in sorted(self._read().items()):
            yield sample(self.name, dict(zip(self.labels, labels, strict=True)), value)


class Histogram(Metric):
    """How often values were at most as large as each of some bounds."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            counts[bisect_left(self._bounds, value)] += 1
            self._values[labels] = self._values.get(labels, 0) + value

    def count(self, *labels: str) -> int:
        """How many values there were."""
        return sum(self._counts.get(labels, ()))

    def lines(self) -> Iterator[str]:
        """Its samples: cumulative counts, sum and count."""
        with self._lock:
            found = sorted((labels, list(counts), self._values[labels]) for labels, counts in self._counts.items())
        for labels, counts, total in found:
            named, below = dict(zip(self.labels, labels, strict=True)), 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                below += count
                text = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield sample(f"{self.name}_bucket", {**named, "le": text}, below)
            yield sample(f"{self.name}_sum", named, total)
            yield sample(f"{self.name}_count", named, below)


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line."""
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = f"{value:.0f}" if float(value).is_integer() else repr(float(value))
    return f"{name}{{{inner}}} {number}" if inner else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.requests = Metric("lps_requests_total", "Requests by task, route and status.", ("task", "route", "status"))
        self.seconds = Histogram(
            "lps_request_seconds", "Time of a question, from its head to its answer.", ("task",), SECONDS
        )
        self.queue_seconds = Histogram("lps_queue_seconds", "Time from queue to batch.", ("task",), SECONDS)
        self.batch_seconds = Histogram("lps_batch_seconds", "Time of a batch.", (), SECONDS)
        self.batch_rows = Histogram("lps_batch_rows", "Examples in a batch.", (), ROWS)
        self.batch_tasks = Histogram("lps_batch_tasks", "Tasks in a batch.", (), ROWS)
        self.rows = Metric(
            "lps_rows_total",
            "Examples answered, by the way: masked products from the one copy, or the cut-out task.",
            ("task", "way"),
        )
        self.failures = Metric("lps_failures_total", "Batches that failed and were run again one by one.")
        self.cutouts_made = Metric("lps_cutouts_made_total", "Tasks cut out.", ("task",))
        self.cutouts_evicted = Metric("lps_cutouts_evicted_total", "Cut-out tasks given up for others.", ("task",))
        self.reloads = Metric("lps_reloads_total", "Files replaced while served, by result.", ("file", "result"))
        self._all: list[Metric] = [value for value in vars(self).values() if isinstance(value, Metric)]
        self.gauge("process_resident_memory_bytes", "Resident memory.", (), lambda: {(): resident_memory()})

    def gauge(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        """Add numbers that somebody else knows."""
        self._all.append(Gauge(name, text, labels, read))

    def text(self) -> str:
        """All of it."""
        lines: list[str] = []
        for metric in self._all:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        return "\n".join(lines) + "\n"


def resident_memory() -> int:
    """Bytes of this process that are in memory now; where the system does not tell, the most that ever were."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return peak_memory()
