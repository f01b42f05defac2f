"""Which backend serves the ops, each time in a process of its own: found, refused, forced, missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pytest
import torch

from lps_kernels._registry import REGISTRY
from lps_kernels._version import __version__
from lps_kernels.backends.gpu import Capability, Code, without_code
from lps_kernels.backends.native import LIBRARY, find_library

ROOT = Path(__file__).resolve().parents[2]
OURS = ("learn_prune_share", "__editable__", "lps", "lps_kernels")
REPORT = """
import lps_kernels
for backend in lps_kernels.backends():
    print(backend.name, backend.active, backend.reason, sep="|")
"""
WORK = """
import torch, lps_kernels
x = torch.arange(9) % 2 == 0
assert torch.equal(lps_kernels.unpack_bits(lps_kernels.pack_bits(x), [9]), x)
"""


def run(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Python in a new process that knows nothing of this one's settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LPS_") and k != "PYTHONPATH"}
    command = [sys.executable, "-W", "always", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=inherited | dict(environment or {}), capture_output=True, text=True, check=False
    )


def native_line(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Name, activity and reason of the native backend as :data:`REPORT` printed it."""
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("native|"))
    return line.split("|")


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is installed beside torch, except this project."""
    directory = tmp_path_factory.mktemp("dependencies")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (directory / entry.name).symlink_to(entry)
    return directory


class Uninstalled:
    """The source package alone in a directory, for an interpreter that finds no installed distribution."""

    def __init__(self, directory: Path, dependencies: Path) -> None:
        self.directory, self.dependencies = directory, dependencies
        shutil.copytree(
            ROOT / "lps_kernels", directory / "lps_kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        self.library = directory / "lps_kernels" / LIBRARY

    def run(self, code: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Without the site module there is no site-packages: only what is named here can be imported."""
        path = f"{self.directory}{os.pathsep}{self.dependencies}"
        return run(["-S", "-c", code], self.directory, {"PYTHONPATH": path} | dict(environment or {}))


@pytest.fixture
def uninstalled(tmp_path: Path, dependencies: Path) -> Uninstalled:
    return Uninstalled(tmp_path, dependencies)


def warnings_in(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.split("RuntimeWarning: ")[1] for line in done.stderr.splitlines() if "RuntimeWarning: " in line]


def test_native_is_active_from_the_root_of_the_clone() -> None:
    done = run(["-c", f"{REPORT}{WORK}print(lps_kernels.__file__)"], ROOT, {"LPS_REQUIRE": "native"})
    assert native_line(done)[1] == "True"
    assert done.stdout.splitlines()[-1] == str(ROOT / "lps_kernels" / "__init__.py")
    assert not warnings_in(done)


def test_native_is_active_from_an_empty_directory(tmp_path: Path) -> None:
    done = run(["-c", REPORT + WORK], tmp_path, {"LPS_REQUIRE": "native"})
    assert native_line(done)[1] == "True"
    assert not warnings_in(done)


def test_native_is_found_past_the_metadata_that_a_build_leaves_in_the_clone(tmp_path: Path) -> None:
    installed = [file.name for d in metadata.distributions(name="learn-prune-share") for file in d.files or []]
    if LIBRARY not in installed:
        pytest.skip("an editable install: the library lies beside the source and is found there")
    shutil.copytree(
        ROOT / "lps_kernels", tmp_path / "lps_kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    left = tmp_path / "learn_prune_share.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text(f"Metadata-Version: 2.4\nName: learn-prune-share\nVersion: {__version__}\n")
    (left / "SOURCES.txt").write_text("setup.py\nlps_kernels/__init__.py\n")
    assert native_line(run(["-c", REPORT], tmp_path, {"LPS_REQUIRE": "native"}))[1] == "True"


def test_without_a_library_the_references_work_and_one_warning_says_so(uninstalled: Uninstalled) -> None:
    done = uninstalled.run(f"{REPORT}{WORK}import importlib; importlib.import_module('lps_kernels.ops')")
    reason = f"no built library ({LIBRARY}) was found; run `pip install .` in the clone"
    assert native_line(done)[1:] == ["False", reason]
    assert warnings_in(done) == [f"lps_kernels runs on its slow references on the CPU: {reason}"]


@pytest.mark.parametrize("variable", ["LPS_REQUIRE", "LPS_BACKEND"])
def test_a_required_library_that_is_missing_is_one_clear_sentence(variable: str, uninstalled: Uninstalled) -> None:
    done = uninstalled.run("import lps_kernels", {variable: "native"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: lps_kernels: the native backend is required but not active: "
        f"no built library ({LIBRARY}) was found; run `pip install .` in the clone"
    )


def _library() -> bytes:
    path = find_library()
    assert path is not None, "the native library is not built"
    return path.read_bytes()


def test_a_library_of_another_version_is_not_loaded(uninstalled: Uninstalled) -> None:
    stamp = b"lps-kernels-version=" + __version__.encode()
    content = _library()
    assert stamp in content
    other = "9" * len(__version__)
    uninstalled.library.write_bytes(content.replace(stamp, b"lps-kernels-version=" + other.encode()))
    done = uninstalled.run(REPORT + WORK)
    built = f"{uninstalled.library} was built for version {other}, but this is {__version__}"
    assert native_line(done)[1:] == ["False", f"{built}; run `pip install .` in the clone"]
    assert len(warnings_in(done)) == 1


def test_a_library_of_this_version_is_loaded_from_beside_the_source(uninstalled: Uninstalled) -> None:
    uninstalled.library.write_bytes(_library())
    _, active, reason = native_line(uninstalled.run(REPORT + WORK))
    assert active == "True"
    assert reason.startswith(f"{uninstalled.library}, ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "was built for version unknown"),
        (b"lps-kernels-version=" + __version__.encode() + b"\0", "cannot be loaded"),
    ],
)
def test_a_file_that_is_no_library_is_refused_with_a_reason(
    content: bytes, reason: str, uninstalled: Uninstalled
) -> None:
    uninstalled.library.write_bytes(content)
    done = uninstalled.run(REPORT + WORK)
    assert native_line(done)[1] == "False"
    assert f"{uninstalled.library} {reason}" in native_line(done)[2]
    assert len(warnings_in(done)) == 1


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("LPS_REQUIRE", "gpu", "lps_kernels: LPS_REQUIRE: expected one of native, cuda, triton, got gpu"),
        ("LPS_TF32", "yes", "lps_kernels: LPS_TF32: expected one of 0, 1, got yes"),
        ("LPS_BACKEND", "fast", "lps_kernels: LPS_BACKEND: expected one of native, cuda, triton, reference, got fast"),
    ],
)
def test_a_variable_with_an_unknown_value_is_refused(variable: str, value: str, sentence: str) -> None:
    done = run(["-c", "import lps_kernels"], ROOT, {variable: value})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {sentence}"


def test_an_unknown_instruction_set_is_refused() -> None:
    done = run(["-c", "import lps_kernels"], ROOT, {"LPS_CPU_ISA": "sse"})
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1].split(": ", 1)[1]
    assert sentence.startswith("lps_kernels: LPS_CPU_ISA: expected one of scalar")
    assert sentence.endswith(", got sse")


def test_the_reference_can_be_asked_for_without_a_warning() -> None:
    code = f"{REPORT}{WORK}print(torch._C._dispatch_has_kernel_for_dispatch_key('lps::pack_bits', 'CPU'))"
    done = run(["-c", code], ROOT, {"LPS_BACKEND": "reference"})
    assert native_line(done)[1:] == ["False", "switched off by LPS_BACKEND=reference"]
    assert done.stdout.splitlines()[-1] == "False"
    assert not warnings_in(done)


def _report_of_the_command(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    done = run(["-m", "lps_kernels"], ROOT, {"LPS_REQUIRE": "native"} | dict(environment))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("isa", ["scalar", "best"])
def test_the_command_reports_backends_instruction_set_and_a_passing_self_test(isa: str) -> None:
    lines = _report_of_the_command({"LPS_CPU_ISA": isa if isa == "scalar" else ""}).stdout.splitlines()
    words = [line.split() for line in lines]
    assert next(line for line in words if line[:1] == ["native"])[1] == "active"
    assert next(line for line in words if line[:1] == ["reference"])[1] == "active"
    (named,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("cpu instruction set: ")]
    assert named == "scalar" if isa == "scalar" else named in ("scalar", "avx2", "avx512")
    for name in REGISTRY:
        (line,) = [line for line in words if line[:1] == [name]]
        assert line[1:4] == ["cpu", "native", "ok,"], line
    assert lines[-1] == f"{len(REGISTRY)} passed, 0 failed"


def test_the_command_fails_where_an_op_is_wrong() -> None:
    code = """
import sys, torch, lps_kernels, lps_kernels.__main__
sys.argv = ["lps_kernels"]
library = torch.library.Library("lps", "IMPL")
library.impl("pack_bits", lambda x: torch.zeros((x.numel() + 7) // 8, dtype=torch.uint8), "CPU", allow_override=True)
sys.exit(lps_kernels.__main__.main())
"""
    done = run(["-c", code], ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
    assert len(failed) == 1
    assert failed[0].split()[0] == "pack_bits"
    assert done.stdout.splitlines()[-1] == f"{len(REGISTRY) - 1} passed, 1 failed"


NO_CUDA = """
import torch
def touched(*args, **kwargs):
    raise SystemExit("CUDA was touched")
for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, touched)
"""


def test_importing_and_using_the_package_touches_no_cuda() -> None:
    done = run(["-c", f"{NO_CUDA}{WORK}assert not torch.cuda.is_initialized(); print('done')"], ROOT)
    assert done.stdout.split() == ["done"], done.stderr


def test_touching_cuda_would_have_been_seen() -> None:
    done = run(["-c", f"{NO_CUDA}torch.cuda.is_available(); print('done')"], ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "CUDA was touched"


without_cuda = pytest.mark.skipif(
    bool(torch.version.cuda or torch.version.hip), reason="says what happens where torch has neither CUDA nor ROCm"
)
PRETEND_CUDA = "import torch; torch.version.cuda = '13.0'\n"
ON_GPU = """
names = sorted(lps_kernels._registry.REGISTRY)
print(sum(torch._C._dispatch_has_kernel_for_dispatch_key(f"lps::{name}", "CUDA") for name in names), len(names))
"""


def gpu_lines(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """Activity and reason of the backends of a GPU as :data:`REPORT` printed them."""
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    return {name: rest for name, *rest in lines if name in ("cuda", "triton")}


@without_cuda
def test_on_torch_without_cuda_both_gpu_backends_say_why_they_are_not_active() -> None:
    done = run(["-c", REPORT], ROOT)
    cuda, triton = gpu_lines(done)["cuda"], gpu_lines(done)["triton"]
    assert cuda[0] == triton[0] == "False"
    assert "LPS_CUDA=1 pip install ." in cuda[1] or "built without CUDA" in cuda[1]
    assert triton[1] == f"torch {torch.__version__} is built without CUDA and without ROCm"


def test_on_torch_with_cuda_every_operator_has_a_gpu_kernel_and_triton_is_not_imported_yet() -> None:
    code = f"{PRETEND_CUDA}{REPORT}{ON_GPU}import sys; print('triton' in sys.modules)"
    for backend in ("", "triton"):
        done = run(["-c", code], ROOT, {"LPS_BACKEND": backend})
        active = [name for name, status in gpu_lines(done).items() if status[0] == "True"]
        assert active == ["triton"] if backend == "triton" else len(active) == 1
        *_, counts, imported = done.stdout.splitlines()
        assert counts == f"{len(REGISTRY)} {len(REGISTRY)}"
        assert imported == "False"


def test_interpreted_triton_is_not_active() -> None:
    done = run(["-c", f"{PRETEND_CUDA}{REPORT}"], ROOT, {"TRITON_INTERPRET": "1"})
    reason = "TRITON_INTERPRET is set, and interpreted kernels cannot read a GPU's memory; unset it"
    assert gpu_lines(done)["triton"] == ["False", reason]


def test_a_first_call_imports_triton_and_runs_its_kernel() -> None:
    # What is registered for a GPU is called with a tensor of the CPU, so it is interpreted.
    code = f"""{PRETEND_CUDA}
import os, sys, lps_kernels
os.environ["TRITON_INTERPRET"] = "1"
x = torch.arange(9) % 2 == 0
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
for _ in range(2):
    bits = torch.ops.lps.pack_bits.default.redispatch(keys, x)
    assert torch.equal(bits, lps_kernels.pack_bits(x))
print("lps_kernels.backends.triton" in sys.modules)
"""
    done = run(["-c", code], ROOT, {"LPS_BACKEND": "triton"})
    assert done.stdout.split() == ["True"], done.stderr


# What CMakeLists.txt builds unless it is told otherwise.
DEFAULT = "75,80,86-real,89-real,90-real,100-real,120"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((7, 0), DEFAULT, None),
        ((7, 5), DEFAULT, "machine code for 7.5"),
        ((8, 0), DEFAULT, "machine code for 8.0"),
        ((8, 7), DEFAULT, "machine code for 8.6"),
        ((8, 9), DEFAULT, "machine code for 8.9"),
        ((10, 3), DEFAULT, "machine code for 10.0"),
        ((11, 0), DEFAULT, "PTX for 8.0"),
        ((12, 1), DEFAULT, "machine code for 12.0"),
        ((13, 0), DEFAULT, "PTX for 12.0"),
        ((9, 0), "75-virtual,90-real", "machine code for 9.0"),
        ((8, 0), "75-virtual,90-real", "PTX for 7.5"),
        ((8, 0), "86", None),
        ((12, 0), "90-real", None),
    ],
)
def test_a_gpu_runs_code_of_its_major_version_or_earlier_ptx(
    capability: Capability, architectures: str, runs: str | None
) -> None:
    code = Code.of(architectures)
    assert code.runs_on(capability) == runs
    problem = without_code([("first", (9, 0)), ("second", capability)], Code.of("90," + architectures))
    if runs is None and capability < (9, 0):
        assert problem is not None
        assert f"nothing for GPU 1 (second, {capability[0]}.{capability[1]})" in problem
        assert "LPS_CUDA=1 pip install ." in problem
    else:
        assert problem is None


def test_the_default_architectures_are_these() -> None:
    found = re.search(r'set\(CMAKE_CUDA_ARCHITECTURES "(.*)"\)', (ROOT / "CMakeLists.txt").read_text())
    assert found is not None
    assert found[1].replace(";", ",") == DEFAULT
    # Every GPU from 7.5 on runs something, whatever comes.
    assert all(Code.of(DEFAULT).runs_on((major, minor)) for major in range(8, 20) for minor in range(10))


def settled(gpu: tuple[str, Capability], then: str = "") -> subprocess.CompletedProcess[str]:
    """What happens when torch starts CUDA on this GPU with a library that has code for 9.0 alone."""
    code = f"""{PRETEND_CUDA}
import lps_kernels
from lps_kernels.backends import settle
from lps_kernels.backends.gpu import Code
settle([{gpu!r}], Code.of("90"))
{REPORT}{then}"""
    return run(["-c", code], ROOT)


def test_a_gpu_that_the_library_has_no_code_for_gets_tritons_kernels() -> None:
    done = settled(("some GPU", (8, 0)))
    reason = "the native library has machine code for 9.0 and PTX for 9.0, nothing for GPU 0 (some GPU, 8.0)"
    lines = gpu_lines(done)
    assert lines["cuda"][0] == "False"
    assert lines["cuda"][1].startswith(reason)
    assert lines["triton"][0] == "True"
    assert [line for line in warnings_in(done) if line.startswith("lps_kernels runs on Triton's kernels on the GPU: ")]


def test_a_gpu_that_triton_is_not_compiled_for_gets_the_references() -> None:
    # What is registered for a GPU is called with a tensor of the CPU.
    call = """
x = torch.arange(9) % 2 == 0
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
print(torch.equal(torch.ops.lps.pack_bits.default.redispatch(keys, x), lps_kernels.pack_bits(x)))
"""
    done = settled(("old GPU", (7, 0)), call)
    lines = gpu_lines(done)
    assert lines["cuda"][0] == lines["triton"][0] == "False"
    assert "nothing for GPU 0 (old GPU, 7.0)" in lines["cuda"][1]
    assert lines["triton"][1] == "its kernels are compiled for 8.0 and later, this is old GPU, 7.0"
    assert [
        line for line in warnings_in(done) if line.startswith("lps_kernels runs on the slow references (not Triton")
    ]
    assert done.stdout.splitlines()[-1] == "True"


def test_required_cuda_kernels_without_code_for_the_gpu_are_an_error() -> None:
    code = f"""{PRETEND_CUDA}
import os, lps_kernels
from lps_kernels.backends import settle
from lps_kernels.backends.gpu import Code
os.environ["LPS_REQUIRE"] = "cuda"  # at import it would be missed on a machine without a GPU
settle([("some GPU", (9, 0))], Code.of("90"))
settle([("old GPU", (7, 0))], Code.of("90"))
"""
    done = run(["-c", code], ROOT)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: lps_kernels: the cuda backend is required but not active: the native library")


def test_on_rocm_a_library_with_cuda_kernels_says_what_to_do() -> None:
    pretend = "import torch; torch.version.cuda, torch.version.hip = None, '7.0'\n"
    code = f"""{pretend}
from lps_kernels.backends.gpu import cuda
torch._C._dispatch_has_kernel_for_dispatch_key = lambda name, key: True
print(cuda(True, False)[1])
"""
    done = run(["-c", code], ROOT)
    assert done.stdout.splitlines()[-1].endswith(
        "is built without CUDA; on ROCm, run `pip install triton`, or `pip install .` for a library without them"
    ), done.stderr


@without_cuda
def test_a_required_gpu_backend_that_is_not_there_is_one_clear_sentence() -> None:
    for environment in ({"LPS_REQUIRE": "triton"}, {"LPS_BACKEND": "triton"}):
        done = run(["-c", "import lps_kernels"], ROOT, environment)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "ImportError: lps_kernels: the triton backend is required but not active: "
            f"torch {torch.__version__} is built without CUDA and without ROCm"
        )
