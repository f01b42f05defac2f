"""Loggers: what real W&B and MLflow hold after a run, a stopped, a killed and a resumed one; tools that fail or hang.

Tests of a tool are skipped where its package is missing: ``pip install -c constraints.txt '.[wandb,mlflow]'``.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lps.errors import LPSError, WriteError
from lps.runs.loggers import LOGGERS, Loggers, Start
from lps.runs.loggers.base import Logger
from lps.runs.loggers.mlflow_run import FILE

from tests.command import ENVIRONMENT, command
from tests.runs.tfevents import event_files
from tests.runs.wandb_file import config_in, history_in

SMALL = ("--output", "run", "--epochs", "1,2,1", "--threads", "1", "--tasks", "2")
LONG = (*SMALL, "--epochs", "1,150,1", "--tasks", "1", "--save-every", "0.3")
CLEAN = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
TIMEOUT = 120  # seconds after which a run counts as hanging

PLACE = ("task", "phase", "event", "epoch", "step", "seconds", "layer")
SUMMARY = {"average accuracy", "forgetting", "bwt"}

Curves = dict[str, list[tuple[int, float]]]  # by name: steps and values


def finished(place: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run, to its end."""
    return subprocess.run(
        command("lps.train", *arguments), cwd=place, env=CLEAN | environment, timeout=TIMEOUT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def started(place: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run in a process group of its own that has saved a state and logged some epochs since."""
    process = subprocess.Popen(
        command("lps.train", *arguments), cwd=place, env=CLEAN, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list((place / "run" / "state").glob("state-*")) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(1.5)
    assert process.poll() is None
    return process


def rows_of(run: Path) -> Curves:
    """The curves of metrics.csv; for a run of one task, whose steps are the run's."""
    curves: Curves = {}
    with (run / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name not in PLACE and value:
                    curve = "/".join(filter(None, (f"task {row['task']}", row["layer"], name)))
                    curves.setdefault(curve, []).append((int(row["step"]), float(value)))
    return curves


def mlflow_client(run: Path) -> Any:
    return pytest.importorskip("mlflow", reason="needs the extra mlflow").MlflowClient(
        f"sqlite:///{(run / 'mlflow' / FILE).resolve()}"
    )


def mlflow_curves(run: Path) -> Curves:
    client, name = mlflow_client(run), (run / "mlflow" / "id").read_text()
    return {
        curve: sorted((point.step, point.value) for point in client.get_metric_history(name, curve))
        for curve in client.get_run(name).data.metrics
    }


def wandb_files(run: Path) -> list[Path]:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    return sorted(run.glob("wandb/offline-run-*/*.wandb"))


def wandb_curves(run: Path) -> Curves:
    curves: Curves = {}
    for values in (values for file in wandb_files(run) for values in history_in(file)):
        step = values.pop("step")
        for curve, value in values.items():
            curves.setdefault(curve, []).append((step, value))
    return {curve: sorted(points) for curve, points in curves.items()}


CURVES = {"wandb": wandb_curves, "mlflow": mlflow_curves}
TOOLS = pytest.mark.parametrize("tool", CURVES)


def service_of(process: subprocess.Popen[str]) -> int:
    """The number of W&B's own process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (service,) = [child for child in children if "wandb" in Path(f"/proc/{child}/comm").read_text()]
    return int(service)


@TOOLS
def test_a_run_is_in_the_tool(tmp_path: Path, tool: str) -> None:
    pytest.importorskip(tool, reason=f"needs the extra {tool}")
    done = finished(tmp_path, *SMALL, "--log", f"tensorboard,{tool}")
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / "run"
    assert event_files(run)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    results, curves = json.loads((run / "results.json").read_text()), CURVES[tool](run)
    assert set(curves) > SUMMARY
    assert curves["average accuracy"][-1][1] == pytest.approx(results["average_accuracy"])
    assert [value for _, value in curves["test accuracy/task 1"]] == [row[0] for row in results["accuracy"]]
    rows = rows_of(run)
    assert {curve for curve in curves if curve.startswith("task ")} == set(rows)
    for curve, points in rows.items():
        assert [value for _, value in curves[curve]] == pytest.approx([value for _, value in sorted(points)])
    if tool == "mlflow":
        (held,) = mlflow_client(run).search_runs(["1"])
        assert (held.info.status, held.info.run_name) == ("FINISHED", "run")
        assert (held.data.params["benchmark"], held.data.params["epochs"]) == ("permuted-digits", "(1, 2, 1)")
        assert held.data.metrics["average accuracy"] == pytest.approx(results["average_accuracy"])
    else:
        (file,) = wandb_files(run)
        config = config_in(file)
        assert (config["benchmark"], config["epochs"]) == ("permuted-digits", [1, 2, 1])


@pytest.mark.slow
@TOOLS
def test_a_stopped_run_goes_on_in_the_same_place(tmp_path: Path, tool: str) -> None:
    """SIGTERM to the whole group: nothing is lost, nothing is there twice."""
    pytest.importorskip(tool, reason=f"needs the extra {tool}")
    run = tmp_path / "run"
    with started(tmp_path, *LONG, "--log", tool) as process:
        name = (run / tool / "id").read_text()
        os.killpg(process.pid, signal.SIGTERM)
        _, sentence = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    assert sentence.count("\n") == 1
    assert "go on with: python -m lps.train --resume --output run" in sentence
    if tool == "mlflow":
        assert mlflow_client(run).get_run(name).info.status == "KILLED"
    done = finished(tmp_path, "--resume", "--output", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert (run / tool / "id").read_text() == name
    curves = CURVES[tool](run)
    for curve, points in rows_of(run).items():
        assert [step for step, _ in curves[curve]] == [step for step, _ in points]
    if tool == "mlflow":
        (held,) = mlflow_client(run).search_runs(["1"])
        assert held.info.status == "FINISHED"
    else:
        assert [file.name for file in wandb_files(run)] == [f"run-{name}.wandb"] * 2


@pytest.mark.slow
@TOOLS
def test_steps_that_a_killed_run_takes_again(tmp_path: Path, tool: str) -> None:
    """MLflow lacks none, and holds at most one row twice; W&B may lack those of the last second."""
    pytest.importorskip(tool, reason=f"needs the extra {tool}")
    run = tmp_path / "run"
    with started(tmp_path, *LONG, "--save-every", "1e6", "--log", tool) as process:
        os.killpg(process.pid, signal.SIGKILL)
    told = len(rows_of(run)["task 1/loss"])
    done = finished(tmp_path, "--resume", "--output", "run")
    assert (done.returncode, done.stderr) == (0, "")
    rows, curves = rows_of(run), CURVES[tool](run)
    assert told < len(rows["task 1/loss"])
    twice = 0
    for curve, points in rows.items():
        expected, got = (Counter(step for step, _ in either) for either in (points, curves[curve]))
        twice = max(twice, (got - expected).total())
        if tool == "mlflow":
            assert not expected - got
    assert twice <= 1


@pytest.mark.slow
def test_a_tool_that_dies(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    with started(tmp_path, *LONG, "--log", "wandb") as process:
        os.kill(service_of(process), signal.SIGKILL)
        _, sentence = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert sentence == "lps.train: log: wandb failed: Connection lost; the run goes on without it\n"
    assert (tmp_path / "run" / "model.lps").exists()


@pytest.mark.slow
def test_a_tool_that_hangs(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    hurried = "import sys; from lps.runs.loggers import wandb_run; wandb_run.MOST_SECONDS = 2; from lps import train; "
    with subprocess.Popen(
        [sys.executable, "-c", f"{hurried} sys.exit(train.main())", *LONG, "--log", "wandb"], cwd=tmp_path, env=CLEAN,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not (tmp_path / "run" / "metrics.csv").exists() and process.poll() is None:
            time.sleep(0.01)
        service = service_of(process)
        os.kill(service, signal.SIGSTOP)
        try:
            process.wait(TIMEOUT)
        finally:
            os.kill(service, signal.SIGKILL)
        assert process.stderr is not None
        sentence = process.stderr.read()
    assert process.returncode == 0
    assert "log: wandb failed: it did not end within 2 seconds" in sentence
    assert sentence.count("\n") == 1


def test_the_users_own_store_counts(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    own = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'own.db'}", "MLFLOW_EXPERIMENT_NAME": "mine"}
    assert finished(tmp_path, *SMALL, "--log", "mlflow", **own).returncode == 0
    assert not (tmp_path / "run" / "mlflow" / FILE).exists()
    client = mlflow.MlflowClient(own["MLFLOW_TRACKING_URI"])
    (held,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert held.info.run_id == (tmp_path / "run" / "mlflow" / "id").read_text()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    done = finished(tmp_path, *SMALL, "--log", "mlflow", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("lps.train: log: mlflow cannot begin: ")


@pytest.mark.parametrize(("tool", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("mlflow", "sqlalchemy")])
def test_a_missing_package(tmp_path: Path, tool: str, module: str) -> None:
    script = f"import sys; sys.modules['{module}'] = None; from lps import train; sys.exit(train.main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *SMALL, "--log", tool], cwd=tmp_path, env=CLEAN,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lps.train: log: {tool} lacks a package: pip install 'learn-prune-share[{tool}]'\n"
    assert not list(tmp_path.iterdir())


class Broken(Logger):
    """Fails as it is told to by the names of settings."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.settings = start.settings
        if "begin" in start.settings:
            raise RuntimeError("no\nplace")

    def add(self, values: Mapping[str, float], step: int) -> None:
        raise WriteError("disk: full") if "disk" in self.settings else RuntimeError("gone")

    def close(self, *, complete: bool) -> None:
        raise RuntimeError("gone too")


def test_a_tool_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out after a sentence, and the others go on; a full disk is the run's problem."""
    monkeypatch.setitem(LOGGERS._homes, "broken", f"{__name__}:Broken")
    names = ("broken", "tensorboard")
    loggers = Loggers(names, Start(tmp_path, {}, 0))
    loggers.add({"loss": 1.0}, 1)
    loggers.add({"loss": 1.0}, 2)
    loggers.close(complete=True)
    assert event_files(tmp_path)
    assert capsys.readouterr().err == "lps.train: log: broken failed: gone; the run goes on without it\n"
    with pytest.raises(LPSError, match=r"log: broken cannot begin: no\\nplace"):
        Loggers(names, Start(tmp_path, {"begin": 1}, 0))
    with pytest.raises(WriteError, match="disk: full"):
        Loggers(names, Start(tmp_path, {"disk": 1}, 0)).add({"loss": 1.0}, 1)
