"""Builds the bridge with CMake, beside the other build products of the clone, and imports it."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pybind11

ROOT = Path(__file__).resolve().parents[2]


def build(sanitize: bool) -> Path:
    """Compile what has changed since the last time; returns the module's file."""
    # One directory an interpreter: CMake remembers where it found Python.
    key = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    directory = ROOT / "build" / "tests-native" / f"{'sanitized' if sanitize else 'plain'}-{key}"
    configure = ["cmake", "-G", "Ninja", "-S", str(Path(__file__).parent), "-B", str(directory)]
    configure += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DSANITIZE={'ON' if sanitize else 'OFF'}"]
    for command in (configure, ["cmake", "--build", str(directory)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:2])} failed:\n{done.stdout}\n{done.stderr}")
    (module,) = directory.glob("lps_bridge*.so")
    return module


def load(path: Path) -> ModuleType:
    """Import the bridge from its file."""
    spec = importlib.util.spec_from_file_location("lps_bridge", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
