"""Which task a number or a name means, and which names there may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lps.models
import pytest
import torch
from lps import Lifelong
from lps.errors import ConfigError
from lps.names import number_of
from lps.runs.metrics import capacity
from lps.task import Learnt

from tests.helpers import same_bits
from tests.toy import QUICK, answers, inputs_of, toy_net, toy_task

TASKS = [replace(toy_task(seed), name=name) for seed, name in enumerate(("faces", "2nd", "birds"))]
INPUTS = inputs_of(TASKS[0])


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = toy_net()
    for task in TASKS:
        net.learn(task, QUICK)
    path = tmp_path_factory.mktemp("names") / "model.lps"
    net.save(path)
    torch.save(net.backbone, path.with_suffix(".pt"))
    return path


@pytest.fixture
def net(learnt: Path) -> Lifelong:
    backbone = torch.load(learnt.with_suffix(".pt"), weights_only=False)
    return lps.load(learnt, backbone)


def test_names_go_wherever_numbers_go(net: Lifelong, tmp_path: Path) -> None:
    with torch.no_grad():
        for number, task in enumerate(TASKS, 1):
            expected = net(INPUTS, task=number)
            assert same_bits(net(INPUTS, task=task.name), expected)
            assert same_bits(net.extract(task.name)(INPUTS), net.extract(number)(INPUTS))
            assert net.accuracy(task.name, task.test) == net.accuracy(number, task.test)
            assert net.digest(task.name) == net.digest(number)
        names: list[int | str] = ["birds", 1, "2nd"] * 20
        numbers = [3, 1, 2] * 20
        assert same_bits(net(INPUTS, task=names), net(INPUTS, task=numbers))
        net.activate("birds")
        assert net.active == 3
    net.export("birds", tmp_path / "birds.lps")
    assert [task.name for task in lps.load(tmp_path / "birds.lps").learnt] == ["birds"]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("dogs", r"expected 1 to 3 or a name \(faces, 2nd, birds\), got dogs"),
        ("", r"expected 1 to 3 or a name .*, got $"),
        ("a\nb", r"got 'a\\nb'"),
        ("4", "expected 1 to 3, got 4"),
        ("0", "expected 1 to 3, got 0"),
        ("-1", "expected 1 to 3, got -1"),
        (10**30, "expected 1 to 3, got 1000"),
        (True, "expected a number or a name, got True"),
        (["faces"], "expected a whole number or a name for each of the 60 examples, got 1"),
        (["dogs"] * 60, "got dogs"),
        ([1.0] * 60, "got something else"),
    ],
)
def test_tasks_that_are_not_there(net: Lifelong, task: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        net(INPUTS, task=task)


def test_digits_are_a_number() -> None:
    def numbers(*names: str) -> list[Learnt]:
        return [Learnt(name, 2, "") for name in names]

    assert number_of(numbers("a", "b"), "2") == 2
    assert number_of(numbers("1", "2"), "2") == 2
    with pytest.raises(ConfigError, match=r"1 is a number and the name of task 2; rename that task"):
        number_of(numbers("0", "1"), "1")
    assert number_of(numbers("0", "1"), 1) == 1
    assert number_of(numbers("0", "1"), "2") == 2
    with pytest.raises(ConfigError, match="a is the name of tasks 1, 3; pass a number"):
        number_of(numbers("a", "b", "a"), "a")


def test_new_names_differ(net: Lifelong) -> None:
    before = [net.digest(number) for number in (1, 2, 3)]
    with pytest.raises(ConfigError, match="faces is the name of task 1 already; choose another"):
        net.learn(replace(toy_task(7), name="faces"), QUICK)
    with pytest.raises(ConfigError, match="faces is the name of task 1 already"):
        net.rename("birds", "faces")
    for name in ("", None, 3, "half a \udfff"):
        with pytest.raises(ConfigError, match="task: name: expected text that is not empty and is Unicode, got "):
            replace(toy_task(7), name=name)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="task: name: expected text"):
            net.rename(1, name)  # type: ignore[arg-type]
    for names in ((1, 2, 3), ("a", "b", "half a \udfff")):
        with pytest.raises(ConfigError, match="task clouds-7: class_names: expected Unicode text, got "):
            replace(toy_task(7), class_names=names)  # type: ignore[arg-type]
    net.rename("birds", "birds")
    net.rename(3, "geese")
    assert net.check_task("geese") == 3
    assert [net.digest(number) for number in (1, 2, 3)] == before


@pytest.mark.parametrize(
    ("pattern", "sharing"), [("irregular", "elementwise"), ("column", "structured"), ("filter", "elementwise")]
)
@pytest.mark.parametrize("norms", ["frozen", "per-task"])
def test_the_last_task_is_replaced(pattern: str, sharing: str, norms: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Lifelong(lps.models.mlp(12, (24, 16)), 16, pattern=pattern, sharing=sharing, norms=norms)
    for task in TASKS[:2]:
        net.learn(task, QUICK)
    before, owned = answers(net, TASKS[:2]), capacity(net)
    net.learn(TASKS[2], QUICK)
    whole = sum(partition.owned_by(3) for partition, _ in net.prunable())
    assert net.drop_last() == whole > 0
    assert capacity(net) == owned
    assert len(net.heads) == len(net.private) == 2
    assert all(same_bits(now, then) for now, then in zip(answers(net, TASKS[:2]), before, strict=True))
    net.save(tmp_path / "model.lps")
    net = lps.load(tmp_path / "model.lps")
    net.learn(TASKS[2], QUICK)
    assert all(same_bits(now, then) for now, then in zip(answers(net, TASKS[:2]), before, strict=True))
    again = sum(partition.owned_by(3) for partition, _ in net.prunable())
    assert abs(again - whole) <= 24 * len(net.partitions)  # a row or a column of each layer, by rounding
    assert net.accuracy("birds", TASKS[2].test) > 0.6  # chance is 1/3


def test_the_only_task_is_kept() -> None:
    net = toy_net()
    with pytest.raises(ConfigError, match="expected another task that is left"):
        net.drop_last()
    net.learn(TASKS[0], QUICK)
    with pytest.raises(ConfigError, match="expected another task that is left"):
        net.drop_last()
    assert net.check_task("faces") == 1
