"""What holds for both methods with scores: exact masks, the gradient of the scores, refusals, commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lps import Lifelong, load
from lps.errors import ConfigError, FileFormatError
from lps.methods import METHODS
from lps.methods.scored import SCORES, WEIGHTS

from tests.command import run
from tests.methods.scores import CONFIG, SHARE, TASKS, batch, begun, gradients, make, masks
from tests.toy import answers, toy_convnet, toy_task

both = pytest.mark.parametrize("name", ["wsn", "supsup"])


@both
def test_every_mask_holds_exactly_the_share_and_the_best_scores(name: str) -> None:
    method = make(name)
    for number in (1, 2, 3):
        learner, fit = begun(method)
        for _ in range(5):
            fit.step(*batch(number), 1.0)
            for layer in learner.layers:
                best = layer.scores.view(-1).topk(round(SHARE * layer.scores.numel())).indices
                mask = torch.zeros(layer.scores.numel(), dtype=torch.bool)
                mask[best] = True
                assert torch.equal(layer.parameter.detach(), torch.where(mask.view_as(layer.scores), layer.weights, 0))
        learner.transaction.__exit__(None, None, None)  # type: ignore[attr-defined]
        method.learn(TASKS[number - 1])
        for mask in masks(method.net, number):
            assert int(mask.sum()) == round(SHARE * mask.numel())


@both
def test_scores_get_the_gradient_times_the_weight(name: str) -> None:
    method = make(name)
    method.learn(TASKS[0])
    learner, fit = begun(method)
    expected = gradients(learner, *batch(2))
    fit.step(*batch(2), 1.0)
    for layer, (_, gradient) in zip(learner.layers, expected, strict=True):
        assert float(gradient.abs().max()) > 0
        mean = learner.adam.state[layer.parameter]["exp_avg"]  # after the first step (1 - beta1) times the gradient
        torch.testing.assert_close(mean, 0.1 * gradient, rtol=1e-4, atol=1e-8)


@both
@pytest.mark.parametrize(
    ("setting", "value"),
    [("pattern", "column"), ("pattern", "filter"), ("pattern", "channel"), ("sharing", "structured")],
)
def test_groups_of_weights_are_refused(name: str, setting: str, value: str) -> None:
    method = make(name, **{setting: value})
    expected = f"^{setting}: {name} selects single weights, got {value}; leave it out$"
    with pytest.raises(ConfigError, match=expected):
        method.check(TASKS)
    with pytest.raises(ConfigError, match=expected):
        method.learn(TASKS[0])
    assert not method.learnt


@both
@pytest.mark.parametrize("norms", ["frozen", "per-task"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolutions_with_norms_in_channels_last_order(name: str, norms: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    backbone = toy_convnet().to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = replace(CONFIG, channels_last=True, precision="bf16" if dtype == torch.float32 else "fp32")
    method = METHODS[name](Lifelong(backbone, 16, norms=norms), config)
    tasks = [toy_task(seed, shape=(3, 8, 8), dtype=dtype) for seed in (1, 2, 3)]
    method.learn(tasks[0])
    first = answers(method.net, tasks[:1])[0]
    for task in tasks[1:]:
        method.learn(task)
    assert torch.equal(answers(method.net, tasks)[0], first)
    for mask in (mask for number in (1, 2, 3) for mask in masks(method.net, number)):
        assert int(mask.sum()) == round(0.5 * mask.numel())


@both
def test_a_damaged_memory_is_refused(name: str) -> None:
    method = make(name)
    method.learn(TASKS[0])
    memory = method.memory
    tensors = memory[WEIGHTS]
    layer, values = next(iter(tensors.items()))
    without = {key: value for key, value in memory.items() if key != WEIGHTS}
    for broken in (
        {},
        without,
        {**memory, "more": tensors},
        {**memory, WEIGHTS: [values]},
        {**memory, WEIGHTS: {}},
        {**memory, WEIGHTS: {**tensors, layer: values[:1]}},
        {**memory, WEIGHTS: {**tensors, layer: values.double()}},
        {**memory, WEIGHTS: {**tensors, layer: None}},
    ):
        with pytest.raises(FileFormatError):
            method.load_memory(broken)
        assert method.memory is memory


@both
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    learner, fit = begun(make(name))
    fit.step(*batch(1), 1.0)
    state = fit.state_dict()
    for part in (WEIGHTS, SCORES):
        whole = state["learner"][part]
        for broken in (whole[:1], [whole[0][:1], whole[1]], [whole[0].double(), whole[1]], [None, whole[1]]):
            with pytest.raises(FileFormatError, match="does not fit the task"):
                fit.load_state_dict({**state, "learner": {**state["learner"], part: broken}})
    fit.load_state_dict(state)
    assert learner.lr == state["learner"]["lr"]


@both
def test_without_its_memory_a_network_with_tasks_learns_on(name: str) -> None:
    """As after loading a file: what is free starts anew, and earlier tasks stay as they are."""
    first = make(name)
    first.learn(TASKS[0])
    digest = first.net.digest(1)
    again = type(first)(first.net, first.config, first.own)
    again.learn(TASKS[1])
    assert again.net.digest(1) == digest
    assert len(again.learnt) == 2


@both
def test_the_commands(name: str, tmp_path: Path) -> None:
    options = ("--tasks", "2", "--epochs", "1,1,0", "--threads", "1", "--output", "run")
    done = run(tmp_path, "lps.train", "--method", name, f"--{name}.share", "0.2", *options)
    assert done.returncode == 0, done.stderr
    model = tmp_path / "run" / "model.lps"
    done = run(tmp_path, "lps.eval", model, "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" ok") == 2
    done = run(tmp_path, "lps.export", model, "--task", "2", "--format", "torch")
    assert done.returncode == 0, done.stderr
    net = load(model)
    for number in (1, 2):
        for mask in masks(net, number):
            assert int(mask.sum()) == round(0.2 * mask.numel())
    done = run(tmp_path, "lps.train", "--method", name, f"--{name}.share", "0", "--output", "none")
    assert done.stderr == f"lps.train: {name}.share: expected a number above 0, up to 1, got 0\n"
