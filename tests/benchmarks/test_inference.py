"""The inference figures measure what their names say, and every peer does the same work."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from lps import models
from lps.deploy.extraction.formats import FORMATS
from torch import nn

from benchmarks import costs, deepsparse, environments, figures
from benchmarks.cases import CPU, Case, runners
from benchmarks.dense import dense_runs, fastest
from benchmarks.figures.checks import check_answers
from benchmarks.figures.figure import Figure, Skipped, UnmeasurableError
from benchmarks.figures.inference import NETWORKS, Network, held, network_figures
from benchmarks.figures.networks import Subject, cifar_net, fabricate
from benchmarks.peers import UnavailableError
from benchmarks.table import OperatorTiming, load, save
from benchmarks.timing import Timing, measure
from lps_kernels._registry import Op
from lps_kernels.costs import Format, Work
from lps_kernels.cutout import Cutout, LayerSummary
from tests.helpers import each_op_where

HIDDEN = [40, 50]


def small(pattern: str, share: float, tasks: int = 1) -> Subject:
    backbone = models.create("mlp", inputs=30, hidden=HIDDEN)
    return fabricate(backbone, [30], pattern=pattern, share=share, tasks=tasks)


@pytest.mark.parametrize(("pattern", "share"), [("irregular", 0.1), ("column", 0.2), ("filter", 0.5)])
def test_a_fabricated_layer_has_exactly_its_share(pattern: str, share: float) -> None:
    subject = small(pattern, share)
    for partition, weight in subject.net.prunable():
        kept = weight != 0
        groups = {"irregular": kept.flatten(), "column": kept.any(0), "filter": kept.any(1)}[pattern]
        assert int(groups.sum()) == round(share * groups.numel())
        assert int(kept.sum()) == int(groups.sum()) * (kept.numel() // groups.numel())
        assert torch.equal(kept, partition.owner == 1)


def test_task_3_owns_a_fifth_and_reuses_half_of_two_fifths() -> None:
    subject = small("column", 0.2, tasks=3)
    for partition, weight in subject.net.prunable():
        columns = weight.shape[1]
        assert [partition.owned_by(task) for task in (1, 2, 3)] == [0.2 * weight.numel()] * 3
        assert int((weight != 0).any(0).sum()) == int((weight != 0).all(0).sum()) == 0.4 * columns


def test_the_papers_cifar_net_keeps_half_of_each_layers_columns() -> None:
    subject = cifar_net()
    for _, weight in subject.net.prunable():
        matrix = weight.flatten(1) != 0
        assert int(matrix.any(0).sum()) == round(matrix.shape[1] / 2)


def test_a_layer_of_few_groups_keeps_one() -> None:
    subject = fabricate(models.create("mlp", inputs=2, hidden=[3]), [2], pattern="column", share=0.1)
    ((_, weight),) = subject.net.prunable()
    assert int((weight != 0).any(0).sum()) == 1


@pytest.mark.parametrize("pattern", ["irregular", "column", "filter"])
def test_cut_out_and_dense_answer_the_same(pattern: str) -> None:
    subject = small(pattern, 0.3)
    inputs = subject.inputs(4)
    with torch.no_grad():
        expected = subject.net(inputs, task=1)
        check_answers("the twins", {"dense": subject.dense(inputs), "cut-out": subject.cut_out(4)(inputs)}, expected)


@pytest.mark.parametrize("make", [lambda: small("irregular", 0.3), cifar_net], ids=["mlp", "images"])
def test_all_dense_peers_give_the_same_logits(make: Callable[[], Subject]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    subject = make()
    inputs = subject.inputs(3)
    with torch.inference_mode():
        peers, missing = dense_runs(subject.dense, inputs)
        check_answers("dense", {name: run() for name, run in peers.items()}, subject.dense(inputs))
    assert missing is None
    assert list(peers) == ["torch", *(["torch channels-last"] if inputs.dim() == 4 else []), "ONNX Runtime"]
    times = {name: Timing.of([place + 1.0]) for place, name in enumerate(peers)}
    assert fastest(times, peers) == ("torch", times["torch"])


def test_without_onnx_runtime_torch_alone_is_the_dense_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    subject = small("column", 0.5)
    peers, missing = dense_runs(subject.dense, subject.inputs(2))
    assert list(peers) == ["torch"]
    assert missing is not None
    assert missing.startswith("onnxruntime cannot be imported")


def test_the_onnx_file_for_deepsparse_answers_the_same() -> None:
    runtime = pytest.importorskip("onnxruntime")
    subject = small("irregular", 0.3)
    inputs = subject.inputs(3)
    content = deepsparse.chain_as_onnx(subject.dense, 3)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answer = torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])
    with torch.no_grad():
        check_answers("the chain", {"ONNX": answer}, subject.dense(inputs))


def test_a_wrong_answer_is_not_timed() -> None:
    expected = torch.tensor([1.0, -4.0])
    check_answers("a", {"b": expected * (1 + 1e-6)}, expected)
    with pytest.raises(UnmeasurableError, match=r"a: b answers otherwise, by 2.5e-03 of the largest value"):
        check_answers("a", {"b": expected + 0.01}, expected)
    for wrong in (expected[:1], torch.full((2,), torch.nan)):
        with pytest.raises(UnmeasurableError, match="a: b answers otherwise"):
            check_answers("a", {"b": wrong}, expected)


def test_deepsparse_that_does_not_run_says_why(tmp_path: Path) -> None:
    subject = small("irregular", 0.3)
    with pytest.raises(UnavailableError, match="DeepSparse does not start: "):
        deepsparse.DeepSparse(tmp_path / "absent")
    pytest.importorskip("onnx")
    without = deepsparse.DeepSparse(Path(sys.executable))  # this Python has no deepsparse
    with without, pytest.raises(UnavailableError, match="does not run here: ModuleNotFoundError: No module named 'dee"):
        without.load(subject.dense, subject.inputs(2))
    ends = deepsparse.DeepSparse(Path(shutil.which("false") or "false"))
    with ends, pytest.raises(UnavailableError, match="DeepSparse ended: it says nothing"):
        ends.time_calls(0.1)


def test_deepsparse_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "default_directory", lambda: tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(UnavailableError, match=r"DeepSparse cannot be installed: .*deepsparse==1\.8\.0"):
        environments.install(deepsparse.NAME, deepsparse.INSTALL)
    assert not (tmp_path / "deepsparse" / "complete").exists()


def test_a_missing_deepsparse_skips_its_figures_in_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = [bounds for bounds in NETWORKS[0].bounds if bounds.deepsparse is not None]
    network = Network("tiny", "irregular", lambda: small("irregular", 0.3), bounds)
    monkeypatch.setattr("benchmarks.figures.inference.SECONDS", 0.001)
    results = list(network_figures(network, "no such wheel"))
    skipped = [str(result) for result in results if isinstance(result, Skipped) and "DeepSparse" in result.what]
    assert [line.split() for line in skipped] == [
        f"tiny, batch {batch} vs DeepSparse skipped: no such wheel".split() for batch in (128, 1)
    ]
    holds = Figure("a", 2, "x", ">=", 1, "")

    def group() -> Iterator[Figure | Skipped]:
        yield holds
        yield Skipped("b", "no such wheel")

    monkeypatch.setitem(figures.GROUPS, "some", group)
    assert figures.print_figures("some", None)
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{'b':<50}skipped: no such wheel",
        "all 1 figures hold; 1 skipped",
    ]


def test_bytes_are_counted_per_weight_of_the_layers_that_are_not_dense() -> None:
    subject = small("column", 0.2)

    def cutout(format: str, held_bytes: int) -> Cutout:
        left = (40, 30) if format == "dense" else (40, 6)
        work = Work(40, 30, 40, 6, 240, 1, 1)  # does not matter here
        layer = LayerSummary("1", format, (40, 30), left, 240, held_bytes, 4800, 1.0, 1.0, work, work)
        other = LayerSummary("4", "dense", (50, 40), (50, 40), 2000, 8000, 8000, 1.0, 1.0, work, work)
        return Cutout(nn.Identity(), [layer, other], [])

    cutouts = [cutout("structured", 960), cutout("structured", 1104), cutout("dense", 4800)]
    structured = held("a", "column", subject, cutouts)
    assert isinstance(structured, Figure)
    assert structured.value == pytest.approx(1.15)  # 23 % of the bytes for 20 % of the weights
    irregular = held("a", "irregular", subject, cutouts)
    assert isinstance(irregular, Figure)
    assert irregular.value == pytest.approx(3.0)
    assert irregular.bound == 6.25
    assert isinstance(held("a", "column", subject, cutouts[2:]), Skipped)


@each_op_where(lambda op: op.sums == "products")
def test_peers_of_inference_do_the_operators_work(op: Op) -> None:
    calls = op.workload([(7, 10), (6, 5, 3), (4, 3, 3, 3)])
    case = Case(op, calls)
    peers = [runner for runner in runners(op.name) if runner not in CPU.backends(op)]
    assert peers
    for peer in peers:
        answers = case.thunk(peer)()
        assert isinstance(answers, list)
        for args, answer in zip(calls, answers, strict=True):
            check_answers(op.name, {peer: answer}, op.overload(*args))
    assert case.traffic().flops > 0


def test_a_row_of_the_table_tells_flops_where_there_are_any(tmp_path: Path) -> None:
    rows = [
        OperatorTiming("structured_linear", "mlp", 1e-3, 1e-3, 1e-3, 5e9, 0.5, 2e11, {}),
        OperatorTiming("pack_bits", "mlp", 1e-3, 1e-3, 1e-3, 5e9, 0.5, 0.0, {}),
    ]
    assert [str(row).split()[-1] for row in rows] == ["200.0", "-"]
    save(tmp_path / "rows.json", rows, threads=2)
    assert list(load(tmp_path / "rows.json").values()) == rows


def test_a_place_is_measured_in_every_format() -> None:
    rows = costs.measure_place(costs.Place(nn.Conv1d(10, 6, 3, stride=2), (4, 10, 9)), 0.0005)
    assert [(row.pattern, row.density) for row in rows] == [(p, d) for d in costs.DENSITIES for p in costs.PATTERNS]
    columns, irregular = rows[:2]
    assert columns.work == Work(outputs=6, inputs=30, rows=6, columns=3, nonzeros=18, positions=16, taps=3)
    assert irregular.work.nonzeros == 18
    assert columns.measured["dense"] == irregular.measured["dense"]
    assert columns.measured["structured"] != irregular.measured["structured"]


def test_the_model_of_costs_pays_for_wrong_choices_only() -> None:
    work = Work(1, 1, 1, 1, 1, 1, 1)
    right = costs.FormatTiming(
        "a", "column", 0.5, work, {"dense": 3, "structured": 1, "sparse": 2}, _expecting("structured")
    )
    wrong = costs.FormatTiming(
        "b", "column", 0.5, work, {"dense": 3, "structured": 2, "sparse": 4}, _expecting("dense")
    )
    assert (right.choice, right.loss) == ("structured", 0)
    assert (wrong.choice, wrong.fastest, wrong.loss) == ("dense", "structured", 0.5)
    first, second = costs.summary([right, wrong]).splitlines()
    assert first == "the model takes the fastest format in 1 of 2 cases"
    assert second.startswith("its choices take 33.3 % longer than the fastest in all, 25.0 % in the mean")


def _expecting(format: str) -> dict[Format, float]:
    return {candidate: float(candidate != format) for candidate in FORMATS}


def test_callables_with_their_own_threads_sleep_between_turns() -> None:
    timings = measure({"a": lambda: None, "b": lambda: None}, 0.0, rest=0.001)
    assert timings["a"].best < 0.001  # the sleep is not timed
    assert timings["a"].scaled(2).p50 == 2 * timings["a"].p50
