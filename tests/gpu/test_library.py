"""The library with CUDA kernels in it, built as ``LPS_CUDA=1 pip install .`` builds it, for one architecture only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.native import LIBRARY
from tests.native.build import ROOT

pytestmark = pytest.mark.compile

# Machine code and PTX. test_compile.py compiles the kernels for the other architectures.
ARCHITECTURES = "80"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source package and the library with CUDA kernels in it."""
    if not (os.environ.get("CUDACXX") or shutil.which("nvcc")):
        reason = "CUDA's compiler is absent: no nvcc on the PATH"
        if "LPS_REQUIRE" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    build = ROOT / "build" / "tests-cuda"
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), "-DLPS_CUDA=ON"]
    configure += [f"-DTORCH_DIR={Path(torch.__file__).parent}", f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURES}"]
    configure += [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={build / 'library'}"]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    directory = tmp_path_factory.mktemp("with-cuda")
    shutil.copytree(
        ROOT / "lps_kernels", directory / "lps_kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    shutil.copy(build / "library" / LIBRARY, directory / "lps_kernels" / LIBRARY)
    return directory


def run(package: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LPS_")}
    environment |= {"LPS_REQUIRE": "native", "PYTHONPATH": str(package)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_loads_on_torch_without_cuda_and_its_cpu_kernels_pass(package: Path) -> None:
    said = run(package, "-m", "lps_kernels")
    assert str(package / "lps_kernels" / LIBRARY) in said
    assert said.splitlines()[-1] == f"{len(REGISTRY)} passed, 0 failed"
    if torch.version.cuda is None:
        assert "the native library has them, but torch" in said


def test_it_has_a_cuda_kernel_for_every_operator(package: Path) -> None:
    code = (
        "import sys; sys.modules['triton'] = None; "  # its kernels would hide ones missing from the library
        "import torch, lps_kernels; from lps_kernels._registry import REGISTRY; "
        "has = torch._C._dispatch_has_kernel_for_dispatch_key; "
        "print([name for name in REGISTRY if not has(f'lps::{name}', 'CUDA')])"
    )
    assert run(package, "-c", code).strip() == "[]"


def test_it_says_what_is_wrong_with_the_driver(package: Path) -> None:
    said = run(package, "-c", "import torch, lps_kernels; print(torch.ops.lps._cuda_driver_problem())").strip()
    if Path("/proc/driver/nvidia").exists():
        assert said == "" or "update the driver" in said
    else:
        assert said == "no driver of a GPU was found"


def test_it_holds_the_code_that_it_says(package: Path) -> None:
    code = "import torch, lps_kernels; print(torch.ops.lps._cuda_architectures())"
    assert run(package, "-c", code).strip() == ARCHITECTURES
    cuobjdump = pytest.importorskip("benchmarks.gpu.triton_report").nvidia_tools() / "cuobjdump"
    sources = len(list((ROOT / "csrc" / "cuda").glob("*.cu")))
    for kind in ("elf", "ptx"):
        listed = subprocess.run(
            [cuobjdump, f"--list-{kind}", package / "lps_kernels" / LIBRARY],
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.findall(r"\.(sm_\d+)\.", listed.stdout) == [f"sm_{ARCHITECTURES}"] * sources, listed.stdout


def test_it_is_not_built_for_what_cannot_be_compared_with_a_gpu(tmp_path: Path, package: Path) -> None:
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path), "-DLPS_CUDA=ON"]
    configure += [f"-DTORCH_DIR={Path(torch.__file__).parent}", "-DCMAKE_CUDA_ARCHITECTURES=75;native"]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "expected numbers such as '75;90-real', got 'native'" in " ".join(done.stderr.split())


def test_it_needs_no_library_of_cuda(package: Path) -> None:
    said = subprocess.run(
        ["readelf", "-d", str(package / "lps_kernels" / LIBRARY)], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said.stdout)
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if "cud" in name or name in ("libtorch_cuda.so", "libc10.so")]
