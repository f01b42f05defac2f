"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Set before torch starts its threads: on a busy machine, idle threads that spin make the tests six times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

# A shell makes background jobs ignore SIGINT, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _restore_global_settings() -> Iterator[None]:
    """Restore thread count and deterministic mode after each test, also if it fails half-way."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def no_hang() -> Iterator[None]:
    """A test that waits for ever ends with an error."""

    def hangs(*_: object) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
