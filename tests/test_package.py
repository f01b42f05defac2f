"""Public names are few and frozen, and there is one version."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import lps
import pytest

import lps_kernels
from lps_kernels._registry import REGISTRY
from tests.command import ENVIRONMENT

ROOT = Path(__file__).parents[1]
# Everything public of lps_kernels but its operators, which are those of the registry.
NO_OPERATORS = ["Backend", "ProximalAdam", "Selection", "StraightThroughAdam", "View", "WeightState"]
NO_OPERATORS += ["__version__", "backends", "group_view"]
EXPORTED: list[str] = import_module("lps_kernels").__all__  # type checkers do not see this list


def test_public_names_of_lps_kernels_are_frozen() -> None:
    operators = [op.name for op in REGISTRY.values() if op.public]
    assert sorted(EXPORTED) == sorted(NO_OPERATORS + operators)
    assert all(hasattr(lps_kernels, name) for name in EXPORTED)
    assert not [op.name for op in REGISTRY.values() if not op.public and hasattr(lps_kernels, op.name)]


def test_type_checkers_see_exactly_the_public_names() -> None:
    """They read ``import name as name``, and ``import *`` in its place."""
    aliased = []
    for module in (lps_kernels, lps_kernels.ops):
        body = ast.parse(inspect.getsource(module)).body
        names = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
        aliased += [alias.name for alias in names if alias.asname == alias.name]
    assert sorted(aliased) == sorted(EXPORTED)


def test_every_file_of_operators_is_imported() -> None:
    files = {path.stem for path in (ROOT / "lps_kernels" / "ops").glob("[!_]*.py")}
    assert not [name for name in files if f"lps_kernels.ops.{name}" not in sys.modules]


def test_every_public_operator_is_documented() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    listed = {name for line in text.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)", line)}
    assert {op.name for op in REGISTRY.values() if op.public} <= listed


def test_public_names_of_lps_are_frozen() -> None:
    assert lps.__all__ == [
        "Arrays",
        "Checkpoint",
        "LPSConfig",
        "LPSError",
        "Lifelong",
        "Listener",
        "Row",
        "Task",
        "TaskReport",
        "__version__",
        "load",
    ]
    assert all(hasattr(lps, name) for name in lps.__all__)


def test_every_folder_of_the_packages_is_installed() -> None:
    """The list in pyproject.toml is written by hand; an editable install would not miss what it lacks."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [
        ".".join(path.parent.relative_to(root).parts)
        for root, package in ((ROOT / "python", "lps"), (ROOT, "lps_kernels"))
        for path in (root / package).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(folders)


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Commands set how threads wait before torch is loaded, but import this package before that."""
    code = "import sys, lps, lps.environment; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "given"),
    [
        ("lps.train", {}),
        ("lps.cli", {"GOMP_SPINCOUNT": "7"}),
        *(
            pytest.param(f"lps.{name}", {}, marks=pytest.mark.slow)
            for name in ("cli", "eval", "infer", "export", "info", "diff", "edit")
        ),
        pytest.param("lps.cli", {"OMP_WAIT_POLICY": "ACTIVE"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_commands_say_how_threads_wait_before_torch_is_loaded(module: str, given: dict[str, str]) -> None:
    code = f"""
import os, sys
class Watch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"))
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Watch())
sys.argv = ["lps", "--help"]
try:
    import {module}
    {module}.main()
    import torch
except SystemExit:
    import torch
"""
    unset = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **given}, capture_output=True, text=True, check=True
    )
    expected = given.get("GOMP_SPINCOUNT", "None" if given else "3000")
    assert expected in done.stdout.splitlines(), done.stdout + done.stderr


def test_there_is_one_version() -> None:
    assert lps.__version__ == lps_kernels.__version__ == metadata.version("learn-prune-share")
    assert re.fullmatch(r"\d+\.\d+\.\d+", lps_kernels.__version__)


WITHOUT_UNIX = """
import os, signal, sys
import torch
for name in ("fcntl", "resource"):
    sys.modules[name] = None  # importing it fails
del os.O_NONBLOCK, os.O_CLOEXEC, os.O_NOFOLLOW, signal.SIGHUP, os.sched_getaffinity
import lps
from torch import nn
net = lps.Lifelong(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), 8)
examples = lps.Arrays(torch.randn(32, 4), torch.arange(32) % 2)
net.learn(lps.Task("task", 2, examples, examples), lps.LPSConfig(epochs=(1, 1, 1)))
net.save("model.lps")
again = lps.load("model.lps", nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
assert torch.equal(again.eval()(examples.inputs, task=1), net.eval()(examples.inputs, task=1))
again.extract(1)(examples.inputs)
from lps import train
sys.exit(train.main(["--tasks", "1"]))
"""


def test_without_what_windows_lacks_a_network_learns_and_a_run_is_refused(tmp_path: Path) -> None:
    """Windows itself is not tried: this leaves out, by name, what the package would use of other systems."""
    line = [sys.executable, "-c", WITHOUT_UNIX]
    done = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("lps.train: output: this system lacks the locks"), done.stderr
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
