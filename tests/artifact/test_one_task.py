"""One task as a network of its own."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import Lifelong, LPSConfig, load
from lps.artifact.one_task import one_task
from lps.errors import CapacityError, ConfigError
from lps.metadata import Metadata, Origin, Source
from lps.models import create

from lps_kernels import unpack_bits
from lps_kernels.owner import TASK_BITS
from tests.command import ENVIRONMENT
from tests.toy import QUICK, answers, inputs_of, toy_convnet, toy_net, toy_task

TASKS = [toy_task(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def net() -> Lifelong:
    """Three tasks, of which the later ones reuse; its dropout and batch norm must be at rest."""
    net = toy_net()
    for task in TASKS:
        net.learn(task, QUICK)
    net.metadata.stream, net.metadata.accuracy = Source("x", 0, 3), [0.9, 0.9, 0.9]
    net.metadata.user["note"] = ["mine"]
    return net.eval()


@pytest.mark.parametrize("task", [1, 2, 3])
def test_it_answers_bit_for_bit_and_has_the_same_digest(net: Lifelong, task: int) -> None:
    alone = one_task(net, task)
    assert alone.learnt == [net.learnt[task - 1]]
    assert alone.digest(1) == net.learnt[task - 1].digest
    assert not alone.training
    inputs = inputs_of(TASKS[task - 1])
    assert torch.equal(alone(inputs, task=1), net(inputs, task=task))


def test_it_owns_exactly_what_the_task_uses(net: Lifelong) -> None:
    alone = one_task(net, 3)
    for (old, _), (new, _) in zip(net.prunable(), alone.prunable(), strict=True):
        used = (old.owner & TASK_BITS == 3) | unpack_bits(old.mask(3), old.shape)
        assert torch.equal(new.owner, used.to(torch.uint8))
        assert torch.equal(new.w_bar, torch.where(used, old.w_bar, 0))
        assert 0 < new.spent == used.double().mean().item() < 1
        assert new.init_std == old.init_std


def test_the_network_it_was_taken_from_stays_as_it_was(net: Lifelong) -> None:
    net.activate(2)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    metadata = deepcopy(net.metadata)
    alone = one_task(net, 3)
    with torch.no_grad():
        for tensor in alone.state_dict().values():
            tensor.zero_()
    alone.metadata.user["note"].append("changed")
    assert net.active == 2
    assert net.metadata == metadata
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


def test_metadata_say_what_is_still_true(net: Lifelong) -> None:
    alone = one_task(net, 3)
    origin = Origin(3, Source("x", 0, 3))
    validation = net.metadata.validation
    assert validation is not None
    kept: dict[str, Any] = {"accuracy": [0.9], "validation": validation[2:], "user": {"note": ["mine"]}}
    assert alone.metadata == Metadata(input_shape=[12], from_task=origin, **kept)
    assert one_task(alone, 1).metadata == alone.metadata  # where it came from first
    bare = deepcopy(net)
    bare.metadata = Metadata()
    assert one_task(bare, 2).metadata == Metadata(from_task=Origin(2))


def test_it_learns_further_tasks_into_the_weights_that_became_free(net: Lifelong) -> None:
    alone = one_task(net, 2)
    before = answers(alone, [TASKS[1]])[0]
    alone.learn(TASKS[2], LPSConfig(alpha="rest", beta=0.5, epochs=(1, 3, 1), batch_size=32, lr=1e-2))
    assert torch.equal(answers(alone, [TASKS[1]])[0], before)
    assert alone.accuracy(2, TASKS[2].test) > 0.6  # chance is a third
    assert one_task(alone, 2).metadata.from_task == Origin(2)  # of this network; nothing is known of a stream


@pytest.mark.parametrize("pattern", ["irregular", "column", "filter", "channel"])
def test_all_that_is_free_can_be_asked_for_as_a_share(pattern: str) -> None:
    """Elementwise reuse leaves groups that are partly free: the shares must not promise more groups than there are."""
    net = Lifelong(toy_convnet(), features=16, pattern=pattern)
    tasks = [toy_task(seed, (3, 8, 8)) for seed in range(3)]
    for task in tasks[:2]:
        net.learn(task, LPSConfig(alpha=0.25, beta=0.5, epochs=(0, 1, 0), batch_size=32))
    alone = one_task(net, 2)
    left = {partition.name: 1 - partition.spent for partition, _ in alone.prunable()}
    alone.learn(tasks[2], LPSConfig(alpha=left, beta=0.5, epochs=(0, 1, 0), batch_size=32))
    assert alone.digest(1) == net.learnt[1].digest
    with pytest.raises(CapacityError):
        alone.learn(tasks[0], LPSConfig(alpha=0.5, epochs=(0, 1, 0)))


def test_other_dtypes_and_excluded_layers_come_along() -> None:
    net = Lifelong(toy_convnet().double(), features=16, exclude=["6.*"], pattern="filter", sharing="structured")
    tasks = [toy_task(seed, (3, 8, 8), dtype=torch.float64) for seed in range(2)]
    for task in tasks:
        net.learn(task, QUICK)
    alone = one_task(net, 2)
    assert (alone.pattern, alone.sharing, alone.exclude) == ("filter", "structured", ("6.*",))
    inputs = inputs_of(tasks[1])
    assert torch.equal(alone(inputs, task=1), net.eval()(inputs, task=2))


@pytest.mark.parametrize("task", [0, 4, -1])
def test_a_task_that_does_not_exist_is_refused(net: Lifelong, task: int) -> None:
    with pytest.raises(ConfigError, match=f"expected 1 to 3, got {task}"):
        one_task(net, task)


def test_another_process_reads_the_file_and_answers_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Lifelong(create("mlp", inputs=12, hidden=[24, 16], dropout=0.1), features=16)
    for task in TASKS[:2]:
        net.learn(task, QUICK)
    inputs = inputs_of(TASKS[1])
    torch.save(inputs, tmp_path / "inputs.pt")
    one_task(net, 2).save(tmp_path / "one.lps")
    program = (
        "import lps, torch\n"
        "net = lps.load('one.lps')\n"
        "assert len(net.learnt) == 1\n"
        "torch.save(net(torch.load('inputs.pt'), task=1), 'logits.pt')\n"
    )
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on it
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), net.eval()(inputs, task=2))
    assert load(tmp_path / "one.lps").learnt == [net.learnt[1]]
