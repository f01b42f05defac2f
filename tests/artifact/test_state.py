"""The state_dict of a network goes into a freshly made one, or is refused and changes nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong, Listener, Task
from lps.errors import ConfigError
from lps.metadata import Source
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_mlp, toy_task

CONFIG = replace(QUICK, epochs=(1, 1, 1))
TASKS = [replace(toy_task(0), class_names=("a", "b", "c")), toy_task(1, classes=4), toy_task(2)]
ENTRY = "_extra_state"


def convnet() -> Lifelong:
    return Lifelong(toy_convnet(), 16, norms="frozen")


def made(*, norms: str = "frozen", **settings: Any) -> Lifelong:
    return Lifelong(toy_mlp(), 16, norms=norms, **settings)


def learnt(tasks: list[Task], **settings: Any) -> Lifelong:
    torch.manual_seed(0)
    net = made(**settings)
    for task in tasks:
        net.learn(task, CONFIG)
    net.metadata.stream, net.metadata.user = Source("x", 1, 3), {"note": "mine"}
    return net


def saved_and_loaded(state: dict[str, Any], path: Path) -> Any:
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def through_safetensors(state: dict[str, Any], path: Path) -> dict[str, Tensor]:
    save_file(state, path)
    return load_file(path)


@pytest.mark.parametrize("norms", ["frozen", "per-task"])
@pytest.mark.parametrize("kept", [saved_and_loaded, through_safetensors])
def test_a_fresh_network_takes_over_everything_and_goes_on(
    tmp_path: Path, norms: str, kept: Callable[[dict[str, Any], Path], Any]
) -> None:
    net = learnt(TASKS[:2], norms=norms, pattern="column", sharing="structured")
    state = kept(net.state_dict(), tmp_path / "state")
    twin = made(norms=norms).eval()
    assert str(twin.load_state_dict(state)) == "<All keys matched successfully>"
    for name in ("learnt", "metadata", "pattern", "sharing"):
        assert getattr(twin, name) == getattr(net, name), name
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert not any(module.training for module in twin.modules())
    assert all(map(torch.equal, answers(net, TASKS[:2]), answers(twin, TASKS[:2])))
    for network in (net, twin):
        network.learn(TASKS[2], CONFIG)
    assert net.learnt == twin.learnt
    assert [twin.digest(number) for number in (1, 2, 3)] == [task.digest for task in net.learnt]


def test_without_tasks_the_first_weights_go_over() -> None:
    torch.manual_seed(0)
    net, twin = made(), made()
    twin.load_state_dict(net.state_dict())
    assert all(parameter.requires_grad for parameter in twin.parameters())
    for network in (net, twin):
        network.learn(TASKS[0], CONFIG)
    assert net.learnt == twin.learnt


def test_a_network_with_tasks_becomes_the_other() -> None:
    net = learnt(TASKS[:1])
    state, before = copy.deepcopy(net.state_dict()), answers(net, TASKS[:1])
    net.learn(TASKS[1], CONFIG)
    net.load_state_dict(state)
    assert (len(net.learnt), len(net.heads), len(net.private)) == (1, 1, 1)
    assert torch.equal(answers(net, TASKS[:1])[0], before[0])
    net.learn(TASKS[1], CONFIG)


def test_as_a_part_of_another_module() -> None:
    net, twin = learnt(TASKS[:2]), made()
    nn.ModuleDict({"a": nn.Linear(2, 2), "b": twin}).load_state_dict(
        nn.ModuleDict({"a": nn.Linear(2, 2), "b": net}).state_dict()
    )
    assert all(map(torch.equal, answers(net, TASKS[:2]), answers(twin, TASKS[:2])))


def test_copies_and_other_dtypes() -> None:
    net = learnt(TASKS[:2])
    twin = made()
    twin.load_state_dict(copy.deepcopy(net).state_dict())
    assert twin.learnt == net.learnt
    wide = copy.deepcopy(net).double()
    inputs = inputs_of(TASKS[1]).double()
    torch.testing.assert_close(wide.eval()(inputs, task=2).float(), answers(net, TASKS[:2])[1])
    with pytest.raises(ConfigError, match=r"task 1 \(clouds-0\) does not have the digest"):
        made().double().load_state_dict(wide.state_dict())


def test_heads_of_other_kinds() -> None:
    def head(features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes))

    tasks = [TASKS[0], replace(TASKS[1], head=head)]
    net, twin = learnt(tasks), made()
    with pytest.raises(ConfigError, match=r"task 2 \(clouds-1\): head: it is not a Linear layer.*into net.heads first"):
        twin.load_state_dict(net.state_dict())
    twin.heads.extend([nn.Identity(), head(16, 4)])  # the first one is a Linear layer: it is made anew
    twin.load_state_dict(net.state_dict())
    assert all(map(torch.equal, answers(net, tasks), answers(twin, tasks)))
    net.load_state_dict(copy.deepcopy(net.state_dict()))
    assert all(map(torch.equal, answers(net, tasks), answers(twin, tasks)))


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    """A change of the description."""

    def edit(state: dict[str, Any]) -> None:
        manifest = json.loads(bytes(state[ENTRY].tolist()))
        change(manifest)
        state[ENTRY] = torch.tensor(list(json.dumps(manifest).encode()), dtype=torch.uint8)

    return edit


def nothing(_: dict[str, Any]) -> None:
    pass


REFUSALS: list[tuple[Callable[[], Lifelong], Callable[[dict[str, Any]], object], str]] = [
    (made, lambda s: s.pop(ENTRY), "expected the entry _extra_state, which describes the tasks, got none"),
    (made, lambda s: s.update({ENTRY: torch.zeros(3)}), "expected the entry _extra_state, which describes the tasks"),
    (made, lambda s: s.update({ENTRY: s[ENTRY][:-1]}), "the manifest is not JSON: "),
    (made, edited(lambda m: m.update(version=4)), "format version 4 was written by a newer version"),
    (made, edited(lambda m: m.update(metadata={"accuracy": 1})), "metadata: accuracy: expected array | null, got int"),
    (made, edited(lambda m: m["parts"][0].update(pattern="x")), "Lifelong: pattern: expected one of"),
    (made, edited(lambda m: m["tasks"].pop()), "expected no entry partitions.0.mask2, got uint8 [36]"),
    (made, lambda s: s.pop("backbone.0.bias"), "expected entry backbone.0.bias to be float32 [24], got none"),
    (made, lambda s: s.update(x=torch.zeros(1)), "expected no entry x, got float32 [1]"),
    (made, lambda s: s.update(x=1), "expected no entry x, got int"),
    (made, lambda s: s.update({"heads.0.bias": torch.zeros(4)}), "expected entry heads.0.bias to be float32 [3], got"),
    (made, lambda s: s["partitions.0.w_bar"].add_(1), "task 1 (clouds-0) does not have the digest"),
    (lambda: Lifelong(toy_mlp(), 15), nothing, "features: the state has 16, this network 15; make it with the same"),
    (lambda: made(norms="per-task"), nothing, "norms: the state has frozen, this network per-task; make it with the "),
    (lambda: made(exclude=["0.*"]), nothing, "exclude: the state has [], this network ['0.*']; make it with the same"),
    (convnet, nothing, "expected layer 0.weight to be float32 [24, 12], got float32 [8, 3"),
    (lambda: made().double(), nothing, "expected layer 0.weight to be float32 [24, 12], got float64 [24, 12]"),
]


@pytest.mark.parametrize(("make", "edit", "message"), REFUSALS, ids=[message[:50] for _, _, message in REFUSALS])
@pytest.mark.parametrize("strict", [True, False])
def test_what_does_not_fit_is_refused_and_changes_nothing(
    make: Callable[[], Lifelong], edit: Callable[[dict[str, Any]], object], message: str, strict: bool
) -> None:
    state = copy.deepcopy(learnt(TASKS[:2]).state_dict())
    edit(state)
    net = make()
    dtype = next(net.parameters()).dtype
    own = toy_task(5, (3, 8, 8) if net.backbone[0].weight.dim() == 4 else (12,), dtype=dtype)  # type: ignore[index]
    if net.features == 16:
        net.learn(own, CONFIG)
    before, active = copy.deepcopy(net.state_dict()), net.active
    with pytest.raises(ConfigError) as refusal:
        net.load_state_dict(state, strict=strict)
    assert str(refusal.value).startswith(f"Lifelong: load_state_dict: {message}")
    assert "\n" not in str(refusal.value)
    assert net.active == active
    assert before.keys() == net.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_not_while_a_task_is_learnt() -> None:
    net = learnt(TASKS[:1])
    state = copy.deepcopy(net.state_dict())

    class Loads(Listener):
        def step(self, phase: str, examples: int) -> None:
            net.load_state_dict(state)

    with pytest.raises(ConfigError, match="load_state_dict: task 2 is being learnt; wait until it is done"):
        net.learn(TASKS[1], CONFIG, listener=Loads())
    assert net.digest(1) == net.learnt[0].digest


def test_tensors_are_copied_and_never_taken_over() -> None:
    with pytest.raises(ConfigError, match="load_state_dict: expected assign=False, got True"):
        made().load_state_dict(learnt(TASKS[:1]).state_dict(), assign=True)


def test_the_state_of_a_task_in_learning_is_refused() -> None:
    net = learnt(TASKS[:1])
    states: list[dict[str, Any]] = []

    class Keeps(Listener):
        def step(self, phase: str, examples: int) -> None:
            if not states:
                states.append(copy.deepcopy(net.state_dict()))

    net.learn(TASKS[1], CONFIG, listener=Keeps())
    with pytest.raises(ConfigError, match=r"expected no entry heads.1.weight, got float32 \[4, 16\]"):
        made().load_state_dict(states[0])
