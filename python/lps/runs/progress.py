"""What learning prints: a progress bar on a terminal, plain lines in a log file, and of a run a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from math import isnan, nan
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from lps.options import one_line
from lps.runs.bar import Bar, Place
from lps.runs.events import Listener, Resumed, Row, Several, TaskReport

if TYPE_CHECKING:
    from lps.methods.base import Method
    from lps.methods.fit import Phase
    from lps.runs.checkpoint import Checkpoint
    from lps.runs.directory import RunDirectory
    from lps.task import Task

# Seconds between lines of a log file: at least, for epochs other than the last of a phase; at most, for any line.
LEAST_SECONDS, MOST_SECONDS = 2.0, 10.0


class Progress(Listener):
    """Shows the progress of learning, and passes every row on to the run directory, if there is one.

    ``phases`` holds the phases per task; ``steps`` is the number of training steps left, over all tasks. Without a
    directory there is no last task.
    """

    def __init__(
        self,
        phases: Sequence[Sequence[Phase]],
        steps: int,
        directory: RunDirectory | None,
        file: TextIO | None = None,
    ) -> None:
        self.phases, self.steps, self.directory = phases, steps, directory
        self.file = file or sys.stdout
        self.done = 0
        self.begin = self.shown = self.epoch_shown = perf_counter()
        self.terminal = self.file.isatty()
        self.bar: Bar | None = None

    def start(self, task: int, name: str, steps: int) -> None:
        """A task of ``steps`` steps begins."""
        last = f"/{len(self.phases)}" if self.directory else ""
        self.number, self.name = f"task {task}{last}", one_line(name)
        self.label = f"{self.number} {self.name}"
        self.epochs = {phase.name: phase.epochs for phase in self.phases[task - 1]}
        self.phase, self.epoch, self.accuracy = self.phases[task - 1][0].name, 1, nan
        self.distance_shown = 0.0
        self.seen, self.epoch_begin = 0, perf_counter()
        if self.terminal:
            self.figures: tuple[str, ...] = ()
            self.bar = Bar(steps, self._shown_place, self.file)

    def resumed(self, place: Resumed) -> None:
        """Say where learning resumes."""
        if self.directory:
            self.directory.resumed(place)
        self.steps -= place.steps
        self.phase, self.epoch = place.phase, place.epoch
        if self.bar is not None:
            self.bar.update(place.steps)
        whole = ", from the epoch's start: its batches cannot be entered in the middle" if place.whole_epoch else ""
        self._line(f"{self.label}  goes on in {self._place()[len(self.label) + 2 :]}, step {place.steps + 1}{whole}")

    def step(self, phase: str, examples: int) -> None:
        """A step is done."""
        self.done += 1
        self.seen += examples
        if phase != self.phase:
            self.phase, self.epoch = phase, 1
        if self.bar is not None:
            self.bar.update()
        elif perf_counter() - self.shown > MOST_SECONDS:
            self._line(f"{self._place()}  {self._speed(self.seen / (perf_counter() - self.epoch_begin))}")

    def skipped(self, steps: int) -> None:
        """A phase has ended early."""
        self.steps -= steps
        if self.bar is not None:
            self.bar.update(steps)

    def row(self, row: Row) -> None:
        """A row for the log, of which some are shown."""
        if self.directory:
            self.directory.row(row)
        if row.event == "epoch":
            self._show_epoch(row)
        elif row.event == "pruned":
            change = f"val {percent(self.accuracy)} -> {percent(row.accuracy)}"
            self._line(f"{self.label}  pruned  {change}  density {percent(row.density, 1)}")
        elif row.event == "stopped":
            best = percent(row.accuracy)
            self._line(f"{self.label}  {row.phase} ends after epoch {row.epoch}: val was {best} at best")
        elif row.event == "layer":
            if row.task > 1 and not self.terminal:
                self._line(f"{self.label}  pruned  {row.layer}  reuses {percent(row.share, 1)} of earlier weights")
        elif not self.terminal and perf_counter() - self.distance_shown > LEAST_SECONDS:
            self.distance_shown = perf_counter()
            penalty = f"  penalty {row.rho:.2g}" if row.rho else ""
            self._line(f"{self.label}  {row.phase}{penalty}  distance to the pruned network {row.primal:.3g}")

    def learnt(self, accuracy: Sequence[float], seconds: float) -> None:
        """A task is learnt and all tasks are tested."""
        self.close()
        average = sum(accuracy) / len(accuracy)
        self._line(f"{self.label}  learnt in {seconds:.1f} s  test {percent(accuracy[-1])}  average {percent(average)}")

    def ended(self, report: TaskReport) -> None:
        """A task is learnt, outside of a run."""
        self.close()
        seconds = sum(report.seconds.values())
        tested = "" if isnan(report.test) else f"  test {percent(report.test)}"
        self._line(f"{self.label}  learnt in {seconds:.1f} s  val {percent(report.accuracy)}{tested}")

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _show_epoch(self, row: Row) -> None:
        self.phase, self.epoch, self.accuracy = row.phase, row.epoch, row.accuracy
        place, last = self._place(), row.epoch == self.epochs[row.phase]
        accuracy, loss = f"val {percent(row.accuracy)}", f"loss {row.loss:.4f}"
        if self.bar is not None:
            self.figures = (accuracy, loss, f"{row.samples_per_second:,.0f} samples/s")
            self.bar.refresh()
        elif last or perf_counter() - self.epoch_shown >= LEAST_SECONDS:
            self._line(f"{place}  {loss}  {accuracy}  {self._speed(row.samples_per_second)}")
            self.epoch_shown = perf_counter()
        self.epoch += 1
        self.seen, self.epoch_begin = 0, perf_counter()

    def _place(self) -> str:
        return f"{self.label}  {self.phase} {self.epoch}/{self.epochs[self.phase]}"

    def _shown_place(self) -> Place:
        phase = f"{self.phase} {min(self.epoch, self.epochs[self.phase])}/{self.epochs[self.phase]}"
        return Place(self.number, self.name, phase, self._eta(), self.figures)

    def _speed(self, samples_per_second: float) -> str:
        return f"{samples_per_second:,.0f} samples/s  {self._eta()}"

    def _eta(self) -> str:
        seconds = (perf_counter() - self.begin) / max(1, self.done) * (self.steps - self.done)
        return f"ETA {tqdm.format_interval(seconds)}"

    def _line(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=self.file)
        else:
            with suppress(OSError, ValueError):  # a reader that has gone away or a closed stream: learning goes on
                print(text, file=self.file, flush=True)
        self.shown = perf_counter()


def learn_with_progress(
    method: Method, task: Task, listener: Listener | None, checkpoint: Checkpoint | None
) -> TaskReport:
    """Learn a task outside of a run and show the progress on the standard error."""
    number = len(method.learnt) + 1
    phases = [method.phases(number)] * number  # of earlier tasks nothing is asked
    progress = Progress(phases, method.steps(number, task), None, sys.stderr)
    try:
        together = Several(progress, listener or Listener())
        report = method.learn(task, listener=together, checkpoint=checkpoint, tested=True)
        progress.ended(report)
    finally:
        progress.close()
    return report


def percent(share: float | None, digits: int = 2) -> str:
    """A share as a percentage, or a dash."""
    return "-" if share is None or isnan(share) else f"{100 * share:.{digits}f} %"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table with the first column left-aligned and the others right-aligned; the first row is the heading."""
    rows = [[one_line(cell) for cell in row] for row in rows]  # names of tasks are anybody's
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def summary(results: dict[str, Any], written: str, report: str | None) -> str:
    """The final table: every task, then the figures of the whole run, its page, and where it was written."""
    rows = [("task", "when learnt", "now", "owned", "density", "seconds")]
    for i, task in enumerate(results["tasks"]):
        when, now = results["accuracy"][i][i], results["accuracy"][-1][i]
        shares = (percent(results["capacity"][i], 1), percent(results["density"][i], 1))
        rows.append((task["name"], percent(when), percent(now), *shares, f"{task['seconds']:.1f}"))
    size, separate = results["artifact_bytes"], results["separate_bytes"]
    figures = (
        f"average accuracy  {percent(results['average_accuracy'])}",
        f"forgetting        {percent(results['forgetting'])}",
        f"bwt               {percent(results['bwt'])}",
        f"file              {size:,} bytes; a dense network for each task: {separate:,} bytes, "
        f"{separate / size:.1f} times as much",
        *([] if report is None else [f"report            {report}"]),
        f"written           {written}",
    )
    return "\n".join([columns(rows), "", *figures])
