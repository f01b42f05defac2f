"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Before torch starts its threads: on a machine that is busy with other things, threads that wait by spinning make the
# tests six times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

# A shell makes the commands of a background job ignore SIGINT, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _restore_global_settings() -> Iterator[None]:
    """A test that fails half-way leaves neither its thread count nor its deterministic mode to the next one."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
