"""Running the real commands in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lps

import lps_kernels

# Wherever the packages were imported from, a process in another directory must find the same ones.
_ROOTS = [str(Path(str(package.__file__)).resolve().parents[1]) for package in (lps, lps_kernels)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(_ROOTS), "PYTHONUNBUFFERED": "1"}


def command(module: str, *arguments: str | Path) -> list[str]:
    """The command line of ``python -m module``."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def run(directory: Path, module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` in a directory to its end."""
    return subprocess.run(
        command(module, *arguments), cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
