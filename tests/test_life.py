"""The life of a network: learning, stopping, saving, loading and damage in any order, and what must hold after each.

Every weight has one owner, masks cover only weights of earlier tasks, all tasks answer bit for bit as when they were
learnt, and the latest file gives back what was saved.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lps
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from lps import Lifelong, LPSConfig, Task
from lps.artifact.one_task import one_task
from lps.deploy.trial import checked_difference
from lps.errors import CapacityError, ConfigError, FileFormatError, StoppedError
from lps.export import main as export
from lps.models import mlp
from lps.runs.checkpoint import Checkpoint
from lps.runs.metrics import capacity, capacity_per_layer, density
from torch import Tensor, nn

from lps_kernels import unpack_bits
from lps_kernels.owner import TASK_BITS
from tests.helpers import same_bits
from tests.runs.test_checkpoint import StopAt
from tests.toy import QUICK, toy_task

MODES = [("irregular", "elementwise"), ("column", "structured"), ("filter", "elementwise"), ("channel", "structured")]
SOLVERS: list[dict[str, Any]] = [
    {},
    {"pull": "proximal"},
    {"solver": "straight-through"},
    {"solver": "straight-through", "share_cost": 0.01},
]
ALPHAS = [0.1, 0.15, 0.2, "rest"]
BETAS = [0.0, 0.5, 1.0, "auto", "max:0.7"]
STEPS = 15  # of a task: three phases of one epoch with five batches
MOST = 8  # tasks of one life, so that it stays short

INPUTS = torch.randn(6, 12, generator=torch.Generator().manual_seed(0))


def backbone() -> nn.Module:
    """Layers of 120 and 70 weights, neither a multiple of 8 bits per row."""
    return mlp(inputs=12, hidden=(10, 7), dropout=0.1)


@dataclass(frozen=True)
class How:
    """Pattern, sharing and settings that a task is learnt with."""

    modes: tuple[str, str]
    config: LPSConfig


def make_how(modes: tuple[str, str], solver: dict[str, Any], alpha: Any, beta: Any) -> How:
    return How(modes, replace(QUICK, epochs=(1, 1, 1), alpha=alpha, beta=beta, **solver))


HOW = st.builds(
    make_how, st.sampled_from(MODES), st.sampled_from(SOLVERS), st.sampled_from(ALPHAS), st.sampled_from(BETAS)
)

PICK = st.integers(0, 10**6)  # of a task, or of a bit of a file: the remainder by how many there are


@dataclass(frozen=True)
class Known:
    """A learnt task: its answers when it was learnt, and its digest."""

    task: Task
    answers: Tensor
    digest: str


@dataclass(frozen=True)
class Stopped:
    """A task whose learning was stopped, with the digest that it has when it is learnt without a stop."""

    task: Task
    how: How
    before: tuple[str, ...]  # digests of the tasks that were learnt then
    digest: str


class Life(RuleBasedStateMachine):
    """Rules are what a user does; invariants are checked after each."""

    @initialize(
        seed=st.integers(0, 3),
        norms=st.sampled_from(["frozen", "per-task"]),
        hows=st.lists(HOW, min_size=1, max_size=3),
    )
    def begin(self, seed: int, norms: str, hows: list[How]) -> None:
        """A network with some tasks."""
        self.home = tempfile.TemporaryDirectory()
        self.path = Path(self.home.name) / "model.lps"
        torch.manual_seed(seed)
        self.norms = norms
        self.net = Lifelong(backbone(), 7, norms=norms)
        self.known: list[Known] = []
        self.saved: list[Known] = []
        self.stopped: Stopped | None = None
        self.drawn = 0  # tasks so far, learnt or not
        for how in hows:
            self.learn(how)

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.home.cleanup()

    def next_task(self) -> Task:
        self.drawn += 1
        return toy_task(self.drawn, classes=2 + self.drawn % 3)

    def remember(self, task: Task) -> None:
        """What the task that was just learnt answers."""
        number = len(self.net.learnt)
        self.known.append(Known(task, self.answers(self.net, number), self.net.digest(number)))

    def answers(self, net: Lifelong, number: int) -> Tensor:
        with torch.no_grad():
            answers: Tensor = net.eval()(INPUTS, task=number)
        return answers

    @precondition(lambda self: len(self.known) < MOST)
    @rule(how=HOW)
    def learn(self, how: How) -> None:
        task = self.next_task()
        self.net.pattern, self.net.sharing = how.modes
        try:
            self.net.train().learn(task, how.config)
        except CapacityError:
            return
        self.remember(task)

    @precondition(lambda self: len(self.known) < MOST)
    @rule(how=HOW, steps=st.integers(1, STEPS - 1))
    def stop(self, how: How, steps: int) -> None:
        """Learn a task until it is stopped: the network is as it was, and the state is kept."""
        task = self.next_task()
        self.net.pattern, self.net.sharing = how.modes
        whole = copy.deepcopy(self.net)
        try:
            whole.learn(task, how.config)
        except CapacityError:
            return
        checkpoint = Checkpoint(self.path.parent / "state")
        checkpoint.clear()
        with pytest.raises(StoppedError):
            self.net.learn(task, how.config, listener=StopAt(checkpoint, steps), checkpoint=checkpoint)
        before = tuple(known.digest for known in self.known)
        self.stopped = Stopped(task, how, before, whole.digest(len(whole.learnt)))

    @precondition(lambda self: self.stopped is not None and len(self.known) < MOST)
    @rule(again=st.none() | st.integers(1, 3))
    def resume(self, again: int | None) -> None:
        """Go on with a stopped task, perhaps to be stopped again; a network with other tasks is refused."""
        assert self.stopped is not None
        stopped = self.stopped
        checkpoint = Checkpoint(self.path.parent / "state")
        listener = None if again is None else StopAt(checkpoint, again)
        self.net.pattern, self.net.sharing = stopped.how.modes
        if stopped.before != tuple(known.digest for known in self.known):
            with pytest.raises((ConfigError, CapacityError)):
                self.net.learn(stopped.task, stopped.how.config, listener=listener, checkpoint=checkpoint)
            return
        try:
            self.net.learn(stopped.task, stopped.how.config, listener=listener, checkpoint=checkpoint)
        except StoppedError:
            return
        self.remember(stopped.task)
        assert self.known[-1].digest == stopped.digest
        checkpoint.clear()
        self.stopped = None

    @rule(precision=st.sampled_from(["fp32", "bf16"]))
    def evaluate(self, precision: str) -> None:
        for number, known in enumerate(self.known, 1):
            assert 0 <= self.net.accuracy(number, known.task.test, precision=precision) <= 1

    @rule(picks=st.lists(PICK, min_size=len(INPUTS), max_size=len(INPUTS)))
    def serve(self, picks: list[int]) -> None:
        """A batch with a task per example."""
        tasks = [1 + pick % len(self.known) for pick in picks]
        logits = self.net.eval()(INPUTS, tasks)
        for row, number in enumerate(tasks):
            expected = self.known[number - 1].answers[row]
            torch.testing.assert_close(logits[row, : len(expected)], expected, rtol=1e-5, atol=1e-5)

    @rule()
    def save(self) -> None:
        self.net.save(self.path)
        self.saved = list(self.known)

    @precondition(lambda self: self.saved)
    @rule()
    def load(self) -> None:
        """Go back to what was saved."""
        self.net = lps.load(self.path)
        self.known = list(self.saved)

    @precondition(lambda self: self.saved)
    @rule(pick=PICK)
    def damage(self, pick: int) -> None:
        """Flip a bit of a copy of the file: it is refused, and the file itself is as good as before."""
        content = bytearray(self.path.read_bytes())
        place = pick % (8 * len(content))
        content[place // 8] ^= 1 << place % 8
        copied = self.path.with_name("damaged.lps")
        copied.write_bytes(content)
        with pytest.raises(FileFormatError):
            lps.load(copied)

    @rule(pick=PICK)
    def extract(self, pick: int) -> None:
        number = 1 + pick % len(self.known)
        cut = self.net.extract(number, batch_size=len(INPUTS))
        with torch.no_grad():
            checked_difference("the cut-out task", cut(INPUTS), self.known[number - 1].answers)

    @rule(pick=PICK, take=st.booleans())
    def cut_down(self, pick: int, take: bool) -> None:
        """One task as a network of its own; perhaps life goes on with it."""
        number = 1 + pick % len(self.known)
        alone, known = one_task(self.net, number), self.known[number - 1]
        assert same_bits(self.answers(alone, 1), known.answers)
        assert alone.digest(1) == known.digest
        if take:
            self.net, self.known = alone, [known]

    @precondition(lambda self: self.saved)
    @rule(pick=PICK)
    def export(self, pick: int) -> None:
        """One task of the file, as a file."""
        number = 1 + pick % len(self.saved)
        output = self.path.with_name("task.lps")
        assert export([str(self.path), "--task", str(number), "--format", "lps", "--output", str(output)]) == 0
        assert same_bits(self.answers(lps.load(output), 1), self.saved[number - 1].answers)

    @precondition(lambda self: len(self.known) > 1)
    @rule()
    def drop(self) -> None:
        """Remove the last task; what was stopped before it was learnt counted on other shares."""
        owned = capacity(self.net)
        self.net.drop_last()
        self.known.pop()
        self.stopped = None
        assert capacity(self.net) == owned[:-1]

    @rule(pick=PICK)
    def rename(self, pick: int) -> None:
        number = 1 + pick % len(self.known)
        self.drawn += 1  # no two names are the same
        self.net.rename(number, f"renamed-{self.drawn}")
        assert self.net.check_task(f"renamed-{self.drawn}") == number

    @rule()
    def state_dict(self) -> None:
        """Go on with a network that took over the state_dict."""
        twin = Lifelong(backbone(), 7, norms=self.norms)
        twin.load_state_dict(self.net.state_dict())
        self.net = twin

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.net.learnt) == len(self.net.heads) == len(self.net.private) == len(self.known)
        training = self.net.training
        for number, known in enumerate(self.known, 1):
            assert same_bits(self.answers(self.net, number), known.answers)
            assert self.net.digest(number) == known.digest == self.net.learnt[number - 1].digest
        self.net.train(training)

    @invariant()
    def every_weight_has_one_owner(self) -> None:
        tasks = len(self.known)
        for partition, _ in self.net.prunable():
            owner = partition.owner
            assert partition.tasks == tasks
            assert not (owner & ~TASK_BITS).any(), "a bit of the latest projection is left"
            assert int(owner.max()) <= tasks
            assert not partition.w_bar[owner == 0].any(), "a free weight has a value"
            assert bool(partition.w_bar.isfinite().all())
            for number in range(1, tasks + 1):
                mask = unpack_bits(partition.mask(number), partition.shape)
                assert not (mask & ((owner == 0) | (owner >= number))).any(), "a mask covers weights not learnt before"

    @invariant()
    def shares_add_up(self) -> None:
        free = {partition.name: partition.free().double().mean().item() for partition, _ in self.net.prunable()}
        for name, shares in capacity_per_layer(self.net).items():
            assert sum(shares) + free[name] == pytest.approx(1)
        for owned, used in zip(capacity(self.net), density(self.net), strict=True):
            assert 0 <= owned <= used <= 1

    @invariant()
    def the_file_gives_back_what_was_saved(self) -> None:
        if not self.saved:
            return
        net = lps.load(self.path)
        assert [task.digest for task in net.learnt] == [known.digest for known in self.saved]
        assert same_bits(self.answers(net, len(self.saved)), self.saved[-1].answers)


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_one_life(norms: str) -> None:
    """All rules once or more, in an order that one person might choose."""
    hows = [make_how(modes, solver, 0.15, "max:0.7") for modes, solver in zip(MODES, SOLVERS, strict=True)]
    life = Life()
    steps: list[Callable[[], object]] = [
        lambda: life.begin(seed=0, norms=norms, hows=hows[:2]),
        life.save,
        lambda: life.stop(how=hows[2], steps=7),
        lambda: life.resume(again=2),
        lambda: life.resume(again=None),
        lambda: life.damage(pick=12345),
        life.state_dict,
        lambda: life.serve(picks=[0, 1, 2, 0, 1, 2]),
        lambda: life.extract(pick=2),
        lambda: life.evaluate(precision="fp32"),
        lambda: life.stop(how=hows[3], steps=12),
        life.load,
        lambda: life.resume(again=None),  # refused: the third task is gone
        lambda: life.learn(how=hows[0]),
        life.save,
        lambda: life.export(pick=1),
        lambda: life.cut_down(pick=2, take=True),
        lambda: life.learn(how=hows[1]),
        lambda: life.rename(pick=1),
        life.drop,
        lambda: life.learn(how=hows[2]),
    ]
    try:
        for step in steps:
            step()
            life.nothing_is_forgotten()
            life.every_weight_has_one_owner()
            life.shares_add_up()
            life.the_file_gives_back_what_was_saved()
        assert len(life.known) == 2
        assert len(life.saved) == 3
        assert life.stopped is None
    finally:
        life.teardown()


@pytest.mark.slow
def test_many_lives() -> None:
    torch.set_num_threads(1)
    run_state_machine_as_test(
        Life,
        settings=settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True, database=None),
    )
