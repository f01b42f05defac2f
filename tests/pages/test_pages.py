"""Pages and their figures: what they show is what the runs have left, whatever stands in the run directories."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from lps import compare, load, report, train
from lps.pages.charts import Panel, bars, contrast, heat, task_colour
from lps.pages.collect import collect, sections
from lps.pages.owners import png_address, reuse
from lps.pages.page import make_page
from lps.pages.svg import COLOURS, MARKS, Axis, around
from lps.pages.training import read_log
from lps.paper import Row
from PIL import Image

from lps_kernels import unpack_bits
from lps_kernels.owner import MAX_TASKS, TASK_BITS
from tests.command import refused, run

TEXT, MARK = 4.5, 3.0  # contrasts that WCAG 2.2 asks for at level AA


class Tags(HTMLParser):
    """Counts tags, and those that are open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags_of(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_a_page_holds_everything_itself(runs: Path) -> None:
    page, figures = make_page(collect([runs]))
    found = tags_of(page)
    assert found.tags.count("figure") == len(figures) > 8
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "default-src 'none'" in page
    assert str(runs.parent) not in page
    assert len({figure.name for figure in figures}) == len(figures)
    for row in ("lps", "finetune"):
        assert f"<td>{row}</td>" in page


def test_figures_show_the_numbers_of_the_runs(runs: Path) -> None:
    (group,) = collect([runs])
    figures = {figure.name: figure for section in sections(group) for figure in section.figures}
    results = json.loads((runs / "finetune-seed0" / "results.json").read_text())
    _, *rows = figures["set1-tasks"].data
    assert [row[2] for row in rows if row[0] == "finetune"] == results["accuracy"][-1]
    (name,) = (name for name, figure in figures.items() if name.endswith("-matrix") and figure.title == "finetune")
    _, *lines = figures[name].data
    assert [[None if value == "" else value for value in line[1:]] for line in lines] == results["accuracy"]
    (size,) = (value for row, value in figures["set1-artifact_bytes"].data[1:] if row == "finetune")
    assert size == pytest.approx(results["artifact_bytes"] / 1e6)
    with (runs / "lps-seed0" / "metrics.csv").open(newline="") as file:
        epochs = [float(row["accuracy"]) for row in csv.DictReader(file) if row["event"] == "epoch"]
    (curve,) = (figure for figure in figures.values() if figure.title == "lps: accuracy over training")
    assert [row[2] for row in curve.data[1:]] == epochs
    assert [row[1] for row in curve.data[1:]] == sorted(row[1] for row in curve.data[1:])  # type: ignore[type-var]


def test_numbers_of_the_paper_stand_beside_ours() -> None:
    printed = Row(85.0, (80.0, 90.0))
    figure = bars("name", "title", [Panel("lps", (0.7, 0.8), (0.01, 0.02), 0.75, printed)])
    assert [row[4:] for row in figure.data[1:]] == [[0.8, 0.85], [0.9, 0.85]]
    for words in ("paper 85.00 %", "paper, task 1: 80.00 %", "paper, task 2: 90.00 %"):
        assert words in figure.svg
    without = bars("name", "title", [Panel("wsn", (0.7, 0.8), (0.01, 0.02), 0.75, None)])
    assert [row[4:] for row in without.data[1:]] == [["", ""]] * 2
    assert "paper" not in without.svg


def test_reuse_is_counted_weight_by_weight(runs: Path) -> None:
    net = load(runs / "lps-seed0" / "model.lps")
    found = reuse(net)
    assert [[value is None for value in row] for row in found] == [[j >= i for j in range(3)] for i in range(3)]
    owned = used = 0
    for partition, _ in net.prunable():
        first = (partition.owner & TASK_BITS) == 1
        owned += int(first.sum())
        used += int((first & unpack_bits(partition.mask(3), partition.shape)).sum())
    assert found[2][0] == used / owned


def test_a_sweep_has_a_line_per_pattern(sweep: Path) -> None:
    (group,) = collect([sweep])
    (figures,) = (section.figures for section in sections(group) if section.title == "What the settings do")
    (figure,) = figures
    assert figure.title == "Accuracy by beta"
    lines = {str(row[0]) for row in figure.data[1:]}
    assert lines == {"pattern irregular", "pattern column"}
    assert len(figure.data) == 41


def test_runs_alone_are_told_apart_by_their_directories(runs: Path) -> None:
    (group,) = collect([runs / "lps-seed0", runs / "lps-seed1", runs / "finetune-seed0"])
    assert sorted(group.report.rows) == ["finetune", "lps (lps-seed0)", "lps (lps-seed1)"]


def test_many_sets_have_a_title_of_one_line(runs: Path, sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "third" / "beta=0.5-seed0")
    page, _ = make_page(collect([runs, sweep]))
    assert page.count("sets of runs</h1>") == 0
    page, _ = make_page(collect([runs, sweep, tmp_path / "third"]))
    assert "<h1>3 sets of runs</h1>" in page


def test_the_axis_of_a_log_reaches_to_the_end_of_the_last_task(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "task,step,event,accuracy\n1,10,epoch,0.5\n1,20,epoch,0.6\n2,10,epoch,0.7\n2,30,task,\n"
    )
    assert read_log(tmp_path).begins == [(0.0, "task 1"), (20.0, "task 2"), (50.0, "")]


def test_what_a_directory_is_called_cannot_become_code(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "set" / "<img src=x onerror=alert(1)>&'\"-seed0")
    page, figures = make_page(collect([tmp_path / "set"]))
    assert "img" not in tags_of(page).tags
    for figure in figures:
        ElementTree.fromstring(figure.file())


def test_a_damaged_model_costs_its_maps_only(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "set")
    for model in (tmp_path / "set").glob("*/model.lps"):
        model.write_bytes(model.read_bytes()[:-100] + bytes(100))  # of its size: the run is complete
    page, figures = make_page(collect([tmp_path / "set"]))
    assert "Left out: lps:" in page
    assert not any(figure.name.endswith("-owners") for figure in figures)
    assert any(figure.name.endswith("-matrix") for figure in figures)


def test_a_log_that_is_none_is_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_bytes(b"task,step,event\n\xff\x00,nan,epoch\n1,,,\n" + b"1" * 200_000)
    assert not any("over training" in figure.title for figure in make_page(collect([tmp_path / "run"]))[1])
    (tmp_path / "run" / "metrics.csv").write_text("task,step,event,accuracy\n1,1e308,epoch,1e308\n1,2,epoch,-1e308\n")
    _, figures = make_page(collect([tmp_path / "run"]))
    assert not any("over training" in figure.title for figure in figures)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("accuracy", [], "expected 3 rows"),
        ("accuracy", [[0.5], [0.5], [0.5]], "expected 3 rows"),
        ("average_accuracy", 1e300, "1.0"),
        ("seconds", -1, "0"),
    ],
)
def test_results_that_are_none_are_named(runs: Path, tmp_path: Path, name: str, value: object, reason: str) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "set" / "lps-seed0")
    file = tmp_path / "set" / "lps-seed0" / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    page, figures = make_page(collect([tmp_path / "set"]))
    assert "Not complete" in page
    assert "is not the record of a run" in page
    assert reason in page
    assert figures == []


def test_accuracies_that_there_are_not_leave_gaps(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "run")
    file = tmp_path / "run" / "results.json"
    nothing = {"accuracy": [[None] * 3] * 3, "average_accuracy": None, "forgetting": None}
    file.write_text(json.dumps({**json.loads(file.read_text()), **nothing}))
    page, figures = make_page(collect([tmp_path / "run"]))
    assert "average -" in page
    assert ">nan" not in page
    assert figures


def test_the_command_writes_page_figures_and_numbers(runs: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "lps.report", runs, "-o", "page.html", "--figures", "figures")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("page.html: ")
    pictures = list((tmp_path / "figures").glob("*.svg"))
    assert len(pictures) == len(list((tmp_path / "figures").glob("*.csv"))) > 8
    for picture in pictures:
        root = ElementTree.fromstring(picture.read_text())
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]


def test_figures_become_pixels(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs resvg-py, of the extra report")
    assert report.main([str(runs), "-o", str(tmp_path), "--figures", str(tmp_path), "--format", "png"]) == 0
    assert (tmp_path / "report.html").is_file()
    with Image.open(tmp_path / "set1-tasks.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or ()}
    for name in ("paper", "ink", "grid", "c0"):  # letters have their full colour in few places
        assert tuple(bytes.fromhex(COLOURS[name][0][1:])) in colours


def test_commands_write_a_page_at_their_end(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (runs / "lps-seed0" / "report.html").read_text()
    tags_of(before)
    assert train.main(["--resume", "--output", str(runs / "lps-seed0")]) == 0
    assert f"report            {runs / 'lps-seed0' / 'report.html'}" in capsys.readouterr().out.splitlines()
    assert compare.main(["--output", str(runs)]) == 0
    assert f"report: {runs / 'report.html'}" in capsys.readouterr().out.splitlines()
    assert (runs / "report.html").is_file()


def test_a_page_that_cannot_be_written_fails_no_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "lps-seed0", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    assert train.main(["--resume", "--output", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "report.html: is not written" in shown.err
    assert shown.err.count("\n") == 1
    assert "average accuracy" in shown.out


def test_bad_input_is_refused(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "expected the directory of a run or of a set" in refused(report, capsys, "empty")
    assert "expected the directory of a run or of a set" in refused(report, capsys, "missing")
    assert "--format" in refused(report, capsys, str(runs), "--format", "gif")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    message = refused(report, capsys, str(runs), "--figures", "f", "--format", "png")
    assert "learn-prune-share[report]" in message


def test_contrasts() -> None:
    for theme in range(2):
        paper = COLOURS["paper"][theme]
        for name in ("ink", "faint", "c0"):  # c0 is the colour of links, too
            assert contrast(COLOURS[name][theme], paper) >= TEXT
        for mark in range(MARKS):
            assert contrast(COLOURS[f"c{mark}"][theme], paper) >= MARK
        for task in range(1, MAX_TASKS + 1):
            assert contrast(task_colour(task), paper) >= MARK
    for step in range(101):
        assert contrast(*heat(step / 100)) >= TEXT
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.9812, 0.9855), (3.0, 3.0), (-5.0, 1e6)])
def test_axes_have_round_numbers_within(low: float, high: float) -> None:
    ends = around([low, high], 0.01)
    assert ends[0] <= low <= high <= ends[1]
    axis = Axis(*ends, 100.0, 0.0)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 8
    for tick in ticks:
        assert -1e-6 <= axis(tick) <= 100 + 1e-6
        assert math.isclose(float(f"{tick:.6g}"), tick, rel_tol=1e-9, abs_tol=1e-12)


def test_a_logarithmic_axis_marks_powers_of_ten() -> None:
    axis = Axis(2e-4, 30.0, 0.0, 1.0, logarithmic=True)
    assert axis.ticks() == pytest.approx([1e-3, 1e-2, 1e-1, 1.0, 10.0])
    assert axis(2e-4) == 0.0
    assert axis(30.0) == 1.0
    assert Axis(3.0, 15.0, 0.0, 1.0, logarithmic=True).ticks() == pytest.approx([5.0, 10.0])


def test_pictures_of_weights_are_png() -> None:
    pixels = torch.tensor([[0, 1, 2], [2, 1, 0]], dtype=torch.uint8)
    palette = ["#000000", "#ff0000", "#00ff00"]
    address = png_address(pixels, palette)
    match = re.fullmatch(r"data:image/png;base64,(.+)", address)
    assert match
    picture = Image.open(io.BytesIO(base64.b64decode(match[1]))).convert("RGB")
    assert picture.size == (3, 2)
    assert picture.getpixel((1, 0)) == (255, 0, 0)
    assert picture.getpixel((0, 1)) == (0, 255, 0)
