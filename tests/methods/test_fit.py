"""The training loop: losses, heads, data of every kind, precision, memory formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Arrays, Lifelong, Listener, Task, load
from lps.errors import ConfigError, DataError
from lps.methods import METHODS
from lps.methods.lps.method import LPS
from lps.observed import seen
from lps.sources import batches
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_net, toy_task

LONG = replace(QUICK, epochs=(2, 6, 2))


def test_a_method_learns_predicts_and_has_figures() -> None:
    net = toy_net()
    method = METHODS["lps"](net, QUICK)
    for number in (1, 2):
        method.learn(toy_task(number))
    assert [task.name for task in method.learnt] == ["clouds-1", "clouds-2"]
    inputs = inputs_of(toy_task(1))
    net.eval()
    assert torch.equal(method.predict(inputs, 1), net(inputs, task=1))
    figures = method.figures()
    assert figures["capacity"] == pytest.approx([0.2, 0.2], abs=0.01)
    assert figures["density"][1] == pytest.approx(0.2 + 0.8 * 0.2, abs=0.01)


def two_layers(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes))


def test_a_head_of_the_tasks_own() -> None:
    net, tasks = toy_net(), [toy_task(1), replace(toy_task(2), head=two_layers), toy_task(3)]
    kept = []
    for number, task in enumerate(tasks, start=1):
        net.learn(task, LONG)
        assert net.accuracy(number, task.test) > 0.7
        kept.append(answers(net, tasks[:number])[-1])
    assert [type(head).__name__ for head in net.heads] == ["Linear", "Sequential", "Linear"]
    assert all(torch.equal(a, b) for a, b in zip(answers(net, tasks), kept, strict=True))
    served = net.serve(inputs_of(tasks[1]), [2] * 60)
    torch.testing.assert_close(served, kept[1])


def test_a_head_that_does_not_fit_is_refused() -> None:
    net = toy_net()
    with pytest.raises(ConfigError, match=r"task clouds-1: head: expected logits \[32, 3\], got \[32, 4\]"):
        net.learn(replace(toy_task(1), head=lambda features, _: nn.Linear(features, 4)), QUICK)
    with pytest.raises(ConfigError, match=r"task clouds-1: head: expected an nn\.Module, got function"):
        net.learn(replace(toy_task(1), head=lambda *_: two_layers), QUICK)  # type: ignore[arg-type]
    assert not net.heads


def test_a_head_of_another_task_is_refused() -> None:
    """It is frozen, so it would silently stay as it is; unfrozen, the other task would be forgotten."""
    net, head = toy_net(), nn.Linear(16, 3)
    net.learn(replace(toy_task(1), head=lambda *_: head), QUICK)
    with pytest.raises(ConfigError, match="task 2: head: expected a new module, got one that the network uses"):
        net.learn(replace(toy_task(2), head=lambda *_: head), QUICK)
    assert (len(net.heads), net.active, net.learning) == (1, 1, False)


def test_a_head_without_parameters() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    net.learn(replace(toy_task(2, classes=16), head=lambda *_: nn.Identity()), QUICK)
    assert net.accuracy(2, toy_task(2, classes=16).test) > 0.2


def test_statistics_of_a_learnt_head_stay() -> None:
    net = toy_net()
    net.learn(replace(toy_task(1), head=lambda f, c: nn.Sequential(nn.BatchNorm1d(f), nn.Linear(f, c))), QUICK)
    net.train()
    net(inputs_of(toy_task(1)), task=1)
    assert net.digest(1) == net.learnt[0].digest


class Losses(Listener):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def row(self, row: Any) -> None:
        if row.event == "epoch":
            self.losses.append(row.loss)


def test_a_loss_of_the_tasks_own() -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.3)
    losses = []
    for loss in (None, smooth):
        net, listener = toy_net(), Losses()
        net.learn(replace(toy_task(1), loss=loss), LONG, listener=listener)
        assert net.accuracy(1, toy_task(1).test) > 0.85
        losses.append(listener.losses[-1])
    assert losses[1] > losses[0] + 0.2, "smoothed labels cannot be met"
    with pytest.raises(ConfigError, match=r"loss: expected one number, got shape \[32\]"):
        toy_net().learn(replace(toy_task(1), loss=nn.CrossEntropyLoss(reduction="none")), QUICK)


def test_several_labels_per_example() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(240, 12, generator=generator)
    labels = (inputs[:, :4] > 0).float()
    parts = [Arrays(inputs[a:b], labels[a:b]) for a, b in ((0, 160), (160, 200), (200, 240))]
    task = Task("signs", 4, parts[0], parts[1], parts[2], loss=binary_cross_entropy_with_logits)
    net = toy_net()
    report = net.learn(task, replace(LONG, epochs=(8, 8, 8)))
    assert report.accuracy > 0.85  # chance is a half
    assert net.accuracy(1, task.test) > 0.85
    with pytest.raises(DataError, match=r"train: labels: expected a class number per example, got float32 \[160, 4\]"):
        toy_net().learn(replace(task, loss=None), QUICK)


def test_class_weights_move_the_answers() -> None:
    shares = []
    for weights in (None, (20.0, 1.0, 1.0)):
        net = toy_net()
        task = toy_task(1)
        assert isinstance(task.train, Arrays)
        noise = Arrays(torch.randn(160, 12), task.train.labels)  # only class frequencies can be learnt
        net.learn(replace(task, train=noise, class_weights=weights), LONG)
        shares.append((answers(net, [task])[0].argmax(1) == 0).float().mean().item())
    assert shares[1] > shares[0] + 0.3


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"class_weights": (1.0, 2.0)}, DataError, "class_weights: expected 3, one per class, got 2"),
        ({"class_weights": (1.0, -2.0, 1.0)}, DataError, "class_weights: expected numbers of at least 0"),
        ({"class_weights": ()}, DataError, "class_weights: expected 3, one per class, got 0"),
        ({"class_weights": (0, 0, 0)}, DataError, "class_weights: expected numbers of at least 0, and one above it"),
        ({"class_weights": "abc"}, DataError, "class_weights: expected numbers of at least 0, and one above it"),
        ({"class_weights": (1.0,) * 3, "loss": nn.CrossEntropyLoss()}, ConfigError, "class_weights: they are for the"),
        ({"class_names": ("a", "b")}, DataError, "class_names: expected 3, one per class, got 2"),
        ({"classes": 0}, DataError, "classes: expected a whole number of at least 1, got 0"),
        ({"loader": {"shuffle": True}}, ConfigError, r"loader: shuffle is decided by learn\(\)"),
    ],
)
def test_tasks_that_make_no_sense(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"task clouds-1: {words}"):
        replace(toy_task(1), **change)


class Counted(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(12), torch.tensor(0)


def test_data_of_every_kind() -> None:
    plain = toy_task(1)
    assert isinstance(plain.train, Arrays)
    tensors: Dataset[Any] = TensorDataset(plain.train.inputs, plain.train.labels)
    loader: DataLoader[Any] = DataLoader(tensors, batch_size=32, shuffle=True)
    for train, options in ((tensors, {}), (tensors, {"num_workers": 2}), (loader, {})):
        net = toy_net()
        net.learn(replace(plain, train=train, loader=options), LONG)
        assert net.accuracy(1, tensors, loader=options) > 0.85
        assert net.accuracy(1, loader) > 0.85
    with pytest.raises(DataError, match=r"train: expected batches .* in every epoch, got a list_iterator, which is"):
        replace(plain, train=iter([]))


def test_iterables_with_a_wrong_length_are_refused() -> None:
    class Short:
        def __len__(self) -> int:
            return 7

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter([(torch.zeros(4, 12), torch.zeros(4, dtype=torch.long))] * 3)

    with pytest.raises(DataError, match="train: expected 7 batches, as its length says, got 3"):
        toy_net().learn(replace(toy_task(1), train=Short()), QUICK)


def test_batches_are_the_same_whatever_is_skipped() -> None:
    arrays = Arrays(torch.arange(33.0)[:, None], torch.zeros(33))
    tensors: Dataset[Any] = TensorDataset(arrays.inputs, arrays.labels)
    for examples in (arrays, tensors):
        for workers in (0, 1):
            found = []
            for skip in (0, 2):
                shuffle = torch.Generator().manual_seed(3)
                options = {"num_workers": workers}
                parts = batches(examples, 8, shuffle=shuffle, skip=skip, loader=options)
                found.append([x.flatten().tolist() for x, _ in parts])
            assert found[0][2:] == found[1]
            assert [len(part) for part in found[0]] == [8] * 4, "a single one is left out"


def test_augmentation_is_for_training_only() -> None:
    seen: list[tuple[int, ...]] = []

    def flip(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    toy_net().learn(replace(toy_task(1), augment=flip), QUICK)
    assert len(seen) == 25
    assert set(seen) == {(32, 12)}


class Dtypes(nn.Module):
    """Records the memory formats of its inputs and the dtypes of its outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training_dtypes: set[torch.dtype] = set()
        self.testing_dtypes: set[torch.dtype] = set()
        self.formats: set[tuple[bool, bool]] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.formats.add((self.training, x.is_contiguous(memory_format=torch.channels_last)))
        result: Tensor = self.inner(x)
        (self.training_dtypes if self.training else self.testing_dtypes).add(result.dtype)
        return result


def test_bf16_and_channels_last_while_training_and_fp32_while_testing(tmp_path: Path) -> None:
    """Old tasks stay bit-identical: evaluation does not depend on how a task was trained."""
    torch.manual_seed(0)
    backbone = Dtypes(toy_convnet())
    net = Lifelong(backbone, 16)
    tasks, kept = [toy_task(number, (3, 8, 8)) for number in (1, 2)], []
    for number, task in enumerate(tasks, start=1):
        net.learn(task, replace(LONG, precision="bf16", channels_last=True))
        assert net.accuracy(number, task.test) > 0.7
        assert net.accuracy(number, task.test, precision="bf16") > 0.7
        kept.append(answers(net, tasks[:number])[-1])
    assert backbone.training_dtypes == {torch.bfloat16}
    assert torch.float32 in backbone.testing_dtypes
    assert {(True, True), (False, False)} <= backbone.formats
    assert all(torch.equal(a, b) for a, b in zip(answers(net, tasks), kept, strict=True))
    net.save(tmp_path / "model.lps")
    loaded = load(tmp_path / "model.lps", Dtypes(toy_convnet()))
    assert all(torch.equal(a, b) for a, b in zip(answers(loaded, tasks), kept, strict=True))
    for partition, _ in net.prunable():
        assert partition.w_bar.dtype == torch.float32


def test_a_draft_that_is_not_committed_leaves_no_trace() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with net.transaction() as draft:
        assert (draft.number, net.learning, net.active) == (2, True, 2)
        draft.add_head(nn.Linear(16, 2))
        for parameter in net.backbone.parameters():
            parameter.data.zero_()
    assert not draft.committed
    assert (net.learning, net.active) == (False, 1)
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_lps_config_is_what_learn_uses() -> None:
    """LPS.learn and Lifelong.learn give the same weights."""
    a, b = toy_net(), toy_net()
    a.learn(toy_task(1), QUICK)
    LPS(b, QUICK).learn(toy_task(1))
    assert a.digest(1) == b.digest(1)


def test_a_draft_is_committed_once_within_its_transaction_and_with_a_head() -> None:
    net = toy_net()
    values = [weight.detach().clone() for _, weight in net.prunable()]
    arguments = (toy_task(1), values, [0.0, 0.0], seen(torch.zeros(1, 12)))
    words = "commit: expected task 1 to be committed once, within its transaction and with one head"
    with pytest.raises(ConfigError, match=words), net.transaction() as draft:
        draft.commit(*arguments)
    with net.transaction() as draft:
        draft.add_head(nn.Linear(16, 3))
    with pytest.raises(ConfigError, match=words):
        draft.commit(*arguments)
    assert (len(net.learnt), len(net.heads), net.active) == (0, 0, 0)
    with net.transaction() as draft:
        draft.add_head(nn.Linear(16, 3))
        draft.commit(*arguments)
        with pytest.raises(ConfigError, match=words):
            draft.commit(*arguments)
    assert (len(net.learnt), len(net.heads), net.active) == (1, 1, 1)


def test_an_interrupt_right_after_the_commit_point_comes_too_late() -> None:
    class Interrupted(list[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            raise KeyboardInterrupt

    net = toy_net()
    net.learnt = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        net.learn(toy_task(1), QUICK)
    assert (len(net.learnt), len(net.heads), net.active) == (1, 1, 1)
    assert net.digest(1) == net.learnt[0].digest


def test_a_refused_accuracy_leaves_the_modes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be in the middle of a training step."""
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    monkeypatch.setattr(net, "eval", lambda: pytest.fail("changes the mode"))
    with pytest.raises(ConfigError, match="task: expected 1 to 1, got 2"):
        net.accuracy(2, toy_task(1).test)
    with pytest.raises(ConfigError, match="precision: expected one of fp32, bf16, got fp16"):
        net.accuracy(1, toy_task(1).test, precision="fp16")


def test_another_optimiser_leaves_the_order_of_parameters_alone() -> None:
    net = toy_net()
    names = [name for name, _ in net.backbone.named_parameters()]
    net.learn(toy_task(1), QUICK, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05))
    assert [name for name, _ in net.backbone.named_parameters()] == names


def test_options_that_no_loader_has_are_refused() -> None:
    tensors: Dataset[Any] = TensorDataset(torch.zeros(8, 12), torch.zeros(8, dtype=torch.long))
    for options in ({"workers": 2}, {"prefetch_factor": 2}):
        task = replace(toy_task(1), train=tensors, loader=options)
        with pytest.raises(ConfigError, match="loader: expected options of a DataLoader that fit together, got"):
            toy_net().learn(task, QUICK)


def test_labels_that_are_fractions_are_refused() -> None:
    assert Arrays(torch.zeros(3, 2), torch.tensor([0.0, 2.0, 1.0])).labels.tolist() == [0, 2, 1]
    with pytest.raises(DataError, match="labels: expected class numbers, got fractions"):
        Arrays(torch.zeros(3, 2), torch.tensor([0.0, 0.9, 1.0]))


def test_a_listener_may_look_at_the_network_whatever_the_optimiser() -> None:
    net = toy_net()
    net.learn(toy_task(1), QUICK)

    class Looks(Listener):
        def step(self, phase: str, examples: int) -> None:
            assert net.digest(1) == net.learnt[0].digest

    net.learn(toy_task(2), QUICK, optimizer=torch.optim.AdamW, listener=Looks())
    assert len(net.learnt) == 2
