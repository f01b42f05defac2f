"""Settings: presets, precedence, lists and mappings of shares, what a resumed run may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from lps import train
from lps.data import BENCHMARKS
from lps.methods.lps.config import LPSConfig
from lps.runs.settings import PRESETS, Settings, contradiction, preset


def resolved(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """What ``--print-config`` prints for these arguments."""
    assert train.main([*map(str, arguments), "--print-config"]) == 0
    values: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return values


def test_every_benchmark_has_both_presets_and_all_fit() -> None:
    assert set(PRESETS) == set(BENCHMARKS)
    for benchmark, presets in PRESETS.items():
        assert set(presets) == {"quick", "paper"}
        for name in presets:
            settings = Settings(benchmark=benchmark, preset=name, **preset(benchmark, name))
            spent = [settings.of_task(task).alpha for task in range(1, settings.tasks + 1)]
            assert sum(alpha for alpha in spent if isinstance(alpha, float)) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("name", "tasks", "epochs", "alphas", "beta", "pattern"),
    [
        ("permuted-mnist", 10, (30, 90, 30), [0.1] * 10, 0.9, "irregular"),
        ("split-cifar", 6, (200, 600, 200), [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], 0.92, "irregular"),
        ("split-rf", 5, (20, 60, 20), [0.2] * 5, 0.9, "column"),
    ],
)
def test_the_paper_preset_is_table_one(
    name: str, tasks: int, epochs: tuple[int, int, int], alphas: list[float], beta: float, pattern: str
) -> None:
    settings = Settings(benchmark=name, **preset(name, "paper"))
    assert (settings.tasks, settings.pattern) == (tasks, pattern)
    for task, alpha in enumerate(alphas, start=1):
        assert settings.of_task(task) == LPSConfig(
            alpha=alpha, beta=beta, epochs=epochs, batch_size=128, lr=1e-3, schedule="constant", rho=1e-3
        )


def test_the_default_is_the_quick_preset_of_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    values = resolved(capsys)
    assert (values["benchmark"], values["preset"], values["tasks"]) == ("permuted-digits", "quick", 5)
    assert (values["alpha"], values["beta"], values["schedule"]) == (0.2, 0.9, "cosine")


def test_flags_beat_the_file_beats_the_preset_beats_the_defaults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("benchmark: split-cifar\npreset: paper\nbeta: 0.5\nlr: 1e-2\nfill_last: true\n")
    values = resolved(capsys, "--config", file, "--lr", "0.02", "--seed", "7")
    assert values["batch_size"] == 128  # a default
    assert (values["epochs"], values["alpha"]) == ([200, 600, 200], [0.5, 0.1])  # the preset that the file chose
    assert (values["beta"], values["fill_last"]) == (0.5, True)  # the file
    assert (values["lr"], values["seed"]) == (0.02, 7)  # flags
    assert resolved(capsys, "--config", file, "--preset", "quick")["epochs"] != [200, 600, 200]


def test_what_is_printed_can_be_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("--benchmark", "mixed", "--alpha", "{'0.*': 0.3, '*': 0.1}", "--beta", "0.5,0.1", "--output", "1")
    first = resolved(capsys, *arguments, "--epochs", "1,2,3", "--data-dir", "2024", "--threads", "2")
    assert (first["alpha"], first["beta"], first["epochs"]) == ({"0.*": 0.3, "*": 0.1}, [0.5, 0.1], [1, 2, 3])
    assert (first["output"], first["data_dir"]) == ("1", "2024")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(first))
    assert resolved(capsys, "--config", file) == first


def test_the_last_share_of_a_list_repeats_and_the_last_task_may_take_the_rest() -> None:
    settings = Settings(tasks=4, alpha=(0.5, {"0.weight": 0.2, "*": 0.1}), beta=(0.3, 0.2, 0.1), fill_last=True)
    configs = [settings.of_task(task) for task in (1, 2, 3, 4)]
    shares = {"0.weight": 0.2, "*": 0.1}
    assert [config.alpha for config in configs] == [0.5, shares, shares, "rest"]
    assert [config.beta for config in configs] == [0.3, 0.2, 0.1, 0.1]


def test_a_resumed_run_may_change_what_does_not_alter_learnt_tasks() -> None:
    before = Settings(tasks=3, alpha=0.2)
    assert contradiction(before, before, 2) is None
    assert (
        contradiction(before, replace(before, tasks=5, threads=1, output="x", data_dir="y", download=True), 2) is None
    )
    assert contradiction(before, replace(before, alpha=(0.2, 0.2, 0.1)), 2) is None
    assert contradiction(before, replace(before, fill_last=True), 2) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": 1},
        {"alpha": 0.1},
        {"alpha": (0.2, 0.1)},
        {"beta": 0.5},
        {"pattern": "column"},
        {"sharing": "structured"},
        {"seed": 1},
        {"epochs": (1, 1, 2)},
        {"benchmark": "permuted-mnist"},
        {"tasks": 2, "fill_last": True},
    ],
    ids=str,
)
def test_a_resumed_run_may_not_change_what_was_trained(changes: dict[str, Any]) -> None:
    before = Settings(tasks=3, alpha=0.2)
    problem = contradiction(before, replace(before, **changes), learnt=2)
    assert problem is not None
    assert problem.startswith("alpha:" if "fill_last" in changes else next(iter(changes)))
