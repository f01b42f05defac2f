"""Running the real commands in subprocesses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import lps
import pytest

import lps_kernels

# A subprocess in another directory must import the same packages as this process.
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


def contents() -> dict[Path, bytes]:
    """Every file below the current directory."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def refused(module: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command that fails; checks that it is one sentence and that no file appeared or changed."""
    before = contents()
    with pytest.raises(SystemExit) as stopped:
        sys.exit(module.main(list(arguments)))
    shown = capsys.readouterr()
    assert stopped.value.code in (1, 2)
    assert shown.out == ""
    assert shown.err.startswith(f"{module.PROG}: ")
    assert shown.err.count("\n") == 1
    assert contents() == before
    return shown.err
