"""What ``lps.compare`` and ``lps.sweep`` refuse, in one sentence and before anything is started or written."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from lps import compare, sweep

from tests.command import refused


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (compare, ("--methods", "lps,nope"), "--methods: expected some of lps, packnet, "),
        (compare, ("--methods", "lps,lps"), "--methods: expected each once"),
        (compare, ("--seeds", "0,x"), "--seeds: expected different whole numbers"),
        (compare, ("--seeds", "1,1"), "--seeds: expected different whole numbers"),
        (compare, ("--methods", "single", "--beta", "0.5"), "beta: none of single uses it"),
        (compare, ("--methods", "wsn,ewc", "--pattern", "column"), "pattern: none of wsn, ewc uses it"),
        (compare, ("--epochs", "1,1"), "epochs: expected three counts"),
        (compare, ("--jobs", "0"), "--jobs: expected 1 to "),
        (compare, ("--launcher", "moon"), "--launcher: expected one of local, slurm, print, got moon"),
        (compare, ("--slurm", "partition"), "--slurm: expected NAME=VALUE"),
        (compare, ("--output", "nowhere"), "nowhere holds no runs of lps.compare"),
        (compare, ("--method", "lps"), "unrecognized arguments: --method lps"),
        (sweep, (), "--sweep or --vary: say what to vary"),
        (sweep, ("--vary", "betta=0,1"), "betta: is no setting"),
        (sweep, ("--vary", "beta"), "--vary: expected NAME=V1,V2,..."),
        (sweep, ("--vary", "beta=0,1,0"), "--vary: beta: expected different values"),
        (sweep, ("--vary", "beta=[0"), "--vary: beta: expected YAML"),
        (sweep, ("--vary", "beta=null"), "--vary: beta: expected values that its flag can have"),
        (sweep, ("--vary", "beta=0,2"), "beta: expected a number from 0 to 1"),
        (sweep, ("--vary", "seed=0,1"), "--vary: seed: each run has its own"),
        (sweep, ("--vary", "lr=0.1", "--vary", "lr=0.2"), "--vary: expected each setting once, got lr, lr"),
        (sweep, ("--vary", "beta=0,1", "--method", "finetune"), "beta: finetune does not use it"),
        (sweep, ("--sweep", "pattern-share", "--method", "packnet"), "beta: packnet does not use it (lps does)"),
        (sweep, ("--vary", "norms=frozen,per-task", "--method", "hat"), "norms: hat does not use it"),
        (sweep, ("--sweep", "capacity", "--alpha", "rest"), "alpha: expected numbers"),
        (sweep, ("--sweep", "moon"), "--sweep: expected one of share, pattern-share, capacity, got moon"),
    ],
)
def test_refusals(
    module: ModuleType,
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(module, capsys, *arguments)


def test_a_logger_without_its_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lps.runs.loggers.find_spec", lambda name: None)
    said = refused(compare, capsys, "--log", "tensorboard,mlflow")
    assert said == "lps.compare: log: mlflow lacks a package: pip install 'learn-prune-share[mlflow]'\n"
