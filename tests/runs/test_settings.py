"""Settings: presets, precedence, lists and mappings of shares, what a resumed run may change."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lps import train
from lps.artifact.read import load
from lps.data import BENCHMARKS
from lps.data.options import RadioOptions
from lps.metadata import Source
from lps.methods.lps.config import LPSConfig, TaskConfig
from lps.runs.settings import Settings, contradiction, difference, read_settings, settings_from


def resolved(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """What ``--print-config`` prints for these arguments."""
    assert train.main([*map(str, arguments), "--print-config"]) == 0
    values: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return values


def test_every_benchmark_has_both_presets_and_all_fit() -> None:
    for benchmark, chosen in BENCHMARKS.items():
        assert set(chosen.presets) == {"quick", "paper"}
        for name in chosen.presets:
            settings = settings_from({"benchmark": benchmark, "preset": name})
            assert (settings.tasks, settings.preset) == (chosen.tasks, name)
            spent = [settings.of_task(task).alpha for task in range(1, settings.tasks + 1)]
            assert sum(alpha for alpha in spent if isinstance(alpha, float)) <= 1 + 1e-9
        for method in chosen.quick_of:
            settings_from({"benchmark": benchmark, "method": method})


def test_a_method_may_have_settings_of_its_own_in_the_quick_preset() -> None:
    def epochs(**given: object) -> object:
        return settings_from({"benchmark": "permuted-mnist", **given}).lps.epochs

    assert epochs() == epochs(method="ewc") == (1, 3, 1)
    assert epochs(method="gem") == (1, 0, 0)
    assert epochs(method="gem", epochs=[1, 1, 1]) == (1, 1, 1)
    assert epochs(method="gem", preset="paper") == (30, 90, 30)


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
    settings = settings_from({"benchmark": name, "preset": "paper"})
    assert (settings.tasks, settings.pattern) == (tasks, pattern)
    for task, alpha in enumerate(alphas, start=1):
        assert settings.of_task(task) == TaskConfig(
            alpha=alpha,
            beta=beta,
            epochs=epochs,
            batch_size=128,
            lr=1e-3,
            schedule="constant",
            solver="admm",
            pull="gradient",
            rho=1e-3,
        )


def test_the_default_is_the_quick_preset_of_the_digits(capsys: pytest.CaptureFixture[str]) -> None:
    values = resolved(capsys)
    assert (values["benchmark"], values["preset"], values["tasks"]) == ("permuted-digits", "quick", 5)
    assert (values["lps"]["alpha"], values["lps"]["beta"], values["lps"]["schedule"]) == (0.2, "auto", "cosine")
    assert (values["lps"]["solver"], values["lps"]["pull"]) == ("straight-through", "proximal")
    assert (values["method"], values["norms"], values["augment"]) == ("lps", "frozen", False)
    assert (values["save_every"], values["stream_seed"]) == (60, None)
    assert (values["lps"]["precision"], values["lps"]["channels_last"]) == ("fp32", False)


@pytest.mark.parametrize(
    "text",
    [
        "benchmark: split-cifar\npreset: paper\nfill_last: true\nlps:\n  beta: 0.5\n  lr: 1e-2\n",
        "benchmark: split-cifar\npreset: paper\nbeta: 0.5\nlr: 1e-2\nfill_last: true\nwindow: null\n",
    ],
    ids=["sections", "flat, as of an earlier version"],
)
def test_flags_beat_the_file_beats_the_preset_beats_the_defaults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    values = resolved(capsys, "--config", file, "--lr", "0.02", "--seed", "7")
    lps = values["lps"]
    assert lps["batch_size"] == 128  # a default
    assert (lps["epochs"], lps["alpha"]) == ([200, 600, 200], [0.5, 0.1])  # the preset that the file chose
    assert (lps["beta"], values["fill_last"]) == (0.5, True)  # the file
    assert (lps["lr"], lps["seed"]) == (0.02, 7)  # flags
    assert resolved(capsys, "--config", file, "--preset", "quick")["lps"]["epochs"] == [[1, 3, 1], [3, 9, 3]]
    before = resolved(capsys, "--lr", "0.02", "--config", file)  # flags beat the file wherever they stand
    assert before["lps"]["lr"] == 0.02


def test_the_last_of_several_files_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, text in (("one.yaml", "tasks: 2\nlr: 0.1\n"), ("two.yaml", "lps: {lr: 0.2}\n")):
        (tmp_path / name).write_text(text)
    values = resolved(capsys, "--config", tmp_path / "one.yaml", "--config", tmp_path / "two.yaml")
    assert (values["tasks"], values["lps"]["lr"]) == (2, 0.2)


def test_what_is_printed_can_be_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("--benchmark", "mixed", "--alpha", "{'0.*': 0.3, '*': 0.1}", "--beta", "0.5,0.1", "--output", "1")
    more = ("--norms", "per-task", "--augment", "--stream-seed", "3", "--save-every", "1e1", "--precision", "bf16")
    first = resolved(capsys, *arguments, *more, "--epochs", "1,2,3", "--data-dir", "20,24", "--threads", "2")
    lps = first["lps"]
    assert (lps["alpha"], lps["beta"], lps["epochs"]) == ({"0.*": 0.3, "*": 0.1}, [0.5, 0.1], [1, 2, 3])
    assert (first["output"], first["data_dir"]) == ("1", "20,24")
    assert (first["norms"], first["augment"], first["stream_seed"], first["save_every"]) == ("per-task", True, 3, 10)
    assert lps["precision"] == "bf16"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(first))
    assert resolved(capsys, "--config", file) == first


def test_a_file_of_an_earlier_version_means_what_it_meant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without sections, solver and norms; ``window: null`` means whole windows, where the quick preset has 256."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "benchmark: split-rf\npreset: quick\ndata_dir: null\ndownload: false\ntasks: 5\nepochs:\n- 1\n- 3\n- 1\n"
        "pattern: column\nalpha: 0.2\nbeta: 0.9\nfill_last: false\nreserve: 0.0\nsharing: elementwise\n"
        "batch_size: 32\nlr: 0.001\nschedule: cosine\nrho: 0.0001\nrho_levels: 3\ndropout: null\nwindow: null\n"
        "seed: 4\ndevice: cpu\nthreads: null\noutput: null\n"
    )
    settings = settings_from(read_settings(file))
    assert (settings.options, settings.source()) == ({"window": None}, Source("split-rf", 4, 5, {}))
    paper = {"solver": "admm", "pull": "gradient", "alpha": 0.2, "beta": 0.9, "rho": 1e-4, "epochs": (1, 3, 1)}
    changed = settings_from({"benchmark": "split-rf", "seed": 4, "window": None, "norms": "frozen", **paper})
    assert changed == settings
    # What it prints in sections leaves the window whole as well.
    sections = tmp_path / "sections.yaml"
    sections.write_text(settings.to_yaml())
    assert settings_from(read_settings(sections)) == settings
    assert resolved(capsys, "--config", sections, "--window", "64")["options"] == {"window": 64}


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        train.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    names = [option.name for kind in (Settings, LPSConfig, RadioOptions) for option in fields(kind)]
    for name in set(names) - {"lps", "options", "method_options"}:
        assert f"\n  --{name.replace('_', '-')} " in text
    assert "only for split-rf, synthetic-rf:\n  --window N" in text


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("4,12,4", [4, 12, 4]),
        ("4,12,4;10,30,10", [[4, 12, 4], [10, 30, 10]]),
        ("[[4, 12, 4], [10, 30, 10]]", [[4, 12, 4], [10, 30, 10]]),
    ],
)
def test_epochs_per_task_as_a_flag(capsys: pytest.CaptureFixture[str], text: str, epochs: list[Any]) -> None:
    assert resolved(capsys, "--epochs", text)["lps"]["epochs"] == epochs


def test_shares_as_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for text, alpha in (
        ("0.5", 0.5),
        ("1e-1", 0.1),
        ("0.5,0.1", [0.5, 0.1]),
        ('{"conv*": 0.1, "*": 1}', {"conv*": 0.1, "*": 1.0}),
        ('[0.5, {"*": 0.1}]', [0.5, {"*": 0.1}]),
        ("rest", "rest"),
    ):
        assert resolved(capsys, "--alpha", text)["lps"]["alpha"] == alpha
    for text, beta in (
        ("0.5", 0.5),
        ("auto", "auto"),
        ("0.5,max:0.9,auto", [0.5, "max:0.9", "auto"]),
        ('{"conv*": auto, "*": 1}', {"conv*": "auto", "*": 1}),
    ):
        assert resolved(capsys, "--beta", text)["lps"]["beta"] == beta


def test_the_paper_presets_use_the_papers_solver() -> None:
    for benchmark in BENCHMARKS:
        config = settings_from({"benchmark": benchmark, "preset": "paper"}).lps
        assert (config.solver, config.pull) == ("admm", "gradient")
        assert not isinstance(config.beta, str)


def test_a_run_with_epochs_per_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--tasks", "3", "--epochs", "0,1,0;1,2,0", "--output", str(tmp_path / "run")]
    assert train.main([*arguments, "--stream-seed", "3", "--threads", str(torch.get_num_threads())]) == 0
    assert "straight-through 2/2" in capsys.readouterr().out  # of tasks 2 and 3
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["event"] == "epoch"]
    seen = [[(row["phase"], row["epoch"]) for row in rows if row["task"] == str(task)] for task in (1, 2, 3)]
    solver = [("straight-through", "1"), ("straight-through", "2")]
    assert seen == [solver[:1], *[[("warm-up", "1"), *solver]] * 2]
    assert load(tmp_path / "run" / "model.lps").metadata.stream == Source("permuted-digits", 3, 3, {})


def test_the_last_value_of_a_list_repeats_and_the_last_task_may_take_the_rest() -> None:
    config = LPSConfig(
        alpha=(0.5, {"0.weight": 0.2, "*": 0.1}), beta=(0.3, 0.2, 0.1), epochs=((4, 12, 4), (10, 30, 10)), seed=3
    )
    settings = Settings(tasks=4, lps=config, fill_last=True)
    configs = [settings.of_task(task) for task in (1, 2, 3, 4)]
    shares = {"0.weight": 0.2, "*": 0.1}
    assert [config.alpha for config in configs] == [0.5, shares, shares, "rest"]
    assert [config.beta for config in configs] == [0.3, 0.2, 0.1, 0.1]
    assert [config.epochs for config in configs] == [(4, 12, 4), *[(10, 30, 10)] * 3]
    assert [config.seed for config in configs] == [3] * 4
    assert configs[1].of_task(7) == configs[1]
    assert LPSConfig(epochs=(1, 2, 3)).of_task(2).epochs == (1, 2, 3)


def test_two_seeds() -> None:
    for given, stream in (({"seed": 5}, 5), ({"seed": 5, "stream_seed": 0}, 0), ({"stream_seed": 6}, 6)):
        settings = settings_from(given)
        assert settings.source() == Source("permuted-digits", stream, 5, {})
        assert settings.seed == settings.of_task(1).seed == given.get("seed", 0)


def test_the_source_names_options_of_the_benchmark() -> None:
    assert settings_from({"benchmark": "synthetic-rf"}).source().options == {"window": 256}
    assert settings_from({"benchmark": "synthetic-rf", "preset": "paper"}).source().options == {}


def changed(before: Settings, changes: dict[str, Any]) -> Settings:
    lps = {name: value for name, value in changes.items() if hasattr(before.lps, name)}
    own = {name: value for name, value in changes.items() if name not in lps}
    return replace(before, lps=replace(before.lps, **lps), **own)


BEFORE = Settings(tasks=3, lps=LPSConfig(alpha=0.2, epochs=(1, 1, 1)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tasks": 5, "threads": 1, "output": "x", "data_dir": "y", "download": True},
        {"save_every": 5.0, "device": "cuda", "log": "wandb"},
        {"alpha": (0.2, 0.2, 0.1)},
        {"beta": (0.9, 0.9, 0.1)},
        {"epochs": ((1, 1, 1), (1, 1, 1), (2, 2, 2))},
        {"epochs": ((1, 1, 1),)},
        {"fill_last": True},
        {"stream_seed": 0},  # as --seed was
    ],
    ids=str,
)
def test_a_resumed_run_may_change_what_does_not_alter_learnt_tasks(changes: dict[str, Any]) -> None:
    assert contradiction(BEFORE, changed(BEFORE, changes), 2) is None


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
        {"stream_seed": 1},
        {"norms": "per-task"},
        {"augment": True},
        {"precision": "bf16"},
        {"channels_last": True},
        {"epochs": (1, 1, 2)},
        {"epochs": ((1, 1, 1), (1, 1, 2))},
        {"benchmark": "permuted-mnist"},
        {"tasks": 2, "fill_last": True},
    ],
    ids=str,
)
def test_a_resumed_run_may_not_change_what_was_trained(changes: dict[str, Any]) -> None:
    problem = contradiction(BEFORE, changed(BEFORE, changes), learnt=2)
    assert problem is not None
    assert problem.startswith("alpha:" if "fill_last" in changes else next(iter(changes)))


@pytest.mark.parametrize(
    ("method", "pattern", "norms"), [("lps", "column", "per-task"), ("wsn", "irregular", "per-task")]
)
def test_a_method_takes_from_a_preset_what_it_reads(method: str, pattern: str, norms: str) -> None:
    settings = settings_from({"benchmark": "split-rf", "method": method})
    assert (settings.pattern, settings.norms, settings.lps.epochs) == (pattern, norms, ((2, 6, 12), (2, 6, 6)))


def test_settings_that_a_method_does_not_read_make_no_other_run() -> None:
    """Runs of earlier versions have the pattern and the shares of the preset in their settings, whatever the method."""
    before = settings_from({"benchmark": "split-rf", "method": "single"})
    now = replace(before, pattern="column", norms="frozen", lps=replace(before.lps, beta=0.2))
    assert contradiction(before, now, 2) is None
    assert difference(before, now) is None
    assert difference(before, replace(before, tasks=3)) == "tasks: it is 5 in this run, got 3"


def test_a_resumed_run_may_not_change_options_of_its_benchmark() -> None:
    before, now = (settings_from({"benchmark": "synthetic-rf", "window": size}) for size in (64, 128))
    assert contradiction(before, now, 0) is None, "nothing has begun"
    problem = contradiction(before, now, 0, begun=True)
    assert problem == "window: it is 64 in this run, got 128; leave it as it is or start another run"
