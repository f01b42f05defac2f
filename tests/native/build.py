"""Builds the bridges with CMake, beside the other build products of the clone, and imports them."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pybind11

NATIVE = Path(__file__).resolve().parent
ROOT = NATIVE.parents[1]


def _cmake(source: Path, directory: Path, options: list[str], target: str) -> None:
    """Compile what has changed since the last time; processes of one test run take turns."""
    configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(directory)]
    configure += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}", *options]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(directory), "--target", target]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command[:2])} failed:\n{done.stdout}\n{done.stderr}")


def _directory(name: str) -> Path:
    """One directory an interpreter: CMake remembers where it found Python."""
    key = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    return ROOT / "build" / "tests-native" / f"{name}-{key}"


def build(sanitizer: str = "") -> Path:
    """The bridge to the CPU's kernels, with the sanitizer address, thread or none; returns the module's file."""
    directory = _directory(sanitizer or "plain")
    _cmake(NATIVE, directory, [f"-DSANITIZE={sanitizer}"], "all")
    (module,) = directory.glob("lps_bridge*.so")
    return module


@cache
def cuda_include() -> str | None:
    """Where nvcc says that CUDA's headers are, if there is one."""
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if compiler is None:
        return None
    plan = subprocess.run(
        [compiler, "--dryrun", "-x", "cu", "-E", os.devnull], capture_output=True, text=True, check=True
    )
    found = re.search(r'INCLUDES="-I([^"]+?)"', plan.stderr)
    return found[1].strip() if found else None


def build_simulated(name: str) -> Path:
    """One of the simulator's modules: cuda_ or demo_ followed by plain, address, thread or counting."""
    directory = _directory("simulator")
    _cmake(NATIVE / "simulator", directory, [f"-DCUDA_INCLUDE={cuda_include()}"], name)
    return directory / f"{name}.so"


def load(path: Path, name: str = "lps_bridge") -> ModuleType:
    """Import a bridge from its file; the name is the one that it was compiled with."""
    # pybind11 makes one module a full name, whatever its file; the last part of it is what the file was compiled with.
    spec = importlib.util.spec_from_file_location(f"{path.stem.partition('.')[0]}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
