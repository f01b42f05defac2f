"""Every Triton kernel, interpreted, against its reference: same bits, nothing beside a tensor, any order.

And every launch, bound for a GPU that is not there, against what is compiled ahead of time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from lps_kernels._registry import REGISTRY, Op
from tests.helpers import each_op_and_dtype
from tests.triton.run_samples import ways
from tests.triton.workers import ROOT, Task, compile_only, environment, interpret, run_all

pytestmark = pytest.mark.triton


def task_of(op: Op, dtype: torch.dtype) -> Task:
    return op.name, str(dtype).removeprefix("torch.")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[Task, dict[str, Any]]:
    """All wanted tasks, two at a time; those of several launches take longest and go first."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    params: list[dict[str, Any]] = [item.callspec.params for item in items if "results" in item.fixturenames]
    wanted = [task_of(param["op"], param["dtype"]) for param in params]
    return run_all(sorted(wanted, key=lambda task: -REGISTRY[task[0]].launches))


@each_op_and_dtype(lambda op, dtype: True)
def test_interpreted_kernels_agree_with_the_reference(
    op: Op, dtype: torch.dtype, results: dict[Task, dict[str, Any]]
) -> None:
    result = results[task_of(op, dtype)]
    assert "status" not in result, f"ended by signal {-result['status']}:\n{result['errors']}"
    assert not result["wrong"], "\n".join(result["wrong"])
    samples = list(op.samples(dtype))
    assert result["samples"] == len(samples)
    assert result["calls"] == sum(len(list(ways(op, sample, dtype, i))) for i, sample in enumerate(samples))


def test_every_launch_is_compiled_ahead_of_time_too() -> None:
    command = [sys.executable, "-m", "tests.triton.launches"]
    done = subprocess.run(command, cwd=ROOT, env=compile_only(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["missing"] == []
    assert report["launches"] > report["forms"] > len(REGISTRY)


def test_what_the_samples_do_not_show() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/triton/interpreted.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_kernel_for_every_op() -> None:
    script = "from lps_kernels.backends.triton import KERNELS; print(*sorted(KERNELS))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == sorted(REGISTRY)


def test_importing_the_package_does_not_import_triton() -> None:
    script = "import sys, lps_kernels; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), check=True)


def test_guarded_memory_holds_what_it_should() -> None:
    done = interpret("faults", "none")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True 1", "True 1"]


@pytest.mark.parametrize("fault", ["too-far", "too-early", "allocated"])
def test_a_kernel_that_reads_one_element_beside_a_tensor_is_killed(fault: str) -> None:
    done = interpret("faults", fault)
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr


def test_a_broken_promise_of_alignment_is_seen() -> None:
    done = interpret("faults", "promise")
    assert done.stdout.split() == ["4", "0"]
    assert "not a multiple of 16" in done.stderr


def test_a_kernel_that_depends_on_the_order_of_programs_is_exposed() -> None:
    done = interpret("faults", "order")
    first, last, *shuffled = (int(word) for word in done.stdout.split())
    assert (first, last) == (7, 0)
    assert any(winner not in (0, 7) for winner in shuffled)
