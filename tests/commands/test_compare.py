"""``python -m lps.compare`` as a user runs it: tables, failures, interruption, launchers."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lps import compare, train
from lps.launchers.base import Command
from lps.launchers.slurm import Job
from lps.runs.report import FILES

from tests.command import ENVIRONMENT, command, refused, run

SMALL = ("--epochs", "1,1,1", "--tasks", "2")
SET = ("--methods", "lps,single", "--seeds", "0,1", *SMALL, "--beta", "0.5")
AS_THEY_ARE = (
    "average_accuracy",
    "incremental_accuracy",
    "forgetting",
    "bwt",
    "coded_capacity",
    "artifact_bytes",
    "seconds",
    "peak_memory_bytes",
)
LOOKS = 0.05  # seconds between two looks at a process


def results_of(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((path / "results.json").read_text())
    return results


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with (path / "table.csv").open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def without_times(path: Path) -> tuple[str, str, dict[str, dict[str, str]]]:
    """The three files of a set without what is measured of time and memory."""
    markdown, tex = ((path / name).read_text() for name in ("table.md", "table.tex"))
    kept = [re.sub(r"(?ms)^[#%]+ Time and memory.*?(?=^[#%]+ Not complete|\Z)", "", text) for text in (markdown, tex)]
    assert kept[0] != markdown
    assert kept[1] != tex
    measured = ("seconds", "peak_memory")
    rows = {
        name: {key: value for key, value in row.items() if not key.startswith(measured)}
        for name, row in rows_of(path).items()
    }
    return kept[0], kept[1], rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def whole(place: Path) -> subprocess.CompletedProcess[str]:
    """Two methods with two seeds, not interrupted."""
    return run(place, "lps.compare", *SET, "--output", "whole")


@pytest.fixture(scope="module")
def directory(place: Path, whole: subprocess.CompletedProcess[str]) -> Path:
    assert whole.returncode == 0, whole.stderr
    return place / "whole"


def test_the_numbers_are_those_of_the_runs(directory: Path) -> None:
    rows = rows_of(directory)
    assert list(rows) == ["lps", "single"]
    for method, row in rows.items():
        runs = [results_of(directory / f"{method}-seed{seed}") for seed in (0, 1)]
        alone = [results_of(directory / f"single-seed{seed}") for seed in (0, 1)]
        expected = {key: [run[key] for run in runs] for key in AS_THEY_ARE}
        expected["task_1"] = [run["accuracy"][-1][0] for run in runs]
        expected["task_2"] = [run["accuracy"][-1][1] for run in runs]
        expected["forward_transfer"] = [
            run["accuracy"][1][1] - other["accuracy"][1][1] for run, other in zip(runs, alone, strict=True)
        ]
        for key, values in expected.items():
            assert float(row[key]) == pytest.approx(statistics.mean(values), abs=1e-12), key
            assert float(row[f"{key}_std"]) == pytest.approx(statistics.stdev(values), abs=1e-12), key
        assert row["runs"] == "2"
    assert float(rows["single"]["forward_transfer"]) == 0
    assert float(rows["single"]["coded_capacity"]) == 2  # a network for each of two tasks


def test_what_is_printed_is_what_is_written(whole: subprocess.CompletedProcess[str], directory: Path) -> None:
    assert whole.stderr == ""
    row = rows_of(directory)["lps"]
    cell = f"{100 * float(row['average_accuracy']):.2f} ± {100 * float(row['average_accuracy_std']):.2f}"
    markdown, tex = ((directory / name).read_text() for name in ("table.md", "table.tex"))
    assert cell in whole.stdout
    assert f"| {cell} |" in markdown
    assert " & {} & ".format(cell.replace("±", "$\\pm$")) in tex
    assert markdown.startswith("## permuted-digits, 2 tasks\n\n| method | runs | average, % |")
    assert markdown.count("\n| lps |") == 3
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 4
    assert "FWT: mean over j >= 2" in whole.stdout
    assert "paper" not in markdown  # which has no digits


def test_ours_is_compared_with_others_seed_by_seed(directory: Path) -> None:
    ours, single = ([results_of(directory / f"{method}-seed{seed}") for seed in (0, 1)] for method in ("lps", "single"))
    points = [
        100 * (run["average_accuracy"] - other["average_accuracy"]) for run, other in zip(ours, single, strict=True)
    ]
    later = [100 * (run["accuracy"][1][1] - other["accuracy"][1][1]) for run, other in zip(ours, single, strict=True)]
    cells = [
        cell
        for values in (points, later)
        for cell in (
            f"{statistics.mean(values):+z.2f} ± {statistics.stdev(values):.2f}",
            " ".join(f"{value:+z.2f}" for value in values),
        )
    ]
    markdown = (directory / "table.md").read_text()
    assert f"\n| single | 2 | {' | '.join(cells)} |\n" in markdown
    assert "## lps minus each other method with the same seed, in points\n" in markdown


def test_complete_runs_are_left_alone(
    place: Path, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = (".lock",)  # holds the number of the process
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name not in locks}
    done = run(place, "lps.cli", "compare", *SET, "--output", "whole")
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.chdir(place)
    assert printed_lines(capsys, *SET, "--output", "whole") == []


def test_the_table_of_what_is_there_has_gaps(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory, tmp_path / "part")
    monkeypatch.chdir(tmp_path)
    for name in ("lps-seed1", "single-seed0", "single-seed1"):
        Path("part", name, "results.json").unlink()
    assert compare.main(["--output", "part"]) == 0
    shown = capsys.readouterr().out
    rows = rows_of(Path("part"))
    assert (rows["lps"]["runs"], rows["single"]["runs"]) == ("1", "0")
    assert rows["lps"]["average_accuracy"] == repr(results_of(directory / "lps-seed0")["average_accuracy"])
    assert rows["lps"]["average_accuracy_std"] == rows["single"]["average_accuracy"] == ""
    assert rows["lps"]["forward_transfer"] == ""  # single has no results to compare with
    assert re.search(r"\nsingle +0 of 2 +- +- ", shown)
    assert "\nlps-seed1 " in shown


def test_a_run_whose_file_is_cut_short_is_not_complete(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory, tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    file = Path("set", "lps-seed1", "model.lps")
    size = file.stat().st_size
    with file.open("r+b") as cut:
        cut.truncate(size // 2)
    assert compare.main(["--output", "set"]) == 0
    remedy = "put the whole one there, or delete the run's directory to learn it again"
    damage = f"model.lps: expected {size} bytes, got {size // 2}: the file is damaged; {remedy}"
    assert damage in capsys.readouterr().out
    assert rows_of(Path("set"))["lps"]["runs"] == "1"
    assert [line.count("lps-seed1") for line in printed_lines(capsys, *SET, "--output", "set")] == [1]
    done = run(tmp_path, "lps.compare", *SET, "--output", "set")
    assert done.returncode == 1
    assert done.stderr == f"lps.compare: lps-seed1: {damage}\n"
    file.unlink()  # as in results that are handed on without the networks
    assert printed_lines(capsys, *SET, "--output", "set") == []


def test_other_settings_are_refused_before_anything_starts(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    said = refused(compare, capsys, *SET, "--lr", "0.5", "--methods", "finetune,lps", "--output", "whole")
    assert "lps-seed0: lr: it is 0.001 in this run, got 0.5; " in said
    said = refused(compare, capsys, *SET, "--epochs", "1,1,2", "--output", "whole")
    assert "epochs: it is " in said
    said = refused(compare, capsys, "--benchmark", "synthetic-rf", "--methods", "finetune", "--output", "whole")
    assert "is a run of permuted-digits, not synthetic-rf" in said


def test_a_run_that_fails_does_not_stop_the_others(place: Path) -> None:
    """Two tasks that own nine tenths each do not fit; single has no use for the setting."""
    done = run(
        place, "lps.compare", "--methods", "lps,single", "--seeds", "0", *SMALL, "--alpha", "0.9", "--output", "f"
    )
    assert done.returncode == 1
    reason = re.search(r"\nlps-seed0 +(\S.*)(\n|$)", done.stdout)
    assert reason
    assert "alpha" in reason[1]
    assert done.stderr == f"lps.compare: lps-seed0: {reason[1].strip()}\n"
    rows = rows_of(place / "f")
    assert (rows["lps"]["runs"], rows["single"]["runs"]) == ("0", "1")
    assert f"| lps-seed0 | {reason[1].strip()} |" in (place / "f" / "table.md").read_text()


def test_missing_data_are_named(place: Path) -> None:
    arguments = ("--benchmark", "permuted-mnist", "--data-dir", "none", "--methods", "lps", "--seeds", "0")
    done = run(place, "lps.compare", *arguments, "--output", "no-data")
    assert done.returncode == 1
    assert done.stderr.startswith("lps.compare: lps-seed0: ")
    assert done.stderr.count("\n") == 1
    assert "none" in done.stderr


def printed_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert compare.main([*arguments, "--launcher", "print"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out.splitlines()


def test_printed_lines_are_the_commands_of_the_runs(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed_lines(capsys, *SET, "--output", "a place")
    assert not Path("a place").exists()
    names = ["lps-seed0", "lps-seed1", "single-seed0", "single-seed1"]
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        python, module, what, *flags = shlex.split(line)
        assert [python, module, what] == [sys.executable, "-m", "lps.train"]
        assert flags[-3:] == ["--output", f"a place/{name}", "--resume-if-begun"]
        settings = train._parse(flags).settings
        assert replace(settings, output=None).to_yaml() == (directory / name / "config.yaml").read_text()
        assert ("--beta" in flags) == name.startswith("lps")


@pytest.mark.slow
def test_printed_lines_run_by_hand_give_the_same_table(
    place: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed_lines(capsys, *SET, "--output", "by hand")
    for line in [*lines[::-1], lines[0]]:  # in any order, and again
        subprocess.run(line, shell=True, cwd=place, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    done = run(place, "lps.compare", "--output", "by hand")
    assert done.returncode == 0, done.stderr
    assert without_times(place / "by hand") == without_times(directory)


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(LOOKS)


def test_a_signal_is_passed_on_and_the_runs_save_their_state(place: Path) -> None:
    arguments = ("--methods", "finetune", "--seeds", "0,1", "--epochs", "400,1,1", "--tasks", "2", "--output", "signal")
    process = subprocess.Popen(
        command("lps.compare", *arguments, "--jobs", "2"),
        cwd=place,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for seed in (0, 1):
        wait_for(place / "signal" / f"finetune-seed{seed}" / "metrics.csv", process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 143
    assert said == (
        "lps.compare: interrupted; 0 of 2 runs are complete; go on with: "
        f"python -m lps.compare {shlex.join([*arguments, '--jobs', '2'])}\n"
    )
    for seed in (0, 1):
        assert list((place / "signal" / f"finetune-seed{seed}" / "state").glob("state-*"))
    done = run(place, "lps.compare", "--output", "signal")
    assert done.returncode == 0
    assert "interrupted; 0 of 2 tasks are learnt and saved, and the state of the next" in done.stdout


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again(place: Path) -> None:
    """Three methods with two seeds; the whole process group is killed several times at random moments."""
    arguments = ("--methods", "lps,single,finetune", "--seeds", "0,1", *SMALL, "--save-every", "0.2")
    begin = time.monotonic()
    assert run(place, "lps.compare", *arguments, "--output", "never").returncode == 0
    seconds = time.monotonic() - begin
    moments = random.Random(time.time_ns())
    for _ in range(3):
        process = subprocess.Popen(
            command("lps.compare", *arguments, "--output", "killed"),
            cwd=place,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )
        time.sleep(moments.uniform(0.1, 0.6) * seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = run(place, "lps.compare", *arguments, "--output", "killed")
    assert done.returncode == 0, done.stderr
    assert without_times(place / "killed") == without_times(place / "never")
    for name in [path.parent.name for path in (place / "never").glob("*/model.lps")]:
        assert (place / "killed" / name / "model.lps").read_bytes() == (
            place / "never" / name / "model.lps"
        ).read_bytes()


def test_slurm_without_submitit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SystemExit) as stopped:
        compare.main(["--launcher", "slurm", "--methods", "lps"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "lps.compare: --launcher slurm: needs submitit: pip install learn-prune-share[slurm]\n"
    )
    assert not list(tmp_path.iterdir())


needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit (extra slurm) is not installed"
)


@needs_submitit
def test_slurm_without_a_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--launcher slurm: Could not detect " in refused(compare, capsys, "--launcher", "slurm", "--methods", "lps")
    local = ("--slurm-executor", "local", "--slurm", "moon=3")
    assert "moon" in refused(compare, capsys, "--launcher", "slurm", "--methods", "lps", *local)


@pytest.mark.slow
@needs_submitit
def test_a_job_that_has_to_make_room_saves_its_state_and_is_queued_again(tmp_path: Path) -> None:
    """The signal that Slurm would send goes to the process of submitit's local executor."""
    import submitit  # noqa: PLC0415
    from submitit.local.local import LocalJobEnvironment  # noqa: PLC0415

    arguments = ("--method", "finetune", "--epochs", "200,1,1", "--tasks", "2", "--resume-if-begun", "--output")
    job = Job(Command("run", tuple(command("lps.train", *arguments, tmp_path / "run")), tmp_path / "logs"))
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=20)
    submitted: Any = executor.submit(job)
    controller = submitted._process
    wait_for(tmp_path / "run" / "metrics.csv", controller)
    (process,) = Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text().split()
    os.kill(int(process), LocalJobEnvironment._usr_sig())
    while not submitted.done():
        time.sleep(LOOKS)
    assert "goes on in " in (tmp_path / "logs" / "run.out").read_text()
    assert len(results_of(tmp_path / "run")["tasks"]) == 2


@pytest.mark.slow
@needs_submitit
def test_slurm_jobs_give_the_same_table(place: Path, directory: Path) -> None:
    slurm = ("--launcher", "slurm", "--slurm-executor", "local", "--slurm", "timeout_min=20")
    done = run(place, "lps.compare", *SET, "--output", "jobs", *slurm)
    assert done.returncode == 0, done.stderr
    assert without_times(place / "jobs") == without_times(directory)
    assert all((place / "jobs" / name).is_file() for name in FILES)
