"""The arithmetic, tables, pictures and refusals of the benchmarks; no times are tested."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.figures.figure import Figure, faster, typically_within, within
from benchmarks.figures.picture import draw, margin
from benchmarks.learning_curves import draw_run, write_run
from benchmarks.shapes import CIFAR, MLP, RESNET50_1D
from benchmarks.timing import Timing, measure

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("shapes", "layers", "weights"),
    [(MLP, 2, 5_568_000), (CIFAR, 5, 884_576), (RESNET50_1D, 53, 15_901_568)],
    ids=["mlp", "cifar", "resnet50-1d"],
)
def test_the_papers_networks_have_its_counts(shapes: tuple[tuple[int, ...], ...], layers: int, weights: int) -> None:
    assert len(shapes) == layers
    assert sum(prod(shape) for shape in shapes) == weights


def test_a_figure_holds_on_the_right_side_of_its_bound_only() -> None:
    slow, fast = Timing.of([2.0, 3.0]), Timing.of([1.0, 4.0])
    assert faster("twice", fast, slow, 2.0).holds
    assert not faster("more than twice", fast, slow, 2.1).holds
    assert within("half", fast, slow, 0.5).holds
    assert not within("less than half", fast, slow, 0.4).holds
    assert typically_within("as fast", fast, slow, 1.0).holds  # medians of 2.5
    assert not typically_within("faster", fast, slow, 0.9).holds


def test_the_picture_is_svg_with_a_bar_for_each_figure() -> None:
    figures = [
        faster("a < b", Timing.of([1.0]), Timing.of([3.0]), 1.5),
        within("c", Timing.of([1.0]), Timing.of([2.0]), 1.0),
    ]
    assert [margin(figure) for figure in figures] == [2.0, 2.0]
    assert margin(Figure("tasks forgotten", 0, "", "<=", 0, "")) == 1.0
    root = ElementTree.fromstring(draw(figures, "title"))
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a < b" in words
    assert "3.00x (>= 1.5x)" in words


def test_the_curves_of_a_run_are_svg(tmp_path: Path) -> None:
    results = {
        "benchmark": "a < b",
        "accuracy": [[0.9, None], [0.9, 0.95]],
        "average_accuracy": 0.925,
        "forgetting": 0.0,
        "artifact_bytes": 1e6,
        "separate_bytes": 4e6,
    }
    root = ElementTree.fromstring(draw_run(results))
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a < b: 2 tasks, average 92.50 %" in words
    assert {"task 1: 90.00 %", "task 2: 95.00 %"} < set(words)
    assert sum(element.tag.endswith("polyline") for element in root.iter()) == 2
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"results.json: expected the results.json of a run, got KeyError"):
        write_run(tmp_path / "results.json", tmp_path / "picture.svg")
    assert not (tmp_path / "picture.svg").exists()


def test_every_callable_is_timed_in_turns() -> None:
    calls: list[str] = []
    timings = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0.01)
    assert timings.keys() == {"a", "b"}
    assert calls[:2] == ["a", "b"]
    assert 0 < timings["a"].best <= timings["a"].p10 <= timings["a"].p50 <= timings["a"].p90


@pytest.mark.slow  # a process each
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["figures", "speed"], "argument GROUP: invalid choice: 'speed'"),
        (["table", "--ops", "nothing"], "argument --ops: invalid choice: 'nothing'"),
        (["table", "--compare", "absent.json"], "absent.json cannot be read: No such file or directory"),
        (
            ["picture", "absent.json", "picture.svg"],
            "absent.json: expected the results.json of a run, got File",
        ),
        (["costs", "--save", "absent/costs.json"], "--save: absent/costs.json cannot be written"),
        pytest.param(
            ["--device", "cuda"],
            "no kernels of ours run on cuda: torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there"),
        ),
        (["table", "--device", "gpu"], "argument --device: invalid choice: 'gpu'"),
        (["figures", "kernels", "--picture", "absent/picture.svg"], "--picture: absent/picture.svg cannot be written"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
