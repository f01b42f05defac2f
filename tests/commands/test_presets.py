"""Every benchmark's ``paper`` preset starts to train, with the paper's network, and can be stopped.

A run of one takes days, so it is stopped as soon as it has trained for ten seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from lps.data import BENCHMARKS

from tests.command import ENVIRONMENT, command

EMBEDDED = ("permuted-digits", "synthetic-rf")  # they need no files
# Those whose files cannot be had without a download.
MISSING = ("split-cifar100", "split-tinyimagenet", "five-datasets", "omniglot-rotation", "folder")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [name for name in BENCHMARKS if name not in MISSING])
def test_the_paper_preset_starts(stream: str, tmp_path: Path) -> None:
    data_dir = os.environ.get("LPS_DATA_DIR")
    if stream not in EMBEDDED and data_dir is None:
        pytest.skip("LPS_DATA_DIR names no directory of real data")
    data = () if data_dir is None else ("--data-dir", str(Path(data_dir).resolve()))
    with subprocess.Popen(
        command("lps.train", "--preset", "paper", "--benchmark", stream, "--output", "run", *data),
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        trained = next((line for line in process.stdout if " samples/s " in line), "")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert trained.startswith(f"task 1/{BENCHMARKS[stream].tasks} "), errors
    assert process.returncode == 130
    assert errors.startswith("lps.train: interrupted; 0 of ")
    assert (tmp_path / "run" / "state").exists()
