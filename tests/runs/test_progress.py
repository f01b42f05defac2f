"""``learn`` in Python shows on the standard error what the commands show on the standard output."""

from __future__ import annotations

import io
import os
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from typing import Any

import pytest
from lps import Listener, Row
from lps.errors import DivergedError

from tests.toy import QUICK, toy_net, toy_task


class Counting(Listener):
    rows = steps = 0

    def step(self, phase: str, examples: int) -> None:
        self.steps += 1

    def row(self, row: Row) -> None:
        self.rows += 1


def test_lines_where_the_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    net, listener = toy_net(), Counting()
    net.learn(toy_task(1), QUICK, listener=listener)
    net.learn(toy_task(2), QUICK)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("task 1 clouds-1  warm-up 1/1  loss ")
    assert sum(line.startswith("task 1 clouds-1  pruned  val ") for line in lines) == 1
    assert any(line.startswith("task 2 clouds-2  pruned  4.weight  reuses ") for line in lines)
    assert [line.partition("  ")[0] for line in lines if "  learnt in " in line] == [
        "task 1 clouds-1",
        "task 2 clouds-2",
    ]
    assert listener.steps == 25
    assert listener.rows > 5


def test_off_by_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    toy_net().learn(toy_task(1), QUICK, progress=False)
    assert capsys.readouterr() == ("", "")


def on_a_terminal(learn: Callable[[], object]) -> str:
    """What is shown on a terminal that is the standard error."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(theirs, "w") as stream, ThreadPoolExecutor() as pool:
        reader = pool.submit(_all_of, ours)  # at once: a terminal holds a few kB
        with redirect_stderr(stream):
            learn()
        stream.close()
        return reader.result(60)


def _all_of(terminal: int) -> str:
    parts = []
    with suppress(OSError):  # when the other end is closed
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


def test_a_bar_on_a_terminal() -> None:
    shown = on_a_terminal(lambda: toy_net().learn(toy_task(1), QUICK))
    assert "task 1 clouds-1" in shown
    assert "% |" in shown, "a bar"
    assert "\rtask 1 clouds-1  learnt in " in shown


def test_a_failure_removes_the_bar() -> None:
    def fail() -> None:
        with pytest.raises(DivergedError):
            toy_net().learn(toy_task(1), replace(QUICK, lr=1e30))

    shown = on_a_terminal(fail)
    assert "learnt in" not in shown
    assert shown.rstrip("\r").rpartition("\r")[2].strip() == ""


class Gone(io.TextIOBase):
    """A pipe whose reader has gone away."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Gone(), None], ids=["gone", "none"])
def test_learning_goes_on_without_a_standard_error(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    assert len(net.learnt) == 1
