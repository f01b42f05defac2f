"""What holds for every method: resumed runs, files that every command reads, refusals, and who forgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong, load
from lps.artifact.one_task import one_task
from lps.errors import FileFormatError, StoppedError
from lps.methods import METHODS
from lps.methods.base import Method
from lps.runs.checkpoint import Checkpoint, decode, encode
from lps.runs.directory import read_memory
from lps.runs.events import Listener
from torch import Tensor, nn

from tests.toy import QUICK, answers, inputs_of, toy_task

CONFIG = replace(QUICK, alpha=0.2, epochs=(2, 4, 2))
TASKS = [toy_task(1), toy_task(2), toy_task(3, classes=4)]

every_method = pytest.mark.parametrize("name", METHODS)


def make(name: str) -> Method:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    kind = METHODS[name]
    return kind(Lifelong(backbone, 16, norms=kind.reads.norms or "frozen"), CONFIG)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def plain(value: Any) -> Any:
    """A memory as values that can be compared."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def learnt() -> dict[str, tuple[Method, list[list[Tensor]]]]:
    """Every method after three tasks, with the answers of all tasks after each."""
    found = {}
    for name in METHODS:
        method, after = make(name), []
        method.check(TASKS)
        for number, task in enumerate(TASKS, 1):
            method.learn(task)
            after.append(answers(method.net, TASKS[:number]))
        found[name] = method, after
    return found


@every_method
def test_old_tasks_are_bit_identical_unless_the_method_says_that_it_forgets(
    name: str, learnt: dict[str, tuple[Method, list[list[Tensor]]]]
) -> None:
    method, after = learnt[name]
    kept = all(same(before, after[-1][: len(before)]) for before in after)
    assert kept != method.forgets


@every_method
def test_from_the_one_file_every_task_answers_alike(
    name: str, learnt: dict[str, tuple[Method, list[list[Tensor]]]], tmp_path: Path
) -> None:
    method, after = learnt[name]
    method.net.save(tmp_path / "model.lps")
    blank = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    net = load(tmp_path / "model.lps", backbone=blank)
    assert same(answers(net, TASKS), after[-1])
    for number, task in enumerate(TASKS, 1):
        want = after[-1][number - 1]
        torch.testing.assert_close(net.extract(number)(inputs_of(task)), want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net.serve(inputs_of(task), [number] * len(want)), want, rtol=1e-4, atol=1e-5)
        assert torch.equal(one_task(net, number).eval()(inputs_of(task), task=1), want)


@every_method
def test_a_task_learnt_in_pieces_is_the_same_to_the_bit(
    name: str, learnt: dict[str, tuple[Method, list[list[Tensor]]]], tmp_path: Path
) -> None:
    """Stopped after every few steps, with everything going through files as in a run."""
    _, after = learnt[name]
    method = make(name)
    for number, task in enumerate(TASKS, 1):
        checkpoint = Checkpoint(tmp_path / str(number))

        class Stop(Listener):
            steps = 0

            def step(self, phase: str, examples: int, checkpoint: Checkpoint = checkpoint) -> None:
                self.steps += 1
                checkpoint.stop = self.steps == 17

        while len(method.learnt) < number:
            memory = decode(encode(method.memory)) if method.memory else {}
            again = METHODS[name](method.net, CONFIG)
            if number > 1:
                again.load_memory(memory)
            again.check(TASKS)
            method = again
            try:
                method.learn(task, listener=Stop(), checkpoint=checkpoint)
            except StoppedError:
                checkpoint = Checkpoint(tmp_path / str(number))
        checkpoint.clear()
        assert same(answers(method.net, TASKS[:number]), after[number - 1]), number


@every_method
def test_a_failure_leaves_network_and_memory_as_they_were(name: str) -> None:
    method = make(name)
    method.check(TASKS[:2])
    method.learn(TASKS[0])
    before, digest, memory = answers(method.net, TASKS[:1]), method.net.digest(1), plain(method.memory)

    class Fail(Listener):
        steps = 0

        def step(self, phase: str, examples: int) -> None:
            self.steps += 1
            if self.steps == 15:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        method.learn(TASKS[1], listener=Fail())
    assert same(answers(method.net, TASKS[:1]), before)
    assert (method.net.digest(1), plain(method.memory)) == (digest, memory)
    method.learn(TASKS[1])
    assert len(method.learnt) == 2


@every_method
def test_a_missing_memory_is_named(name: str, tmp_path: Path) -> None:
    method = make(name)
    method.check(TASKS[:1])
    method.learn(TASKS[0])
    if not method.memory:
        read_memory(tmp_path, method)
        return
    with pytest.raises(FileFormatError, match=f"memory-1.safetensors: is missing: {name} cannot go on without it; "):
        read_memory(tmp_path, method)
