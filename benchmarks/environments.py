"""Peers that want other versions than we do: each in a virtual environment of its own, made on first use."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from lps.data.download import default_directory

from benchmarks.peers import UnavailableError


def install(peer: str, packages: Sequence[Sequence[str]]) -> Path:
    """The Python of a peer's environment in the user's cache directory; ``packages`` are pip's arguments, in order."""
    folder = default_directory() / peer.lower()
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    whole = folder / "complete"  # an environment whose making was interrupted does not have it
    if whole.exists() and python.exists():
        return python
    print(f"installing {peer} into {folder}", file=sys.stderr, flush=True)
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"no virtual environment can be made in {folder}: {error}") from error
    for some in packages:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *some]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"{peer} cannot be installed: {last_line(done.stderr)}")
    whole.touch()
    return python


def last_line(text: str) -> str:
    """What a program said last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
