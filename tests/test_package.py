"""Public names and the version: few, frozen, one."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module, metadata
from pathlib import Path

import lps

import lps_kernels
from lps_kernels._registry import REGISTRY

ROOT = Path(__file__).parents[1]
# Everything public of lps_kernels but its operators, which are those of the registry.
NO_OPERATORS = ["Backend", "ProximalAdam", "View", "WeightState", "__version__", "backends", "group_view"]
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


def test_there_is_one_version() -> None:
    assert lps.__version__ == lps_kernels.__version__ == metadata.version("learn-prune-share")
    assert re.fullmatch(r"\d+\.\d+\.\d+", lps_kernels.__version__)
