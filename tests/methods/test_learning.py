"""Learning a task: phases, log, both steppers, and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite, isnan, nan
from typing import Any

import pytest
import torch
from lps import Arrays, Lifelong, Listener, LPSConfig, Row, Task
from lps.errors import ConfigError, DataError, DivergedError
from lps.methods.lps.plan import rounded
from lps.partition import Partition
from lps.task import TaskData
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

from lps_kernels import unpack_bits
from tests.toy import QUICK, answers, toy_mlp, toy_net, toy_task


class Recorder(Listener):
    """Records all calls."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, str, int]] = []
        self.steps: list[tuple[str, int]] = []
        self.rows: list[Row] = []

    def start(self, task: int, name: str, steps: int) -> None:
        self.starts.append((task, name, steps))

    def step(self, phase: str, examples: int) -> None:
        self.steps.append((phase, examples))

    def row(self, row: Row) -> None:
        self.rows.append(row)


def test_tasks_are_learnt() -> None:
    net = toy_net()
    for number in (1, 2, 3):
        task = toy_task(number)
        report = net.learn(task, replace(QUICK, epochs=(2, 6, 2)))
        assert net.accuracy(number, task.test) > 0.85  # chance is 1/3
        assert (report.task, report.name) == (number, f"clouds-{number}")
        assert report.accuracy > 0.85
        assert report.accuracy_before_projection > 0.6
        assert isfinite(report.accuracy_after_projection)
        assert list(report.seconds) == ["warm-up", "admm", "final"]
        assert len(report.residuals) == 8


def test_the_log() -> None:
    net, recorder = toy_net(), Recorder()
    net.learn(toy_task(1), QUICK, listener=recorder)
    # 160 examples in batches of 32; epochs 1, 3, 1.
    assert recorder.starts == [(1, "clouds-1", 25)]
    assert recorder.steps == [("warm-up", 32)] * 5 + [("admm", 32)] * 15 + [("final", 32)] * 5
    events = [(row.phase, row.event) for row in recorder.rows if row.event != "projection"]
    assert events == [
        ("warm-up", "epoch"),
        *[("admm", "epoch")] * 3,
        ("final", "pruned"),
        *[("final", "layer")] * 2,
        ("final", "epoch"),
    ]
    projections = [row for row in recorder.rows if row.event == "projection"]
    assert [row.rho for row in projections] == pytest.approx([1e-3] * 2 + [1e-2] * 3 + [1e-1] * 3)
    assert all(row.primal > 0 for row in projections)
    assert [isnan(row.dual) for row in projections] == [True, False] + [True, False, False] * 2
    assert all(abs(row.density - 0.2) < 0.01 for row in projections)
    epochs = [row for row in recorder.rows if row.event == "epoch"]
    assert all(row.loss > 0 and row.samples_per_second > 0 and 0 <= row.accuracy <= 1 for row in epochs)
    assert [row.step for row in epochs] == [5, 10, 15, 20, 25]
    assert epochs[-1].loss < epochs[0].loss


def test_residuals_say_whether_admm_converged() -> None:
    """Under the strong penalty at the end the weights come near their projection, which then costs no accuracy.

    On the way the primal residual first grows: a dual that was just set pulls a weight past zero.
    """
    report = toy_net().learn(toy_task(1), replace(QUICK, epochs=(2, 60, 0), schedule="cosine"))
    primal = [primal for _, primal, _ in report.residuals]
    assert primal[-1] < 0.5 * max(primal)
    assert report.accuracy_after_projection == report.accuracy_before_projection


def test_learning_rate_falls_within_each_phase() -> None:
    recorder = Recorder()
    toy_net().learn(toy_task(1), replace(QUICK, schedule="linear", epochs=(1, 2, 1)), listener=recorder)
    rates = [row.lr for row in recorder.rows if row.event == "epoch"]
    assert rates == pytest.approx([0.2e-2, 0.6e-2, 0.1e-2, 0.2e-2])


@pytest.mark.parametrize("epochs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 0, 2)])
def test_phases_may_be_left_out(epochs: tuple[int, int, int]) -> None:
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), replace(QUICK, epochs=epochs, beta=1))
    for partition, _ in net.prunable():
        assert partition.owned_by(2) > 0


def test_the_seed_decides_and_nothing_else() -> None:
    def digests(seed: int, noise: int) -> list[str]:
        net = toy_net()
        for number in (1, 2):
            torch.manual_seed(noise)  # the state of the caller's generator must not matter
            net.learn(toy_task(number), replace(QUICK, seed=seed))
        return [learnt.digest for learnt in net.learnt]

    assert digests(0, 1) == digests(0, 2)
    assert digests(0, 1) != digests(1, 1)


def test_learning_leaves_the_callers_generator_alone() -> None:
    net = toy_net()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    net.learn(toy_task(1), QUICK)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pull": "proximal"},
        {"solver": "straight-through", "beta": "auto", "share_cost": 0.01},
        {"solver": "straight-through", "beta": {"0.*": "max:0.5", "*": 0.6}},
    ],
    ids=["gradient", "proximal", "straight-through", "straight-through-shares"],
)
def test_both_ways_to_step_give_the_same_task(changes: dict[str, Any]) -> None:
    """Fused and through autograd: in fp64 a hundred steps differ by rounding only."""
    nets = []
    for optimizer in (None, lambda parameters: torch.optim.Adam(parameters, lr=3e-3)):
        torch.manual_seed(0)
        net = Lifelong(toy_mlp().double(), features=16)
        for number in (1, 2, 3):
            task = toy_task(number, dtype=torch.float64)
            config = replace(QUICK, epochs=(4, 12, 4), lr=3e-3, schedule="cosine", **changes)
            net.learn(task, config, optimizer=optimizer)
        nets.append(net)
    fused, composed = nets
    for (a, _), (b, _) in zip(fused.prunable(), composed.prunable(), strict=True):
        assert torch.equal(a.owner, b.owner), "the same weights survive"
        for number in (1, 2, 3):
            assert torch.equal(a.mask(number), b.mask(number)), "the same weights are reused"
        torch.testing.assert_close(a.w_bar, b.w_bar, rtol=1e-9, atol=1e-9)
    tasks = [toy_task(number, dtype=torch.float64) for number in (1, 2, 3)]
    for x, y in zip(answers(fused, tasks), answers(composed, tasks), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_another_optimiser_keeps_all_promises(
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    """Weight decay would move masks and pruned weights; they stay frozen."""
    net, tasks, kept = toy_net(), [toy_task(number) for number in (1, 2, 3)], []
    backbone_type = type(net.backbone.get_submodule("0"))
    for number, task in enumerate(tasks, start=1):
        net.learn(task, replace(QUICK, epochs=(2, 6, 2)), optimizer=optimizer)
        assert net.accuracy(number, task.test) > 0.7
        kept.append(answers(net, tasks[:number])[-1])
    assert all(torch.equal(a, b) for a, b in zip(answers(net, tasks), kept, strict=True))
    assert type(net.backbone.get_submodule("0")) is backbone_type, "no parametrization stays behind"
    for partition, weight in net.prunable():
        used = (partition.owner == 3) | unpack_bits(partition.mask(3), partition.shape)
        assert not weight[~used].any()
        assert torch.equal(weight[used], partition.w_bar[used])


def test_another_optimiser_with_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.second(torch.relu(self.first(x)))
            return hidden

    torch.manual_seed(0)
    net = Lifelong(Tied(), features=12)
    for number in (1, 2):
        net.learn(toy_task(number), QUICK, optimizer=sgd)
        assert net.backbone.first.weight is net.backbone.second.weight  # type: ignore[union-attr]
        assert isinstance(net.backbone.first.weight, nn.Parameter)  # type: ignore[union-attr]
    assert len(list(net.backbone.parameters())) == 3


@pytest.mark.parametrize("optimizer", [None, sgd])
def test_fixed_masks_stay_frozen_while_others_are_learnt(
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None,
) -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    first, second = (partition for partition, _ in net.prunable())
    owned = first.owner == 1
    reused = []

    class Watch(Listener):
        def step(self, phase: str, examples: int) -> None:
            reused.append(net.backbone.get_submodule("0").weight[owned].abs().max().item())  # type: ignore[index]

    net.learn(toy_task(2), replace(QUICK, beta={"0.*": 0, "*": 0.5}), optimizer=optimizer, listener=Watch())
    assert len(reused) == 25
    assert not any(reused), "nothing of the first layer is reused at any time"
    assert not unpack_bits(first.mask(2), first.shape).any()
    assert int(unpack_bits(second.mask(2), second.shape).sum()) == rounded(0.5 * second.owned_by(1))


class StopAt(Listener):
    """Raises in the middle of a phase."""

    def __init__(self, phase: str, error: BaseException) -> None:
        self.phase, self.error, self.count = phase, error, 0

    def step(self, phase: str, examples: int) -> None:
        del examples
        if phase == self.phase:
            self.count += 1
            if self.count == 4:
                raise self.error


@pytest.mark.parametrize("phase", ["warm-up", "admm", "final"])
@pytest.mark.parametrize("optimizer", [None, sgd])
def test_an_interrupted_task_leaves_no_trace(
    phase: str, optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None
) -> None:
    net, tasks = toy_net(), [toy_task(1), toy_task(2)]
    initial = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        net.learn(tasks[0], QUICK, optimizer=optimizer, listener=StopAt(phase, KeyboardInterrupt()))
    state = net.state_dict()
    assert state.keys() == initial.keys()
    assert all(torch.equal(tensor, initial[name]) for name, tensor in state.items()), "not even of task 1"
    assert all(parameter.requires_grad for parameter in net.backbone.parameters())
    net.learn(tasks[0], QUICK)
    untouched = toy_net()
    untouched.learn(tasks[0], QUICK)
    assert net.digest(1) == untouched.digest(1)

    before = answers(net, tasks[:1])
    with pytest.raises(KeyboardInterrupt):
        net.learn(tasks[1], QUICK, optimizer=optimizer, listener=StopAt(phase, KeyboardInterrupt()))
    assert torch.equal(answers(net, tasks[:1])[0], before[0])
    assert len(net.heads) == len(net.learnt) == 1
    net.learn(tasks[1], QUICK)
    untouched.learn(tasks[1], QUICK)
    assert net.digest(2) == untouched.digest(2)


class Failing(Dataset[tuple[Tensor, Tensor]]):
    """TaskData that fails after a number of passes."""

    def __init__(self, examples: TaskData, passes: int) -> None:
        assert isinstance(examples, Arrays)
        self.examples, self.left = examples, passes * len(examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk is gone")
        return self.examples[index]


@pytest.mark.parametrize("passes", range(8))  # five epochs, twice around the projection and once at the end
def test_an_error_in_any_validation_leaves_no_trace(passes: int) -> None:
    net, tasks = toy_net().eval(), [toy_task(1), toy_task(2)]
    initial = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    validation = tasks[0].validation
    assert validation is not None
    with pytest.raises(OSError, match="the disk is gone"):
        net.learn(replace(tasks[0], validation=Failing(validation, passes)), QUICK)
    assert all(torch.equal(tensor, initial[name]) for name, tensor in net.state_dict().items())
    assert not net.learnt
    assert not any(module.training for module in net.modules())
    net.learn(tasks[0], QUICK)
    before = answers(net, tasks[:1])
    with pytest.raises(OSError, match="the disk is gone"):
        net.learn(replace(tasks[1], validation=Failing(validation, passes)), QUICK)
    assert torch.equal(answers(net, tasks[:1])[0], before[0])
    assert len(net.learnt) == 1


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupted_commit_leaves_no_trace(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, commit, calls = toy_net(), Partition.commit, []

    def interrupted(self: Partition, v: Tensor, rounding: torch.dtype | None) -> None:
        calls.append(self)
        if len(calls) == at:
            raise KeyboardInterrupt
        commit(self, v, rounding)

    untouched = toy_net()
    for number in (1, 2):
        calls.clear()
        monkeypatch.setattr(Partition, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.learn(toy_task(number), QUICK)
        monkeypatch.setattr(Partition, "commit", commit)
        for each in (net, untouched):
            each.learn(toy_task(number), QUICK)
        assert net.digest(number) == untouched.digest(number)


@pytest.mark.parametrize("optimizer", [None, sgd])
def test_a_listener_that_fails_at_once_leaves_no_trace(
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None,
) -> None:
    class Refuse(Listener):
        def start(self, task: int, name: str, steps: int) -> None:
            raise OSError("no room for a log")

    net = toy_net()
    with pytest.raises(OSError, match="no room for a log"):
        net.learn(toy_task(1), QUICK, optimizer=optimizer, listener=Refuse())
    assert not net.heads
    net.learn(toy_task(1), QUICK, optimizer=optimizer)


def test_gradients_of_the_caller_do_not_count() -> None:
    plain, touched = toy_net(), toy_net()
    touched.backbone.eval()(torch.ones(4, 12)).sum().backward()
    for net in (plain, touched):
        net.learn(toy_task(1), QUICK)
    assert plain.digest(1) == touched.digest(1)


def test_weights_that_end_infinite_are_not_kept() -> None:
    net = toy_net()
    with pytest.raises(DivergedError, match="task 1: a weight became infinite or NaN in phase final, epoch 1"):
        net.learn(
            toy_task(1),
            replace(QUICK, epochs=(0, 0, 1), batch_size=160),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=float("inf")),
        )
    assert not net.learnt


def test_learn_within_learn_is_refused() -> None:
    net = toy_net()

    class Nested(Listener):
        def step(self, phase: str, examples: int) -> None:
            net.learn(toy_task(2), QUICK)

    with pytest.raises(ConfigError, match="learn: task 1 is being learnt; wait until it is done"):
        net.learn(toy_task(1), QUICK, listener=Nested())
    net.learn(toy_task(1), QUICK)


def test_the_logged_rate_is_that_of_the_optimiser() -> None:
    recorder = Recorder()
    toy_net().learn(toy_task(1), QUICK, optimizer=sgd, listener=recorder)
    assert {row.lr for row in recorder.rows if row.event == "epoch"} == {0.05}
    with pytest.raises(ConfigError, match="optimizer: expected one that steps without a closure, got LBFGS"):
        toy_net().learn(toy_task(1), QUICK, optimizer=torch.optim.LBFGS)


def test_a_single_example_left_over_is_left_out_of_an_epoch() -> None:
    task = toy_task(1)
    recorder = Recorder()
    labels = torch.arange(33, dtype=torch.int32) % 3
    train: Dataset[Any] = TensorDataset(torch.randn(33, 12), labels)
    toy_net().learn(replace(task, train=train), QUICK, listener=recorder)
    assert {examples for _, examples in recorder.steps} == {32}
    assert recorder.starts == [(1, "clouds-1", 5)]


def test_a_loss_that_is_nan_ends_the_task_and_spares_the_others() -> None:
    net, good = toy_net(), toy_task(1)
    net.learn(good, QUICK)
    before = answers(net, [good])
    bad = replace(toy_task(2), loss=lambda logits, labels: cross_entropy(logits, labels) * nan)
    message = "task 2: the loss became nan in phase warm-up, epoch 1; the task is dropped and earlier ones are as they"
    with pytest.raises(DivergedError, match=message):
        net.learn(bad, QUICK)
    assert torch.equal(answers(net, [good])[0], before[0])
    assert net.digest(1) == net.learnt[0].digest
    net.learn(toy_task(2), QUICK)


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (lambda t: replace(t, classes=2), DataError, r"train: labels: expected 0 to 1 \(a head of 2 classes\), got 2"),
        (
            lambda t: replace(t, train=TensorDataset(torch.zeros(9, 12), torch.arange(9))),
            DataError,
            "train: labels: expected 0 to 2 .*, got 8",
        ),
        (
            lambda t: replace(t, test=Arrays(torch.zeros(3, 12), torch.tensor([0, -1, 2]))),
            DataError,
            "test: labels: expected 0 to 2 .*, got -1",
        ),
        (
            lambda t: replace(t, train=Arrays(torch.zeros(0, 12), torch.zeros(0))),
            DataError,
            "train: expected at least one example, got Arrays of length 0",
        ),
    ],
)
def test_data_that_does_not_fit(task: Callable[[Task], Task], error: type[Exception], message: str) -> None:
    net = toy_net()
    with pytest.raises(error, match=f"task clouds-1: {message}"):
        net.learn(task(toy_task(1)), QUICK)
    assert not net.heads


def test_features_that_do_not_fit() -> None:
    net = Lifelong(toy_mlp(), features=17)
    with pytest.raises(ConfigError, match=r"features: expected a backbone that gives \[examples, 17\], got \[16, 16\]"):
        net.learn(toy_task(1), QUICK)


def test_inputs_and_labels_must_match() -> None:
    with pytest.raises(DataError, match=r"labels: expected one for each of the 3 inputs, got shape \[2\]"):
        Arrays(torch.zeros(3, 2), torch.zeros(2))


def test_an_earlier_task_cannot_run_while_another_is_learnt() -> None:
    net, first = toy_net(), toy_task(1)
    net.learn(first, QUICK)

    class Peek(Listener):
        def step(self, phase: str, examples: int) -> None:
            net(torch.zeros(1, 12), task=1)

    with pytest.raises(ConfigError, match="task: expected 2, which is being learnt, got 1"):
        net.learn(toy_task(2), QUICK, listener=Peek())
    assert net.digest(1) == net.learnt[0].digest


def test_any_dataset_will_do() -> None:
    class Squares(Dataset[tuple[Tensor, Tensor]]):
        def __init__(self, arrays: TaskData) -> None:
            assert isinstance(arrays, Arrays)
            self.arrays = arrays

        def __len__(self) -> int:
            return len(self.arrays)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return self.arrays[index]

    net, plain = toy_net(), toy_task(1)
    wrapped = Task("wrapped", 3, train=Squares(plain.train), test=Squares(plain.test))
    report = net.learn(wrapped, replace(QUICK, epochs=(2, 6, 2)))
    assert isnan(report.accuracy), "without validation data there is nothing to say"
    assert net.accuracy(1, wrapped.test) > 0.85


def test_masks_are_chosen_by_what_was_learnt_not_by_their_index() -> None:
    """All masks start at 1; a projection of equal values would keep the ones with the lowest index.

    The strong penalty imitates a large network, in which the loss depends little on one mask.
    """
    net = Lifelong(toy_mlp(), features=16)
    net.learn(toy_task(1), replace(QUICK, alpha=0.8))
    net.learn(toy_task(2), replace(QUICK, beta=0.5, rho=10.0))
    for partition, _ in net.prunable():
        mask = unpack_bits(partition.mask(2), partition.shape)[partition.owner == 1]
        first_half = mask[: len(mask) // 2].float().mean().item()
        assert 0.3 < first_half < 0.7  # by index it would be 1


def test_reuse_helps_when_the_tasks_are_alike() -> None:
    """In an almost full network, a task that resembles earlier ones is learnt by reusing their weights."""
    accuracy = {}
    for beta in (0.0, 0.9):
        net, task = toy_net(), toy_task(1)
        net.learn(task, LPSConfig(alpha=0.9, epochs=(4, 6, 4), batch_size=32, lr=1e-2))
        net.learn(
            replace(task, name="again"), LPSConfig(alpha=0.02, beta=beta, epochs=(4, 6, 4), batch_size=32, lr=1e-2)
        )
        accuracy[beta] = net.accuracy(2, task.test)
    assert accuracy[0.9] > accuracy[0.0] + 0.05


def test_arrays_and_backbones_of_the_wrong_kind() -> None:
    with pytest.raises(DataError, match=r"inputs: expected a tensor or an array of numbers, got a list of 2 \(int\)"):
        Arrays([0, 1], torch.zeros(2))
    with pytest.raises(ConfigError, match=r"backbone: expected an nn\.Module, got tuple"):
        Lifelong((toy_mlp(), 16), features=16)  # type: ignore[arg-type]
