"""The run directory: its events, and what TensorBoard is told to forget when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from lps.runs.directory import RunDirectory
from lps.runs.events import Resumed, Row
from lps.runs.settings import CONFIG, settings_from

from tests.runs.tfevents import event_files, events_in


@pytest.mark.parametrize(("learnt", "steps", "resumed", "purge"), [(0, 0, 0, 0), (1, 40, 0, 41), (1, 40, 7, 48)])
def test_events_of_saved_steps_stay(tmp_path: Path, learnt: int, steps: int, resumed: int, purge: int) -> None:
    """TensorBoard forgets events at the step and after it; accuracies of a learnt task stand at its last step."""
    with RunDirectory(tmp_path, settings_from({}), learnt, steps) as directory:
        if resumed:
            directory.resumed(Resumed("admm", 1, resumed, 0, whole_epoch=False))
        assert not event_files(tmp_path)
        directory.row(Row(learnt + 1, "admm", "epoch", 1, resumed + 1, 0.5, 0.125, 0.25, loss=2.5))
    (file,) = event_files(tmp_path)
    (version, start, *values), rest = events_in(file)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (purge, start.session_log.START)
    assert {(event.summary.value[0].tag, event.summary.value[0].simple_value, event.step) for event in values} == {
        (f"task_{learnt + 1}/loss", 2.5, steps + resumed + 1),
        (f"task_{learnt + 1}/lr", 0.125, steps + resumed + 1),
        (f"task_{learnt + 1}/rho", 0.25, steps + resumed + 1),
    }
    assert rest == 0


def test_two_event_files_of_one_second_are_two_files(tmp_path: Path) -> None:
    for _ in range(3):
        with RunDirectory(tmp_path, settings_from({}), 0, 0) as directory:
            directory.row(Row(1, "admm", "epoch", 1, 1, 0.5, 0.1, 0.1))
    assert [len(events_in(file)[0]) for file in event_files(tmp_path)] == [4, 4, 4]


def test_without_news_rows_and_events_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("task\n1,admm\n")
    with RunDirectory(tmp_path, settings_from({}), 0, 0):
        pass
    assert (tmp_path / "metrics.csv").read_text() == "task\n1,admm\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, "metrics.csv"]
