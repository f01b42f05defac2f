"""The comparison with Avalanche: our half of it, and the table of what is kept; Avalanche itself is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.avalanche import print_comparison

WORKER = Path(__file__).resolve().parents[2] / "benchmarks" / "methods_worker.py"


@pytest.mark.parametrize("method", ["ewc", "packnet"])
def test_our_half_learns_the_tasks_of_the_request(tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 10
    images = (rng.integers(0, 30, (100, 784)) + 220 * (np.arange(784) % 10 == labels[:, None])).astype(np.uint8)
    orders = np.stack([np.arange(784), rng.permutation(784)])
    data, request = tmp_path / "tasks.npz", tmp_path / "request.json"
    np.savez(data, train=images, train_labels=labels, test=images, test_labels=labels, orders=orders)
    values = {"method": method, "data": str(data), "tasks": 2, "epochs": (1, 3, 1), "batch_size": 20, "lr": 1e-3}
    request.write_text(json.dumps({**values, "dropout": 0.2, "seed": 0, "threads": 1, "alpha": 0.1}))
    done = subprocess.run([sys.executable, "-P", WORKER, request], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    first, both = answer["accuracy"]
    assert len(first) == 1
    assert len(both) == 2
    assert both[1] > 0.9  # the classes are stripes
    assert both[0] > 0.9
    assert all(0 < seconds < 10 for seconds in answer["seconds_per_step"])
    assert len(answer["seconds_per_step"]) == 2


@pytest.mark.parametrize(
    ("accuracy", "seconds", "holds"),
    [([0.9, 0.8], [0.1, 0.1], True), ([0.8, 0.8], [0.1, 0.1], False), ([0.9, 0.9], [0.1, 0.3], False)],
    ids=["as good", "three points behind", "slower"],
)
def test_kept_results_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accuracy: list[float], seconds: list[float], holds: bool
) -> None:
    def keep(name: str, values: dict[str, Any]) -> None:
        (tmp_path / name).write_text(json.dumps(values))

    keep("ours-ewc.json", {"accuracy": accuracy})
    keep("avalanche-ewc.json", {"accuracy": [0.8, 0.86]})
    keep("steps-ewc.json", {"ours": seconds, "avalanche": [0.1, 0.15]})
    assert print_comparison(tmp_path / "no data", ["ewc"], 2, 1, tmp_path) is holds
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("ewc")
    assert row.endswith("falls short") is not holds
