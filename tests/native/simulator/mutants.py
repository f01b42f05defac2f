"""Compiles the CUDA kernels with a fault in them: one source anew, everything else from the build without faults."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.native.build import ROOT
from tests.native.simulator.faults import Fault

SOURCES = ROOT / "csrc" / "cuda"


def build_mutant(fault: Fault, healthy: Path, directory: Path) -> Path:
    """The module with the fault in it, built in an empty directory of its own."""
    shutil.copytree(SOURCES, directory / "cuda")
    file = directory / "cuda" / fault.file
    file.write_text(fault.put_into(file.read_text(encoding="utf-8")), encoding="utf-8")

    plan = subprocess.run(
        ["ninja", "-t", "commands", healthy.stem], cwd=healthy.parent, capture_output=True, text=True, check=True
    )
    *compilations, link = plan.stdout.splitlines()
    source = str(SOURCES / fault.unit)
    # Sources of both bridges are compiled there; the kernels of this build have the source's name in their object's.
    (command,) = [line for line in compilations if line.endswith(f" -c {source}")]
    (made,) = [word for word in link.split() if word.endswith(f"/{fault.unit}.o")]
    module, made_here = directory / "mutant.so", str(directory / "unit.o")
    command = command.replace(made, made_here).replace(source, str(directory / "cuda" / fault.unit))
    # First, as the linker takes the first of the same functions that several sources have from one header.
    link = link.replace(f" {made} ", " ").replace(f" -o {healthy.name} ", f" -o {module} {made_here} ")
    for step in (command, link):
        done = subprocess.run(step, shell=True, cwd=healthy.parent, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{step}\n{done.stdout}\n{done.stderr}")
    return module
