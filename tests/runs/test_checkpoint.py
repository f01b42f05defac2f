"""The state of a task being learnt: it is restored exactly, resumed, and refused if damaged or of another task."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import Arrays, Lifelong, Listener, LPSConfig, Task
from lps.errors import ConfigError, FileFormatError, LPSError, StoppedError
from lps.runs import checkpoint as checkpoint_module
from lps.runs.checkpoint import Checkpoint, decode, encode
from lps.runs.events import Resumed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.toy import QUICK, toy_convnet, toy_mlp, toy_net, toy_task


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


class StopAt(Listener):
    """Asks to stop after a number of steps; records where learning resumed."""

    def __init__(self, checkpoint: Checkpoint, steps: int) -> None:
        self.checkpoint, self.left, self.places = checkpoint, steps, list[Resumed]()

    def step(self, phase: str, examples: int) -> None:
        self.left -= 1
        self.checkpoint.stop = self.left <= 0

    def resumed(self, place: Resumed) -> None:
        self.places.append(place)


def learn_in_pieces(
    net: Lifelong, task: Task, config: LPSConfig, directory: Path, piece: int, **options: Any
) -> list[Resumed]:
    """Learn a task in pieces: stop after a number of steps, then resume on a network as it was before the task."""
    places: list[Resumed] = []
    for _ in range(100):
        checkpoint = Checkpoint(directory)
        listener = StopAt(checkpoint, piece)
        torch.manual_seed(random.randrange(2**30))  # the state of the caller's generator must not matter
        try:
            net.learn(task, config, listener=listener, checkpoint=checkpoint, **options)
        except StoppedError:
            assert len(net.learnt) == len(net.heads) == net.active
            places += listener.places
        else:
            checkpoint.clear()
            return places + listener.places
    raise AssertionError("it never ends")


SOLVERS: dict[str, dict[str, Any]] = {
    "gradient": {},
    "proximal": {"pull": "proximal"},
    "straight-through": {"solver": "straight-through", "beta": {"0.*": "auto", "*": 0.6}},
}


@pytest.mark.parametrize(
    ("piece", "norms", "solver"),
    [
        *((piece, norms, "gradient") for piece in (1, 3, 7) for norms in ("frozen", "per-task")),
        *((piece, "frozen", solver) for piece in (1, 7) for solver in ("proximal", "straight-through")),
    ],
)
@pytest.mark.parametrize("optimizer", [None, sgd], ids=["adam", "sgd"])
def test_a_task_learnt_in_pieces_is_the_same_to_the_bit(
    tmp_path: Path, piece: int, norms: str, solver: str, optimizer: Callable[..., Any] | None
) -> None:
    """25 steps in three phases, with dropout, batch norm and projections; pieces end before and after all of them."""
    nets = []
    for pieces in (False, True):
        torch.manual_seed(0)
        net = Lifelong(toy_mlp(dropout=0.3), 16, norms=norms)
        for number in (1, 2, 3):
            task, config = toy_task(number), replace(QUICK, schedule="cosine", **SOLVERS[solver])
            if pieces:
                learn_in_pieces(net, task, config, tmp_path / "state", piece, optimizer=optimizer)
            else:
                net.learn(task, config, optimizer=optimizer)
        nets.append(net)
    whole, pieced = nets
    assert [task.digest for task in whole.learnt] == [task.digest for task in pieced.learnt]
    whole.save(tmp_path / "whole.lps")
    pieced.save(tmp_path / "pieced.lps")
    assert (tmp_path / "whole.lps").read_bytes() == (tmp_path / "pieced.lps").read_bytes()


@pytest.mark.parametrize("modes", [("column", "structured"), ("filter", "elementwise"), ("channel", "elementwise")])
def test_structured_tasks_in_bf16_with_channels_last_and_augmentation(tmp_path: Path, modes: tuple[str, str]) -> None:
    digests = []
    config = replace(QUICK, precision="bf16", channels_last=True, beta={"0.*": 1, "*": 0.5})
    for pieces in (False, True):
        torch.manual_seed(0)
        net = Lifelong(toy_convnet(), 16, pattern=modes[0], sharing=modes[1])
        for number in (1, 2):
            task = replace(toy_task(number, (3, 8, 8)), augment=lambda x: x + 0.1 * torch.randn_like(x))
            if pieces:
                learn_in_pieces(net, task, config, tmp_path, 4)
            else:
                net.learn(task, config)
        digests.append([task.digest for task in net.learnt])
    assert digests[0] == digests[1]


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Examples with noise from every generator that a data set may use."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.arrays[index]
        draws = torch.rand(()) + np.random.rand() + random.random()
        return x + 0.1 * draws, y


@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_go_on_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    """With workers every generator is seeded per example; without workers torch's generator is part of the state."""
    plain = toy_task(1)
    assert isinstance(plain.train, Arrays)
    train: Dataset[Any] = Noisy(plain.train) if workers else plain.train
    digests, places = [], []
    for pieces in (False, True):
        net = toy_net()
        task = replace(plain, train=train, loader={"num_workers": workers, "pin_memory": False})
        if pieces:
            places = learn_in_pieces(net, task, QUICK, tmp_path, 8)
        else:
            net.learn(task, QUICK)
        digests.append(net.digest(1))
    assert digests[0] == digests[1]
    assert [place.steps for place in places] == [8, 16, 24]
    assert not any(place.whole_epoch for place in places)


def test_ready_made_batches_go_on_at_the_start_of_their_epoch_and_say_so(tmp_path: Path) -> None:
    plain = toy_task(1)
    assert isinstance(plain.train, Arrays)
    loader: DataLoader[Any] = DataLoader(plain.train, batch_size=32)
    digests = []
    for pieces in (False, True):
        net, task = toy_net(), replace(plain, train=loader)
        if pieces:
            places = learn_in_pieces(net, task, QUICK, tmp_path, 7)
        else:
            net.learn(task, QUICK)
        digests.append(net.digest(1))
    assert digests[0] == digests[1]
    # Five batches per epoch: stopped after 7, 7 more from step 6 on, and so on.
    assert [(place.steps, place.whole_epoch) for place in places] == [(5, True), (10, True), (15, True), (20, True)]


class Moving(nn.Module):
    """Scales by a buffer that it changes, or replaces, while it trains."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale * 1.01
        return x * self.scale


@pytest.mark.parametrize("optimizer", [None, sgd], ids=["adam", "sgd"])
def test_buffers_of_a_users_own_module_go_on(tmp_path: Path, optimizer: Callable[..., Any] | None) -> None:
    digests = []
    for pieces in (False, True):
        torch.manual_seed(0)
        net = Lifelong(nn.Sequential(*toy_mlp(), Moving()), 16)
        for number in (1, 2):
            if pieces:
                learn_in_pieces(net, toy_task(number), QUICK, tmp_path, 4, optimizer=optimizer)
            else:
                net.learn(toy_task(number), QUICK, optimizer=optimizer)
        digests.append([task.digest for task in net.learnt])
    assert digests[0] == digests[1]


def test_a_stop_at_any_moment_is_saved(tmp_path: Path) -> None:
    """A signal may come right after it was looked whether it is time to save."""

    class Signalled(Checkpoint):
        def due(self) -> bool:
            due = super().due()
            self.stop = True
            return due

    checkpoint = Signalled(tmp_path)
    with pytest.raises(StoppedError):
        toy_net().learn(toy_task(1), QUICK, checkpoint=checkpoint)
    assert checkpoint.exists()


def test_the_report_covers_all_pieces(tmp_path: Path) -> None:
    whole, pieced = toy_net(), toy_net()
    expected = whole.learn(toy_task(1), QUICK)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(StoppedError, match="task 1: stopped after 12 steps"):
        pieced.learn(toy_task(1), QUICK, listener=StopAt(checkpoint, 12), checkpoint=checkpoint)
    checkpoint.stop = False
    report = pieced.learn(toy_task(1), QUICK, checkpoint=checkpoint)
    assert str(report.residuals) == str(expected.residuals)
    assert report.accuracy_after_projection == expected.accuracy_after_projection
    assert list(report.seconds) == ["warm-up", "admm", "final"]


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    net, checkpoint = toy_net(), Checkpoint(tmp_path)
    with pytest.raises(StoppedError):
        net.learn(toy_task(1), QUICK, listener=StopAt(checkpoint, 7), checkpoint=checkpoint)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    checkpoint.stop = False
    for task, config, words in (
        (toy_task(1), replace(QUICK, lr=0.5), "lr 0.01, got 0.5"),
        (toy_task(2), QUICK, "name clouds-1, got clouds-2"),
        (replace(toy_task(1), train=toy_task(1).test), QUICK, "examples 160, got 60"),
        (replace(toy_task(1), head=lambda *_: nn.Linear(16, 3, bias=False)), QUICK, "head .*, got .*'weight'"),
    ):
        with pytest.raises(ConfigError, match=f"resume: the state is of a task with {words}"):
            net.learn(task, config, checkpoint=checkpoint)
        assert not net.learnt
    other = Lifelong(toy_mlp(), 16, pattern="column")
    with pytest.raises(ConfigError, match=r"first weights of spread .*, got "):  # later tasks depend on it
        other.learn(toy_task(1), QUICK, checkpoint=checkpoint)
    column = toy_net(pattern="column")
    with pytest.raises(ConfigError, match="pattern irregular, got column"):
        column.learn(toy_task(1), QUICK, checkpoint=checkpoint)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


STATE: dict[str, Any] = {
    "number": 3,
    "nothing": None,
    "yes": True,
    "share": 0.1,
    "nan": float("inf"),
    "list": [1, [2.5, "x"], ()],
    "tuple": (0.9, 0.999),
    "by number": {0: {"step": torch.tensor(4.0)}, 1: {}},
    "tensors": [torch.arange(6).view(2, 3).t(), torch.zeros(0, 3), torch.tensor(1, dtype=torch.bfloat16)],
    "bytes": torch.get_rng_state(),
}


def test_a_state_comes_back_as_it_was() -> None:
    assert same(decode(encode(STATE)), STATE)
    shared = torch.ones(3)
    assert same(decode(encode({"a": shared, "b": shared[1:]})), {"a": shared, "b": shared[1:]})
    with pytest.raises(ConfigError, match=r"checkpoint: state\.x\[1\]: expected numbers, texts, .*, got object"):
        encode({"x": [1, object()]})


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    content = encode(STATE)
    generator = random.Random(0)
    for place in [*range(8), *(generator.randrange(len(content)) for _ in range(300))]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << generator.randrange(8)
        with pytest.raises(FileFormatError):
            decode(bytes(damaged))
    for length in (0, 4, 8, len(content) // 2, len(content) - 1):
        with pytest.raises(FileFormatError):
            decode(content[:length])


def test_the_state_before_is_kept_until_the_next_is_known_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save({"number": 1})
    checkpoint.save({"number": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["state-2.safetensors"]

    def half(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])  # like a disk that loses writes

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, "write_atomically", half)
        with pytest.raises(LPSError, match="does not read back as written"):
            checkpoint.save({"number": 3})
    assert Checkpoint(tmp_path).load() == {"number": 2}
    checkpoint.save({"number": 4})
    assert Checkpoint(tmp_path).load() == {"number": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["state-4.safetensors"]
    checkpoint.clear()
    assert not tmp_path.exists()
    assert checkpoint.load() is None


def test_a_damaged_state_alone_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state-1.safetensors").write_bytes(b"nonsense")
    (tmp_path / "state-x.safetensors").write_bytes(b"not ours")
    with pytest.raises(FileFormatError, match=r"state-1\.safetensors: is not a whole .*; delete it to learn"):
        Checkpoint(tmp_path).load()
    with pytest.raises(LPSError, match=r"state-1\.safetensors: cannot be made: File exists; choose another"):
        Checkpoint(tmp_path / "state-1.safetensors").save({})
    with pytest.raises(ConfigError, match="every: expected seconds above 0, got 0"):
        Checkpoint(tmp_path, every=0)


def test_it_saves_at_intervals_and_at_the_end_of_each_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = Checkpoint.save

    def counted(self: Checkpoint, state: dict[str, Any]) -> None:
        saved.append(state["position"]["total"])
        save(self, state)

    monkeypatch.setattr(Checkpoint, "save", counted)
    toy_net().learn(toy_task(1), QUICK, checkpoint=Checkpoint(tmp_path, every=3600))
    assert saved == [5, 20, 25]
    saved.clear()
    checkpoint = Checkpoint(tmp_path / "often", every=1e-9)
    toy_net().learn(toy_task(1), QUICK, checkpoint=checkpoint)
    assert saved == sorted([*range(1, 26), 5, 20, 25])
