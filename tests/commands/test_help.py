"""Help, the version and refusals come at once: nothing heavy is imported for them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest
from lps import infer
from lps.cli import COMMANDS
from lps.data import BENCHMARKS
from lps.data.options import IN_PRESETS, OPTIONS
from lps.deploy.classify import TEXTS
from lps.methods import METHODS
from lps.methods.lps import config
from lps.methods.lps.config import LPSConfig
from lps.methods.options import READS
from lps.runs.loggers import LOGGERS

import lps_kernels
from lps_kernels.ops.step import PULLS
from lps_kernels.owner import MAX_TASKS
from tests.command import ENVIRONMENT

HEAVY = {"PIL", "lps_kernels", "numpy", "onnx", "onnxruntime", "pooch", "requests", "tensorboardX", "torch", "tqdm"}
USUAL = ENVIRONMENT | {"COLUMNS": "80"}


def run_importing(*arguments: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run Python, and tell which packages that imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], env=USUAL, capture_output=True, text=True, check=False
    )
    return done, set(re.findall(r"^import time: .*\| +([\w.]+)$", done.stderr, re.MULTILINE))


def heavy(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules} & HEAVY


def test_lps_lists_its_commands_and_tells_its_version() -> None:
    shown, modules = run_importing("-m", "lps.cli", "--help")
    assert shown.returncode == 0
    assert all(f"    {name} " in shown.stdout for name in COMMANDS)
    version, more = run_importing("-m", "lps.cli", "--version")
    assert version.stdout == f"lps {lps_kernels.__version__}\n"
    assert not heavy(modules | more)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_comes_at_once(name: str) -> None:
    shown, modules = run_importing("-m", "lps.cli", name, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: lps.{name} ")
    assert not heavy(modules)
    alone, modules = run_importing("-m", f"lps.{name}", "--help")
    assert alone.stdout == shown.stdout
    assert not heavy(modules)


@pytest.mark.parametrize("arguments", [("--tasks",), ("--no-such-flag",), ("--resume",)])
def test_a_refusal_of_a_flag_comes_at_once(arguments: tuple[str, ...]) -> None:
    refused, modules = run_importing("-m", "lps.train", *arguments)
    assert refused.returncode == 2
    assert not heavy(modules)


def test_the_help_of_train_shows_defaults() -> None:
    shown, _ = run_importing("-m", "lps.train", "--help")
    text = " ".join(shown.stdout.split())
    assert "how tasks are learnt (default: lps)" in text
    assert "training examples (default: 0)" in text
    assert "W,A,F;W,A,F;... one triple per task, the last one for all that follow (default: that of" in text
    assert "of the preset, or 30,90,30)" in text
    assert "lambda of Eq. (3) (default: 100.0)" in text
    assert "fetch data files that are missing --tasks" in text
    assert "(default: None)" not in text
    for option in fields(LPSConfig):
        unsaid = option.default is False or option.default is None
        assert unsaid or f"{option.default}".strip("()").replace(", ", ",") in text


def test_a_package_that_is_imported_imports_nothing_until_it_is_used() -> None:
    _, modules = run_importing("-c", "import lps")
    assert not heavy(modules)


def test_using_the_package_imports_hardly_more_than_torch() -> None:
    """``import lps`` and its names take at most 1.3 times as long as torch alone: no part of torch is loaded that torch
    itself leaves for later, such as its compiler, which takes longer than all the rest.
    """
    _, torchs = run_importing("-c", "import torch, numpy, numpy.random")
    _, modules = run_importing("-c", "import lps; [getattr(lps, name) for name in lps.__all__]")
    more = {name for name in modules - torchs if name.split(".")[0] not in ("lps", "lps_kernels")}
    late = {name for name in more if name.startswith(("torch._dynamo", "torch._inductor", "torch.onnx", "sympy"))}
    assert not late
    assert heavy(more) <= {"torch", "numpy"}
    assert len(more) < 150, sorted(more)


def test_what_is_said_without_importing_is_so() -> None:
    assert (config.PULLS, config.MAX_TASKS) == (PULLS, MAX_TASKS)
    presets = [
        preset for chosen in BENCHMARKS.values() for preset in (*chosen.presets.values(), *chosen.quick_of.values())
    ]
    assert set().union(*presets) == IN_PRESETS
    assert set(OPTIONS) <= set(BENCHMARKS)
    assert tuple(TEXTS) == infer.FORMATS
    assert [(method.name, method.reads) for method in METHODS.values()] == list(READS.items())
    assert all(logger.__name__ for logger in LOGGERS.values())
    assert "none" not in METHODS
