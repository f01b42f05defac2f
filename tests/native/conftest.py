"""The bridges, built once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.native.build import build, build_simulated, cuda_include, load


@pytest.fixture(scope="session")
def bridge() -> ModuleType:
    return load(build())


@pytest.fixture(scope="session")
def sanitized() -> Callable[[str], Path]:
    """Builds the bridge with a sanitizer."""
    return build


@pytest.fixture(scope="session")
def simulator() -> Callable[[str], Path]:
    """Builds the simulator's module of a name, such as cuda_plain."""
    if cuda_include() is None:
        reason = "CUDA's headers are absent: no nvcc on the PATH"
        if "LPS_REQUIRE" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    return build_simulated


@pytest.fixture(scope="session")
def simulated(simulator: Callable[[str], Path]) -> ModuleType:
    """The CUDA kernels, with no sanitizer."""
    return load(simulator("cuda_plain"))


@pytest.fixture(scope="session")
def demo(simulator: Callable[[str], Path]) -> ModuleType:
    """The simulator's demonstration kernels, with no sanitizer."""
    return load(simulator("demo_plain"), "simulator_demo")
