"""One's own data: every kind of it, inputs by name, what is refused before a task is learnt, what stays the same."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import Arrays, Checkpoint, Lifelong, Listener, LPSConfig, Task, load
from lps.errors import ConfigError, DataError, StoppedError
from lps.methods import METHODS
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from tests.toy import QUICK, toy_net, toy_task

Named = dict[str, Tensor]


class Text(nn.Module):
    """The mean of the embeddings of tokens that the mask lets through; 24 features."""

    def __init__(self, *, as_object: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(45, 16)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 24)
        self.as_object = as_object

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weights = mask.unsqueeze(-1).to(self.embedding.weight.dtype)
        mean = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        features = torch.relu(self.second(torch.relu(self.first(mean))))
        return Output(features) if self.as_object else features


class Output:
    def __init__(self, pooled: Tensor) -> None:
        self.last_hidden_state, self.pooler_output = pooled[:, None], pooled


def text_net(**options: Any) -> Lifelong:
    torch.manual_seed(0)
    return Lifelong(Text(**options), 24)


def tokens(seed: int, count: int = 96, length: int = 7) -> Named:
    """Tokens that tell the class, with a mask."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    ids = torch.randint(0, 15, (count, length), generator=generator) + 15 * labels[:, None]
    mask = torch.ones(count, length, dtype=torch.long)
    mask[::2, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def inputs_in(batch: Named) -> Named:
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


class Rows(Dataset[Any]):
    """Items by name, as data sets of Hugging Face give them; ``cut`` makes them of different lengths."""

    def __init__(self, batch: Named, *, cut: bool = False) -> None:
        self.batch, self.cut = batch, cut

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {name: tensor[index] for name, tensor in self.batch.items()}
        ids = row["input_ids"][: 4 + index % 3] if self.cut else row["input_ids"]
        return {"input_ids": ids, "label": int(row["labels"])} if self.cut else row


def padded(rows: list[dict[str, Any]]) -> UserDict[str, Tensor]:
    """What a collator of Hugging Face makes: a mapping that is no dict, as long as the longest row."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
    for place, row in enumerate(rows):
        ids[place, : len(row["input_ids"])], mask[place, : len(row["input_ids"])] = row["input_ids"], 1
    return UserDict(input_ids=ids, attention_mask=mask, labels=torch.tensor([row["label"] for row in rows]))


LONG = LPSConfig(alpha=0.3, beta=0.8, epochs=(3, 5, 3), batch_size=16, lr=1e-2)


def token_sources() -> dict[str, tuple[Any, dict[str, Any]]]:
    batch = tokens(1)
    ids, mask, labels = batch.values()
    return {
        "arrays by name": (batch, {}),
        "a pair with a mapping": ((inputs_in(batch), labels), {}),
        "numpy": (({"input_ids": ids.numpy(), "attention_mask": mask.numpy().astype(np.int32)}, labels.numpy()), {}),
        "a tuple": (((ids, mask), labels), {}),
        "rows": (Rows(batch), {}),
        "rows in workers": (Rows(batch), {"num_workers": 2}),
        "rows of several lengths": (Rows(batch, cut=True), {"collate_fn": padded}),
        "a loader": (DataLoader(Rows(batch, cut=True), 16, collate_fn=padded), {}),
        "batches": ([({"input_ids": ids[i : i + 16]}, labels[i : i + 16]) for i in range(0, 96, 16)], {}),
    }


@pytest.mark.parametrize("kind", token_sources())
def test_tokens_from_every_kind_of_source(kind: str, tmp_path: Path) -> None:
    source, loader = token_sources()[kind]
    net, others = text_net(), tokens(2)
    net.learn(Task("words", 3, train=source, loader=loader), LONG)
    net.learn(Task("more", 3, train=tokens(3)), LONG)
    asked: Any = inputs_in(others)
    if kind == "a tuple":
        asked = tuple(asked.values())
    elif kind == "batches":
        del asked["attention_mask"]
    with torch.no_grad():
        answers = net.eval()(asked, task=1)
        assert float((answers.argmax(1) == others["labels"]).float().mean()) > 0.9
        mixed = net(asked, task=[1, 2] * 48)
        torch.testing.assert_close(mixed[::2], answers[::2])
        for portable in (False, True):
            small = net.extract(1, portable=portable)
            torch.testing.assert_close(small(asked), answers)
    net.save(tmp_path / "model.lps")
    loaded = load(tmp_path / "model.lps", Text())
    assert torch.equal(loaded(asked, task=1), answers)
    assert loaded.metadata == net.metadata
    assert [learnt.digest for learnt in loaded.learnt] == [net.digest(1), net.digest(2)]


def test_the_kind_of_inputs_is_recorded_per_task() -> None:
    net = text_net()
    net.learn(Task("cut", 3, train=Rows(tokens(1), cut=True), loader={"collate_fn": padded}), QUICK)
    net.learn(Task("ids alone", 3, train=(tokens(2)["input_ids"].int(), tokens(2)["labels"])), QUICK)
    first, second = (net.metadata.signature(task, "float32") for task in (1, 2))
    assert first is not None
    assert second is not None
    assert [str(each) for each in first] == ["input_ids int64 [any]", "attention_mask int64 [any]"]
    assert ([each.shape for each in first], first[0].high, first[1].high) == ([[6], [6]], 44, 1)
    assert [str(each) for each in second] == ["int32 [7]"]
    assert net.metadata.input_shape is None
    assert net.metadata.of_task(2).input_shape == [7]


def test_plain_tasks_have_a_shape_alone() -> None:
    net = toy_net()
    for number in (1, 2):
        net.learn(toy_task(number), QUICK)
    assert net.metadata.inputs is None
    assert net.metadata.input_shape == [12]


def test_backbones_that_return_objects() -> None:
    net = text_net(as_object=True)
    net.learn(Task("words", 3, train=tokens(1)), LONG)
    batch = tokens(2)
    assert net.accuracy(1, batch) > 0.9
    torch.testing.assert_close(net.extract(1)(inputs_in(batch)), net.eval()(inputs_in(batch), task=1))

    class PerToken(Text):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
            output = Output(super().forward(input_ids, attention_mask))
            del output.pooler_output
            return output

    with pytest.raises(
        ConfigError, match=r"got Output with last_hidden_state \[16, 1, 24\], which is a vector per token"
    ):
        Lifelong(PerToken(), 24).learn(Task("words", 3, train=tokens(1)), QUICK)


class Stops(Listener):
    def __init__(self, checkpoint: Checkpoint, at: int) -> None:
        self.checkpoint, self.at, self.steps = checkpoint, at, 0

    def step(self, phase: str, examples: int) -> None:
        self.steps += 1
        self.checkpoint.stop = self.steps == self.at


class OwnOrder:
    """Batches without a length, from the beginning every time they are asked for."""

    def __iter__(self) -> Iterator[Any]:
        plain = toy_task(1).train
        return (plain.batch(torch.arange(start, start + 20)) for start in range(0, 160, 20))


class Examples(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        plain = toy_task(1).train
        return (plain[index] for index in range(161 - 64))


def plain_sources(folder: Path) -> dict[str, Callable[[], Any]]:
    plain = toy_task(1).train
    np.save(folder / "x.npy", plain.inputs.numpy())

    def mapped() -> tuple[Any, Any]:
        return np.load(folder / "x.npy", mmap_mode="r"), plain.labels.numpy().astype(np.int32)

    return {
        "arrays": lambda: plain,
        "a pair": lambda: (plain.inputs, plain.labels),
        "memmap": mapped,
        "data set": lambda: TensorDataset(plain.inputs, plain.labels),
        "own order": OwnOrder,
        "examples": Examples,
    }


def test_the_same_data_in_another_form_give_the_same_network_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    digests = {}
    for kind, source in plain_sources(tmp_path).items():
        samplers = [WeightedRandomSampler([1.0, 2.0] * 80, 64)] if kind == "data set" else []
        for drawn in (None, *samplers):
            task = Task("clouds", 3, train=source(), sampler=drawn)
            whole, parts = toy_net(), toy_net()
            whole.learn(task, QUICK)
            checkpoint = Checkpoint(tmp_path / f"{kind}-{drawn is None}")
            for at in (2, 5):
                with pytest.raises(StoppedError):
                    parts.learn(task, QUICK, checkpoint=checkpoint, listener=Stops(checkpoint, at))
                checkpoint.stop = False
            parts.learn(task, QUICK, checkpoint=checkpoint)
            assert parts.digest(1) == whole.digest(1), kind
            digests[kind, drawn is None] = whole.digest(1)
    same = {digests[kind, True] for kind in ("arrays", "a pair", "memmap", "data set")}
    assert len(same) == 1
    assert digests["data set", False] not in same


def test_a_trial_draws_no_number_that_learning_would() -> None:
    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self.inner = toy_task(1).train

        def __len__(self) -> int:
            return 160

        def __getitem__(self, index: int) -> Any:
            noise = torch.rand(()) + np.random.rand() + random.random()
            return self.inner[index][0] + 0.0 * noise, self.inner[index][1]

    net = toy_net()
    np.random.seed(7)
    random.seed(7)
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match="head: expected an"):
        net.learn(Task("noisy", 3, train=Noisy(), head=lambda *_: 3), QUICK)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
    after = np.random.rand(), random.random()
    np.random.seed(7)
    random.seed(7)
    assert after == (np.random.rand(), random.random())


def pictures() -> list[Any]:
    return [(Image.new("RGB", (8, 8)), 0), (Image.new("RGB", (8, 8)), 1)]


X, Y = torch.zeros(40, 12), torch.arange(40) % 3

REFUSED: dict[str, tuple[Any, str]] = {
    "labels out of range": ((X, Y + 1), r"labels: expected 0 to 2 \(a head of 3 classes\), got 3"),
    "labels that are floats": (
        TensorDataset(X, Y.float()),
        r"labels: expected a class number per example, got float32 \[16\]; make them whole numbers",
    ),
    "labels in columns": (TensorDataset(X, Y[:, None]), r"labels: expected a class number .*, got int64 \[16, 1\]"),
    "fewer labels": ((X, Y[:30]), r"labels: expected one for each of the 40 inputs, got shape \[30\]"),
    "fewer in a batch": ([(X, Y), (X, Y[:30])], r"inputs: expected as many examples as labels.*\[40, 12\].*\[30\]"),
    "no examples": ((X[:0], Y[:0]), "expected at least one example, got Arrays of length 0"),
    "NaN": ((torch.where(torch.arange(40)[:, None] == 7, torch.nan, X), Y), "inputs: example 7 has NaN in it"),
    "another dtype": (
        (X.double(), Y),
        r"the network cannot read a batch of float64 \[12\]: .*; the network's weights are float32: convert the inputs",
    ),
    "another shape": ((X[:, :7], Y), r"the network cannot read a batch of float32 \[7\]: mat1 and mat2 shapes"),
    "no pairs": (
        TensorDataset(X),
        r"expected \(inputs, labels\), or a mapping with labels, got a list of 1 \(Tensor\)",
    ),
    "triples": (
        TensorDataset(X, X, Y),
        r".*, got a list of 3 \(Tensor\); if the last are the labels, give \(\(a, b\), lab",
    ),
    "no labels by name": ([{"input": 1.0}] * 3, ".*, got a mapping of input; name them labels"),
    "inputs alone": (X, r"expected examples with their labels, got Tensor; pass \(inputs, labels\)"),
    "pictures": (
        pictures(),
        r"expected examples that fit into one batch, got <class 'PIL\.Image\.Image'>; make tensors",
    ),
    "pictures and labels": ((pictures(), Y[:2]), r"inputs: expected a tensor or an array of numbers, got a list of 2"),
    "several lengths": (
        [(torch.zeros(3 + i % 2), 0) for i in range(8)],
        r"expected examples that fit into one batch, got \[3\] at entry 0 and \[4\] at entry 1; make tensors",
    ),
    "labels as text": ((X, ["a"] * 40), "labels: expected a tensor or an array of numbers, got list"),
    "a generator": (((X, Y) for _ in range(3)), ".*, got a generator, which is empty after one; pass"),
    "a number": (3, r"expected a data set with a length, \(inputs, labels\) or an iterable of batches, got int"),
    "nothing": (None, r"expected a data set with a length, \(inputs, labels\) or an iterable of batches, got NoneType"),
    "text": (
        (np.array([["a"], ["b"]]), np.array([0, 1])),
        "inputs: expected a tensor or an array of numbers",
    ),
    "other byte order": ((X.numpy().astype(">f4"), Y), r"inputs: expected a tensor .*, got ndarray >f4 \[40, 12\]"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_learnt_is_refused_in_one_sentence_and_leaves_no_trace(kind: str) -> None:
    data, words = REFUSED[kind]
    net = toy_net()
    net.learn(toy_task(1), QUICK)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(DataError, match=f"task mine: train: (Arrays: )?{words}") as refused:
        net.learn(Task("mine", 3, train=data), QUICK)
    assert "\n" not in str(refused.value)
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_parts_that_differ_from_the_training_examples_are_refused() -> None:
    net = toy_net()
    words = r"test: the network cannot read a batch of float32 \[13\]: .*; it does read those of train, float32 \[12\]"
    with pytest.raises(DataError, match=words):
        net.learn(Task("mine", 3, train=(X, Y), test=(torch.zeros(9, 13), Y[:9])), QUICK)
    with pytest.raises(DataError, match="task mine: validation: labels: expected 0 to 2"):
        net.learn(Task("mine", 3, train=(X, Y), validation=TensorDataset(X, Y + 3)), QUICK)
    changing = [({"a": X}, Y), ({"b": X}, Y)]
    with pytest.raises(DataError, match=r"batches of one structure, a float32 \[12\] without the batch, got b float32"):
        Lifelong(ByName(), 16).learn(Task("mine", 3, train=changing), QUICK)
    assert not net.learnt


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 16)

    def forward(self, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
        features: Tensor = self.inner(b if a is None else a)
        return features


def test_nan_in_a_later_batch_is_said_to_be_the_inputs() -> None:
    spoilt = X.clone()
    spoilt[30] = torch.nan
    with pytest.raises(DataError, match=r"task mine: train: inputs have NaN in them \(phase warm-up, epoch 1\); mend"):
        toy_net().learn(Task("mine", 3, train=TensorDataset(spoilt, Y)), QUICK)


def test_a_task_without_a_test_set_has_no_accuracy(tmp_path: Path) -> None:
    net, task = toy_net(), replace(toy_task(1), test=None)
    net.learn(task, QUICK)
    assert np.isnan(net.accuracy(1, task.test))
    net.save(tmp_path / "model.lps")
    assert load(tmp_path / "model.lps", toy_net().backbone).learnt == net.learnt


class Seen(Listener):
    def __init__(self) -> None:
        self.epochs: list[tuple[str, int]] = []
        self.stopped: list[tuple[str, int]] = []
        self.steps = self.announced = 0

    def start(self, task: int, name: str, steps: int) -> None:
        self.announced = steps

    def skipped(self, steps: int) -> None:
        self.announced -= steps

    def step(self, phase: str, examples: int) -> None:
        self.steps += 1

    def row(self, row: Any) -> None:
        if row.event in ("epoch", "stopped"):
            (self.epochs if row.event == "epoch" else self.stopped).append((row.phase, row.epoch))


EARLY = replace(QUICK, epochs=(10, 3, 10), patience=2)


def test_early_stopping_by_validation_examples_alone(tmp_path: Path) -> None:
    """A phase ends two epochs after its best one; a run that stops anywhere between ends with the same bits."""
    net, seen = toy_net(), Seen()
    net.learn(toy_task(1), EARLY, listener=seen)
    counts = {phase: sum(name == phase for name, _ in seen.epochs) for phase in ("warm-up", "admm", "final")}
    assert counts["admm"] == 3, "the solver's phase is never cut short"
    assert seen.stopped == [(phase, counts[phase]) for phase in ("warm-up", "final")]
    assert all(3 <= counts[phase] < 10 for phase in ("warm-up", "final"))
    assert seen.steps == seen.announced == 5 * sum(counts.values())
    other = toy_net()
    other.learn(replace(toy_task(1), test=None), EARLY)
    assert other.digest(1) == net.digest(1), "the test examples have no part in it"
    for at in (12, 5 * counts["warm-up"], seen.steps - 1):
        parts, checkpoint = toy_net(), Checkpoint(tmp_path / str(at))
        with pytest.raises(StoppedError):
            parts.learn(toy_task(1), EARLY, checkpoint=checkpoint, listener=Stops(checkpoint, at))
        parts.learn(toy_task(1), EARLY, checkpoint=Checkpoint(tmp_path / str(at)))
        assert parts.digest(1) == net.digest(1), at
    with pytest.raises(ConfigError, match="task clouds-1: patience: expected validation examples to see when to stop"):
        toy_net().learn(replace(toy_task(1), validation=None), EARLY)


class Measured(torch.optim.SGD):
    """Notes how long the gradient of every step is."""

    norms: list[float]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.norms.append(float(nn.utils.get_total_norm(gradients)))
        super().step()


def test_gradients_are_clipped() -> None:
    short = replace(QUICK, epochs=(2, 0, 1))
    longest = {}
    for clip in (None, 0.01):
        Measured.norms = []
        net = toy_net()
        net.learn(toy_task(1), replace(short, clip_norm=clip), optimizer=lambda some: Measured(some, lr=1e-3))
        assert len(Measured.norms) == 15
        longest[clip] = max(Measured.norms)
    assert longest[None] > 0.1
    assert longest[0.01] <= 0.01 * (1 + 1e-4)
    digests = []
    for bound in (None, 1e9, 0.01):
        net = toy_net()
        net.learn(toy_task(1), replace(QUICK, clip_norm=bound))
        digests.append(net.digest(1))
    assert digests[0] == digests[1] != digests[2]


def test_settings_that_a_method_cannot_use_are_refused_by_its_name() -> None:
    net = toy_net()
    for name, setting in (("si", {"clip_norm": 1.0}), ("joint", {"patience": 1})):
        with pytest.raises(ConfigError, match=rf"{next(iter(setting))}: {name} does not use it; leave it out"):
            METHODS[name](net, replace(QUICK, **setting))
    for name in ("gem", "dgr"):
        method = METHODS[name](Lifelong(Text(), 24, norms="frozen"), QUICK)
        with pytest.raises(ConfigError, match=rf"{name} expects inputs in one tensor, got input_ids int64 \[7\]"):
            method.learn(Task("words", 3, train=tokens(1)))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("gem", "dgr", "hat", "clnp", "joint")])
def test_methods_learn_from_inputs_by_name(name: str) -> None:
    torch.manual_seed(0)
    kind = METHODS[name]
    net = Lifelong(Text(), 24, norms=kind.reads.norms)
    method = kind(net, replace(LONG, epochs=5, patience=3))
    for number in (1, 2):
        method.learn(Task(f"words {number}", 3, train=tokens(number), validation=tokens(9)))
    assert net.accuracy(2, tokens(9)) > 0.5


def test_epochs_in_all() -> None:
    assert [LPSConfig(epochs=count).epochs for count in (1, 3, 5, 10, 12)] == [
        (0, 1, 0),
        (1, 1, 1),
        (1, 3, 1),
        (2, 6, 2),
        (2, 8, 2),
    ]
    assert LPSConfig(epochs=(10, (1, 2, 3))).of_task(2).epochs == (1, 2, 3)
    assert LPSConfig(epochs=((1, 2, 3), 10)).of_task(5).epochs == (2, 6, 2)
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(ConfigError, match="epochs: expected"):
            LPSConfig(epochs=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip_norm": 0.0}, "clip_norm: expected a number above 0, got 0.0"),
        ({"patience": 0}, "patience: expected 1 to 2147483647, got 0"),
    ],
)
def test_settings_out_of_range(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(QUICK, **change)


def test_samplers_that_are_not_ours_to_repeat_are_refused() -> None:
    own = WeightedRandomSampler([1.0] * 40, 40, generator=torch.Generator())
    with pytest.raises(ConfigError, match="sampler: expected one without a generator of its own, whose state is not"):
        Task("mine", 3, train=(X, Y), sampler=own)
    with pytest.raises(ConfigError, match="sampler: expected a data set or arrays to draw from, got DataLoader"):
        Task("mine", 3, train=DataLoader(TensorDataset(X, Y)), sampler=WeightedRandomSampler([1.0] * 40, 40))
    with pytest.raises(ConfigError, match=r"loader: sampler is decided by learn.*; pass it to the task"):
        Task("mine", 3, train=(X, Y), loader={"sampler": own})


def test_a_large_array_is_not_copied() -> None:
    inputs = np.zeros((40, 12), np.float32)
    inputs.flags.writeable = False
    held = Arrays(inputs, Y).inputs
    assert held.data_ptr() == inputs.ctypes.data


def test_arrays_are_answered_as_tensors() -> None:
    net, task = toy_net(), toy_task(0)
    net.learn(task, QUICK, progress=False)
    net.learn(toy_task(1), QUICK, progress=False)
    inputs = task.test.inputs  # type: ignore[union-attr]
    for which in (1, [1, 2] * 30):
        assert torch.equal(net(inputs.numpy(), task=which), net(inputs, task=which))
        for wrong in (inputs.tolist(), None, {"x": 3}, (inputs, 3)):
            with pytest.raises(DataError, match=r"Lifelong: (inputs|x): expected a tensor or an array of numbers, got"):
                net(wrong, task=which)


class Fails(Dataset[tuple[Tensor, int]]):
    """Examples of which one cannot be read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 30:
            raise OSError("example 30 is gone")
        return torch.zeros(12), 0


def test_test_examples_that_fail_leave_the_network_as_it_was() -> None:
    net = toy_net()
    net.learn(toy_task(0), QUICK, progress=False)
    before, accuracy = net.digest(1), list(net.metadata.accuracy or [])
    with pytest.raises(OSError, match="example 30 is gone"):
        net.learn(replace(toy_task(1), test=Fails()), QUICK, progress=False)
    assert (len(net.learnt), net.digest(1), net.metadata.accuracy) == (1, before, accuracy)
