"""A build that cannot work fails with one sentence instead of a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def build(tmp_path: Path, prelude: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py's build in a process with this environment."""
    arguments = ["setup.py", "build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "tmp")]
    code = f"import runpy, sys\nsys.argv = {arguments!r}\n{prelude}\nrunpy.run_path('setup.py', run_name='__main__')"
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def refusal(tmp_path: Path, prelude: str = "", **environment: str) -> str:
    """What a build says when it gives up."""
    done = build(tmp_path, prelude, **environment)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    said = refusal(tmp_path, PATH=str(tmp_path), CXX="")
    wanted = "no C++ compiler was found (looked for c++, g++, clang++); "
    wanted += "install g++, set CXX, or leave the library out with LPS_NATIVE=0"
    assert said == f"learn-prune-share: {wanted}"


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = refusal(tmp_path, CXX="no-such-compiler")
    assert said.startswith("learn-prune-share: no C++ compiler was found (looked for no-such-compiler); install g++")


def test_a_torch_that_is_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch-2.5.0.dist-info").mkdir()
    (tmp_path / "torch-2.5.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.0\n")
    said = refusal(tmp_path, PYTHONPATH=str(tmp_path))
    wanted = "the library needs torch 2.13 or later to build, got 2.5.0; run `pip install torch==2.13.0`"
    assert said == f"learn-prune-share: {wanted}"


def test_another_platform_is_named(tmp_path: Path) -> None:
    said = refusal(tmp_path, "import platform\nplatform.machine = lambda: 'riscv64'", LPS_NATIVE="1")
    wanted = "the library builds on Linux on x86_64 or aarch64, got linux on riscv64"
    assert said == f"learn-prune-share: {wanted}"


@pytest.mark.parametrize(
    ("prelude", "native", "word"),
    [
        ("import setuptools.command.build_ext, sys\nsys.platform = 'darwin'", "", "this is darwin on"),
        ("import platform\nplatform.machine = lambda: 'riscv64'", "", "this is linux on riscv64"),
        ("", "0", ""),
    ],
)
def test_without_the_library_no_compiler_is_needed(tmp_path: Path, prelude: str, native: str, word: str) -> None:
    """As on macOS and Windows, as far as can be seen here."""
    done = build(tmp_path, prelude, PATH=str(tmp_path), CXX="", LPS_NATIVE=native)
    assert done.returncode == 0, done.stderr
    assert ("installed without its library" in done.stdout) == bool(word)
    assert word in done.stdout
    assert not [*tmp_path.rglob("*.so")]


def test_a_wrong_lps_native_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, LPS_NATIVE="no") == "learn-prune-share: LPS_NATIVE: expected 0 or 1, got no"


def test_a_wrong_lps_cuda_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, LPS_CUDA="yes") == "learn-prune-share: LPS_CUDA: expected 0 or 1, got yes"


def test_cuda_without_its_compiler_is_named(tmp_path: Path) -> None:
    for tool in ("c++", "cmake", "ninja"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    said = refusal(tmp_path, PATH=str(tmp_path), LPS_CUDA="1", CUDACXX="")
    wanted = "LPS_CUDA=1 needs CUDA's compiler, and nvcc was not found on the PATH; install CUDA 13 or set CUDACXX"
    assert said == f"learn-prune-share: {wanted}"
