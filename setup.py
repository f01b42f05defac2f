"""Builds the native library with CMake; everything else is declared in pyproject.toml.

``LPS_NATIVE=0`` leaves the library out: the package then runs on its references, which are slow. So it is on systems
that it cannot be built for, unless ``LPS_NATIVE=1`` asks for it.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def fail(sentence: str) -> NoReturn:
    """Stop the build with one sentence instead of a traceback."""
    sys.exit(f"learn-prune-share: {sentence}")


def torch_directory() -> Path:
    """The torch to build against, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        fail("torch is not installed in the build environment; run `pip install torch==2.13.0` or build with isolation")
    version = metadata.version("torch")
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < (2, 13):
        fail(f"the library needs torch 2.13 or later to build, got {version}; run `pip install torch==2.13.0`")
    return Path(spec.origin).parent


def is_wanted() -> bool:
    """Whether to build the library: by default, wherever it can be built."""
    wanted = os.environ.get("LPS_NATIVE", "")
    if wanted not in ("", "0", "1"):
        fail(f"LPS_NATIVE: expected 0 or 1, got {wanted}")
    machine = f"{sys.platform} on {platform.machine()}"
    possible = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if wanted == "1" and not possible:
        fail(f"the library builds on Linux on x86_64 or aarch64, got {machine}")
    if wanted != "0" and not possible:
        reason = f"the library builds on Linux on x86_64 or aarch64, and this is {machine}"
        print(f"learn-prune-share: installed without its library: {reason}; it runs on its references, which are slow")
    return wanted != "0" and possible


def check_machine() -> None:
    """Name what is missing before CMake would, at length."""
    compilers = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(compiler) for compiler in compilers):
        remedy = "install g++, set CXX, or leave the library out with LPS_NATIVE=0"
        fail(f"no C++ compiler was found (looked for {', '.join(compilers)}); {remedy}")
    for tool in ("cmake", "ninja"):
        if not shutil.which(tool):
            fail(f"{tool} was not found; run `pip install {tool}` or build with isolation")
    if os.environ.get("LPS_CUDA", "0") not in ("0", "1"):
        fail(f"LPS_CUDA: expected 0 or 1, got {os.environ['LPS_CUDA']}")
    if os.environ.get("LPS_CUDA") == "1" and not (os.environ.get("CUDACXX") or shutil.which("nvcc")):
        fail("LPS_CUDA=1 needs CUDA's compiler, and nvcc was not found on the PATH; install CUDA 13 or set CUDACXX")


class CMakeBuild(build_ext):
    """Runs CMake and puts the library where setuptools wants it."""

    def get_ext_filename(self, fullname: str) -> str:
        """One file for every Python: the library does not use Python's C API."""
        return str(Path(*fullname.split("."))) + ".abi3.so"

    def build_extension(self, ext: Extension) -> None:
        """Configure and build."""
        check_machine()
        output = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-G", "Ninja", str(ROOT), f"-DTORCH_DIR={torch_directory()}"]
        # Named anew each time: a cache from an earlier build remembers the ninja of a build environment that is gone.
        configure += [f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}"]
        configure += [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={output}", f"-DLPS_CUDA={os.environ.get('LPS_CUDA', '0')}"]
        if os.environ.get("LPS_CUDA_ARCHITECTURES"):
            configure += [f"-DCMAKE_CUDA_ARCHITECTURES={os.environ['LPS_CUDA_ARCHITECTURES']}"]
        for command in (configure, ["cmake", "--build", "."]):
            if subprocess.run(command, cwd=build, check=False).returncode != 0:
                fail(f"`{' '.join(command[:2])}` failed; its messages are above")


setup(
    ext_modules=[Extension("lps_kernels._C", [], py_limited_api=True)] if is_wanted() else [],
    cmdclass={"build_ext": CMakeBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
