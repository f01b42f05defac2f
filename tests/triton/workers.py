"""Processes that interpret kernels: their environment is set before Triton is imported, a crash ends one task."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Task = tuple[str, ...]


def environment() -> dict[str, str]:
    """Interpreted kernels, compared with the references."""
    # Overflows of 16-bit floats are part of the samples; numpy would report each.
    return compile_only() | {"TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore::RuntimeWarning"}


def compile_only() -> dict[str, str]:
    """Kernels that are compiled instead."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LPS_", "TRITON_"))}
    return kept | {"LPS_BACKEND": "reference", "OMP_NUM_THREADS": "1"}


def interpret(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of this folder's modules to its end."""
    command = [sys.executable, "-m", f"tests.triton.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


class Worker:
    """One process that answers tasks, started again where a task ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115 - lives as long as this

    def answer(self, task: Task) -> dict[str, Any]:
        """The task's result, or the status and last words of the process that it ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            result: dict[str, Any] = json.loads(line)
            return result
        self._process = None
        status = process.wait()
        self._errors.seek(0)
        return {"status": status, "errors": self._errors.read()[-4000:]}

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        command = [sys.executable, "-m", "tests.triton.run_samples"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        return self._process

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None:
            self._process.communicate()
        self._errors.close()


def run_all(tasks: Iterable[Task]) -> dict[Task, dict[str, Any]]:
    """The result of every task, by one process per core."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    results: dict[Task, dict[str, Any]] = {}

    def work() -> None:
        worker = Worker()
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                break
            results[task] = worker.answer(task)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(len(os.sched_getaffinity(0)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
