"""Cut-out tasks within a budget of memory: which tasks have one, and when it is the cheaper way.

A task can always be run from the one copy of the weights. Cut out it is mostly faster, but takes memory of its own.
By the model of costs (:mod:`lps_kernels.costs`) a cut-out saves some time at every call; what it saved lately, or would
have saved, decides which tasks have one when they do not all fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic

import torch

from lps.deploy.server.catalog import Model, ServedFile
from lps.deploy.server.metrics import Metrics
from lps.deploy.trial import checked_difference
from lps.errors import in_a_sentence
from lps.observed import dtype_name, random_batch
from lps_kernels.costs import Work, masked_seconds, seconds
from lps_kernels.cutout import Cutout, LayerSummary

HALF_LIFE = 60.0  # seconds after which a saved second counts half
WORTH = 2.0  # a cut-out makes way for one that saved so many times as much: else two tasks would take turns
PATIENCE = 1.0  # seconds between two looks at whether a task deserves a cut-out
TRIAL = 3  # examples on which a cut-out's answers are checked before it is used

Log = Callable[..., None]


@dataclass(eq=False)
class _Entry:
    """What is known of a task's cut-out; ``layers`` is None until it was made once, for batches of ``batch``."""

    batch: int
    layers: list[LayerSummary] | None = None
    bytes: int = 0
    network: Cutout | None = None
    wanted: bool = False  # it is being made
    _saved: float = 0.0  # seconds, as of `_when`
    _when: float = 0.0
    looked: float = 0.0
    _gains: dict[int, float] = field(default_factory=dict)

    def gain(self, rows: int, *, split: bool) -> float:
        """Seconds that it saves for this many examples; negative if masked products are the cheaper way."""
        if rows not in self._gains:
            assert self.layers is not None
            cut = sum(_seconds_at(layer, rows / self.batch) for layer in self.layers)
            whole = sum(_masked_at(layer, rows / self.batch, split=split) for layer in self.layers)
            self._gains[rows] = whole - cut
        return self._gains[rows]

    def saved(self, now: float) -> float:
        """What it saved or would have saved lately, in seconds."""
        return self._saved * float(0.5 ** ((now - self._when) / HALF_LIFE))

    def credit(self, gain: float, now: float) -> None:
        """Note what a call saved or would have saved."""
        self._saved, self._when = self.saved(now) + gain, now


def _at(work: Work, share: float) -> Work:
    return replace(work, positions=max(1, round(work.positions * share)))


def _seconds_at(layer: LayerSummary, share: float) -> float:
    format = {"structured": "structured", "packed": "structured", "sparse": "sparse"}.get(layer.format, "dense")
    return seconds(format, _at(layer.work, share))  # type: ignore[arg-type]


def _masked_at(layer: LayerSummary, share: float, *, split: bool) -> float:
    work = _at(layer.dense_work, share)
    return masked_seconds(work, linear=len(layer.before) == 2) if split else seconds("dense", work)


class Cutouts:
    """The cut-out tasks of all files, of at most ``budget`` bytes together; they are made in a thread of their own."""

    def __init__(self, budget: int, batch: int, metrics: Metrics, log: Log) -> None:
        self.budget, self._batch, self._metrics, self._log = budget, batch, metrics, log
        self._entries: dict[Model, _Entry] = {}
        self._lock = Lock()
        self._wishes: SimpleQueue[Model | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def bytes(self) -> int:
        """What all of them take now."""
        return sum(entry.bytes for entry in self._entries.copy().values() if entry.network is not None)

    def held(self) -> dict[tuple[str, ...], float]:
        """Bytes of each task that has one."""
        found = self._entries.copy().items()
        return {(model.name,): entry.bytes for model, entry in found if entry.network is not None}

    def choose(self, model: Model, rows: int) -> Cutout | None:
        """The task's cut-out if there is one and it is the cheaper way for this many examples, else None."""
        if not self.budget:
            return None
        now = monotonic()
        with self._lock:
            entry = self._entries.get(model)
            if entry is None:
                entry = self._entries[model] = _Entry(batch=self._batch)
                self._want(model, entry)
                return None
            if entry.layers is None:
                return None
            gain = entry.gain(rows, split=len(model.file.net.partitions) > 0)
            if gain <= 0:
                return None
            entry.credit(gain, now)
            if entry.network is None and not entry.wanted and now - entry.looked > PATIENCE:
                entry.looked = now
                if self._victims(entry, now) is not None:
                    self._want(model, entry)
            return entry.network

    def drop(self, file: ServedFile) -> None:
        """Forget the tasks of a file that was replaced."""
        with self._lock:
            for model in file.models:
                self._entries.pop(model, None)

    def close(self) -> None:
        """Make no more."""
        if self._thread is not None:
            self._wishes.put(None)
            self._thread.join()

    def _want(self, model: Model, entry: _Entry) -> None:
        entry.wanted = True
        if self._thread is None:
            self._thread = Thread(target=self._make_wanted, name="lps-cutouts", daemon=True)
            self._thread.start()
        self._wishes.put(model)

    def _victims(self, entry: _Entry, now: float) -> list[tuple[Model, _Entry]] | None:
        """Whose place the cut-out takes, those of least use first; None if it does not deserve one."""
        missing = self.bytes + entry.bytes - self.budget
        held = [(model, other) for model, other in self._entries.items() if other.network is not None]
        victims: list[tuple[Model, _Entry]] = []
        for model, other in sorted(held, key=lambda pair: pair[1].saved(now)):
            if missing <= 0:
                break
            victims.append((model, other))
            missing -= other.bytes
        lost = sum(other.saved(now) for _, other in victims)
        return None if missing > 0 or (victims and entry.saved(now) <= WORTH * lost) else victims

    def _make_wanted(self) -> None:
        while (model := self._wishes.get()) is not None:
            try:
                network = _checked_cutout(model, self._batch)
            except Exception as error:  # of the user's network too; the task goes on from the one copy
                self._log("cutout_refused", task=model.name, reason=in_a_sentence(error))
                continue
            self._place(model, network)

    def _place(self, model: Model, network: Cutout) -> None:
        size = sum({t.data_ptr(): t.nbytes for t in (*network.parameters(), *network.buffers())}.values())
        now = monotonic()
        with self._lock:
            entry = self._entries.get(model)
            if entry is None:  # its file was replaced meanwhile
                return
            entry.layers, entry.bytes, entry.wanted = network.layers, size, False
            victims = self._victims(entry, now)
            if victims is None:
                return
            for other, given_up in victims:
                given_up.network = None
                self._metrics.cutouts_evicted.add(other.name)
            entry.network = network
        self._metrics.cutouts_made.add(model.name)
        self._log("cutout", task=model.name, bytes=size, evicted=[other.name for other, _ in victims])


@torch.no_grad()
def _checked_cutout(model: Model, batch: int) -> Cutout:
    """The task cut out, after its answers to random inputs were compared with those from the one copy."""
    net = model.file.net
    signature = net.metadata.signature(model.number, dtype_name(net.like))
    assert signature is not None  # or the file would not have been served
    network = net.extract(model.number, batch_size=batch)
    inputs = random_batch(signature, TRIAL, net.like)
    checked_difference(f"task {model.number}: the cut-out", network(inputs), net(inputs, task=[model.number] * TRIAL))
    return network
