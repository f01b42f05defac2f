"""The run directory: what TensorBoard is told to forget when a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lps.runs import directory as directory_module
from lps.runs.directory import CONFIG, RunDirectory
from lps.runs.events import Resumed, Row
from lps.runs.settings import settings_from


@pytest.mark.parametrize(("learnt", "steps", "resumed", "purge"), [(0, 0, 0, 0), (1, 40, 0, 41), (1, 40, 7, 48)])
def test_events_of_saved_steps_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learnt: int, steps: int, resumed: int, purge: int
) -> None:
    """TensorBoard forgets events at the step and after it; accuracies of a learnt task stand at its last step."""
    found: list[int] = []

    class Writer:
        def __init__(self, _: str, purge_step: int) -> None:
            found.append(purge_step)

        def add_scalar(self, *_: Any) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(directory_module, "SummaryWriter", Writer)
    with RunDirectory(tmp_path, settings_from({}), learnt, steps) as directory:
        if resumed:
            directory.resumed(Resumed("admm", 1, resumed, 0, whole_epoch=False))
        assert not found
        directory.row(Row(learnt + 1, "admm", "epoch", 1, resumed + 1, 0.5, 0.1, 0.1, loss=1.0))
    assert found == [purge]


def test_without_news_rows_and_events_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("task\n1,admm\n")
    with RunDirectory(tmp_path, settings_from({}), 0, 0):
        pass
    assert (tmp_path / "metrics.csv").read_text() == "task\n1,admm\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, "metrics.csv"]
