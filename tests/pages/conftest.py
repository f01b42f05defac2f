"""Small runs that pages are made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lps import train

SMALL = ("--epochs", "1,2,1", "--tasks", "3", "--threads", "1")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with two methods, of which one has two seeds that differ in name only."""
    folder = tmp_path_factory.mktemp("pages") / "compared"
    for method in ("lps", "finetune"):
        assert train.main([*SMALL, "--method", method, "--output", str(folder / f"{method}-seed0")]) == 0
    shutil.copytree(folder / "lps-seed0", folder / "lps-seed1")
    return folder


@pytest.fixture(scope="session")
def sweep(runs: Path) -> Path:
    """A set of 40 rows: shares from 0 to 1 under two patterns; the numbers are those of one run."""
    folder = runs.parent / "swept"
    for pattern in ("irregular", "column"):
        for share in range(20):
            shutil.copytree(runs / "lps-seed0", folder / f"pattern={pattern},beta={share / 20}-seed0")
    return folder
