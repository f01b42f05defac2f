"""The bridge, built once a session."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.native.build import build, load


@pytest.fixture(scope="session")
def bridge() -> ModuleType:
    return load(build(sanitize=False))


@pytest.fixture(scope="session")
def sanitized() -> Path:
    return build(sanitize=True)
