"""Runs a Python module with the run-time libraries of sanitizers before everything else that the interpreter loads."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.native.build import ROOT

# The libraries of each build, and settings of all of them.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "address": ("libasan.so", "libubsan.so"),
    "thread": ("libtsan.so",),
}
SETTINGS = {
    # The interpreter's own leaks, and allocations that torch's libraries pair in ways of their own.
    "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    "OMP_NUM_THREADS": "1",
    "LPS_BACKEND": "reference",
}


def run_sanitized(build: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The build is plain, address or thread; a report ends the process with an exit code that is not 0."""
    compiler = os.environ.get("CXX", "c++")
    found = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in LIBRARIES[build]
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LPS_")}
    environment |= SETTINGS | {"LD_PRELOAD": " ".join(done.stdout.strip() for done in found)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
