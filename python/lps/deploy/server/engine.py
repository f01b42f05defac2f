"""One queue of examples of all tasks, and the thread that answers them in batches.

A batch is what waits when the thread is free: as many examples as ``max_batch`` allows, of any tasks, after the first
of them has waited ``max_wait`` seconds for others. Its answers are those of each request alone, up to rounding: sums
run in another order in batches of another size, and in cut-outs (:data:`lps.deploy.trial.TOLERANCE` has the bound).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from threading import Condition, Thread
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lps.batch import examples_in, moved, pieces, tensors_of, together
from lps.deploy.extraction.trace import first_line
from lps.deploy.server.catalog import Model
from lps.deploy.server.cutouts import Cutouts
from lps.deploy.server.errors import BusyError, RefusedError
from lps.deploy.server.metrics import Metrics
from lps.errors import in_a_sentence
from lps.lifelong import Lifelong
from lps.options import shown
from lps_kernels.calls import Inputs
from lps_kernels.cutout import Cutout

Floats = NDArray[np.floating[Any]]


class Settable(Protocol):
    """A future, of threads or of an event loop."""

    def done(self) -> bool:
        """Whether nobody waits for it any more."""

    def set_result(self, result: Any, /) -> None:
        """Give the answer."""

    def set_exception(self, exception: Any, /) -> None:
        """Say why there is none."""


@dataclass(frozen=True)
class Answer:
    """Of the examples of a job, in their order: logits and probabilities [examples, classes], the best class."""

    logits: Floats
    probabilities: Floats
    classes: NDArray[np.int64]


@dataclass(eq=False)
class Job:
    """Examples of one task that wait for an answer until ``expires``."""

    model: Model
    inputs: Inputs
    future: Settable
    expires: float = float("inf")
    arrived: float = 0.0

    def __post_init__(self) -> None:
        """Count once."""
        self.rows = examples_in(self.inputs)


def immediately(action: Callable[[], None]) -> None:
    """Settle futures in the thread that has the answers."""
    action()


class Engine:
    """The queue and its thread.

    ``deliver`` runs an action where futures may be settled: in an event loop, in its thread.
    """

    def __init__(
        self,
        cutouts: Cutouts,
        metrics: Metrics,
        *,
        max_batch: int = 64,
        max_wait: float = 0.002,
        max_queue: int = 1024,
        deliver: Callable[[Callable[[], None]], None] = immediately,
    ) -> None:
        self.cutouts, self.metrics = cutouts, metrics
        self.max_batch, self.max_wait, self.max_queue, self.deliver = max_batch, max_wait, max_queue, deliver
        self._queue: deque[Job] = deque()
        self._rows = 0  # in the queue
        self._stopping = False
        self._changed = Condition()
        self._pace = 0.0  # seconds of an example, lately
        self._thread = Thread(target=self._work, name="lps-engine", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is in the queue and end; nothing more is taken."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self.cutouts.close()

    @property
    def waiting(self) -> int:
        """How many jobs are in the queue."""
        return len(self._queue)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs or, if there is no room for them, none."""
        if len(jobs) > self.max_queue:
            raise RefusedError(f"rows: expected at most {self.max_queue} tasks in a request, got {len(jobs)}", 413)
        now = monotonic()
        with self._changed:
            if self._stopping:
                raise BusyError("the server is stopping; ask again once it is back")
            if len(self._queue) + len(jobs) > self.max_queue:
                seconds = max(1, ceil(self._rows * self._pace))
                raise BusyError(f"{len(self._queue)} requests wait already; ask again in {seconds} s", seconds)
            idle = not self._queue
            for job in jobs:
                job.arrived = now
                self._queue.append(job)
                self._rows += job.rows
            if idle or self._rows >= self.max_batch:  # the thread waits for nothing else
                self._changed.notify()

    def _work(self) -> None:
        while True:
            jobs = self._next()
            if jobs is None:
                return
            start = monotonic()
            done: list[tuple[Job, Answer | Exception]] = []
            asked = self._in_time(jobs, start, done)
            try:
                done += self._run(asked)
            except Exception as error:  # an error of ours must not end the thread
                done += [(job, error) for job in asked]
            self.deliver(partial(_settle, done))
            self._observe(jobs, monotonic() - start)

    def _next(self) -> list[Job] | None:
        """The jobs of the next batch; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            if not self._queue:
                return None
            until = self._queue[0].arrived + self.max_wait
            while self._rows < self.max_batch and not self._stopping and (left := until - monotonic()) > 0:
                self._changed.wait(left)
            jobs = [self._queue.popleft()]
            rows = jobs[0].rows
            while self._queue and rows + self._queue[0].rows <= self.max_batch:
                jobs.append(self._queue.popleft())
                rows += jobs[-1].rows
            self._rows -= rows
            return jobs

    def _in_time(self, jobs: Iterable[Job], now: float, done: list[tuple[Job, Answer | Exception]]) -> list[Job]:
        """The jobs that somebody still waits for; the others are done."""
        kept = []
        for job in jobs:
            self.metrics.queue_seconds.observe(now - job.arrived, job.model.name)
            if job.future.done():
                continue
            if now > job.expires:
                done.append((job, BusyError("the request waited for as long as it may; ask again")))
                continue
            kept.append(job)
        return kept

    @torch.no_grad()
    def _run(self, jobs: Sequence[Job]) -> list[tuple[Job, Answer | Exception]]:
        """The answers, group by group: each task by its cheaper way, those without a cut-out together."""
        groups: dict[tuple[Any, ...], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.model, *_shapes(job.inputs)), []).append(job)
        done: list[tuple[Job, Answer | Exception]] = []
        masked: dict[tuple[Any, ...], list[Job]] = {}
        for (model, *shapes), group in groups.items():
            cutout = self.cutouts.choose(model, min(self.max_batch, sum(job.rows for job in group)))
            if cutout is None:
                masked.setdefault((model.file, *shapes), []).extend(group)
            else:
                self._count(group, "cutout")
                done += self._answered(group, partial(_run_cutout, cutout))
        for (file, *_), group in masked.items():
            self._count(group, "masked")
            done += self._answered(group, partial(_run_masked, file.net))
        return done

    def _answered(
        self, group: Sequence[Job], run: Callable[[Inputs, list[int]], Tensor]
    ) -> list[tuple[Job, Answer | Exception]]:
        """The answers of jobs that run together. If one of them makes the network fail, each runs alone."""
        try:
            logits = self._logits(group, run)
        except Exception as error:  # whatever the user's network raises
            if len(group) == 1:
                name, reason = shown(group[0].model.name), in_a_sentence(first_line(error))
                return [(group[0], RefusedError(f"inputs: task {name} cannot read them: {reason}", 422))]
            self.metrics.failures.add()
            return [pair for job in group for pair in self._answered([job], run)]
        done: list[tuple[Job, Answer | Exception]] = []
        start = 0
        for job in group:
            done.append((job, _answer(job, logits[start : start + job.rows])))
            start += job.rows
        return done

    def _logits(self, group: Sequence[Job], run: Callable[[Inputs, list[int]], Tensor]) -> NDArray[Any]:
        inputs = group[0].inputs if len(group) == 1 else together([job.inputs for job in group])
        tasks = [job.model.number for job in group for _ in range(job.rows)]
        device = group[0].model.file.net.like.device
        parts = []
        for start, part in zip(range(0, len(tasks), self.max_batch), pieces(inputs, self.max_batch), strict=True):
            parts.append(run(moved(part, device), tasks[start : start + self.max_batch]))
        found: NDArray[Any] = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu().numpy()
        return found

    def _count(self, group: Sequence[Job], way: str) -> None:
        for job in group:
            self.metrics.rows.add(job.model.name, way, value=job.rows)

    def _observe(self, jobs: Sequence[Job], seconds: float) -> None:
        rows = sum(job.rows for job in jobs)
        self._pace = 0.9 * self._pace + 0.1 * seconds / rows if self._pace else seconds / rows
        self.metrics.batch_seconds.observe(seconds)
        self.metrics.batch_rows.observe(rows)
        self.metrics.batch_tasks.observe(len({job.model for job in jobs}))


def _settle(done: Sequence[tuple[Job, Answer | Exception]]) -> None:
    """Hand out answers to those who still wait."""
    for job, answer in done:
        if job.future.done():
            continue
        if isinstance(answer, Answer):
            job.future.set_result(answer)
        else:
            job.future.set_exception(answer)


def _run_cutout(cutout: Cutout, inputs: Inputs, _tasks: list[int]) -> Tensor:
    logits: Tensor = cutout(inputs)
    return logits


def _run_masked(net: Lifelong, inputs: Inputs, tasks: list[int]) -> Tensor:
    return net.serve(inputs, tasks)


def _shapes(inputs: Inputs) -> list[tuple[int, ...]]:
    """Those of one example, which alone can be stacked."""
    return [tuple(tensor.shape[1:]) for tensor in tensors_of(inputs)]


def _answer(job: Job, logits: NDArray[Any]) -> Answer | RefusedError:
    """What a job gets; of a mixed batch the classes that its task has."""
    logits = logits[:, : job.model.facts.classes]
    if not np.isfinite(logits).all():
        example = int((~np.isfinite(logits).all(1)).nonzero()[0][0])
        return RefusedError(
            f"inputs: example {example}: task {shown(job.model.name)} has no answer to it, because its logits are "
            "infinite or NaN; take values as in its training",
            422,
        )
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy().astype(logits.dtype)
    return Answer(logits, probabilities, logits.argmax(1))
