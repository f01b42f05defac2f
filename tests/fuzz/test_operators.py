"""A slice of the operators' fuzzer, and that it finds what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fuzz import operators

pytestmark = pytest.mark.slow


def test_no_broken_call_crashes_hangs_or_differs_from_the_reference() -> None:
    command = [sys.executable, "-m", "tests.fuzz.operators", "--seconds", "15"]
    done = subprocess.run(command, cwd=operators.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    calls, *_, found = done.stdout.splitlines()[-1].split()
    assert int(calls) > 100
    assert found == "found"


# What a child says before it ends or stops to answer, and what is reported then.
CHILDREN = {
    "crash": ("import os; print('case 7'); print('native', flush=True); os.abort()", "SIGABRT"),
    "hang": ("import time; print('case 7'); print('native', flush=True); time.sleep(60)", "no answer"),
    "difference": ("import time; print('case 7'); print('wrong it differs', flush=True); time.sleep(60)", "it differs"),
}


@pytest.mark.parametrize("fault", CHILDREN)
def test_a_fault_of_a_child_is_reported(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, words = CHILDREN[fault]

    class Faulty(operators.Child):
        def __init__(self, seed: int, first: int, isa: str) -> None:
            super().__init__(seed, first, isa)
            self.end()
            self.process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)

    monkeypatch.setattr(operators, "Child", Faulty)
    monkeypatch.setattr(operators, "PATIENCE", 1.0)
    assert operators.fuzz(seed=5, seconds=2.5) >= 1
    report = capsys.readouterr().out
    assert words in report
    assert "--seed 5 --case 7" in report


def test_a_case_is_the_same_at_every_time() -> None:
    command = [sys.executable, "-m", "tests.fuzz.operators", "--seed", "3", "--case", "11"]
    runs = [
        subprocess.run(command, cwd=operators.ROOT, env=os.environ, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
