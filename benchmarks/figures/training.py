"""The figures of training: steps, later tasks, the file, switching, saving the state, memory, nothing forgotten."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from lps import Arrays, Lifelong, Listener, LPSConfig, Task, load, models
from lps.methods.fit import Fit
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.phases import PhasedLearner
from lps.methods.lps.plan import plan_task
from lps.sources import batches
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.figures.checks import check_operators
from benchmarks.figures.figure import Figure, UnmeasurableError, typically_within
from benchmarks.figures.scored import scored_figures
from benchmarks.figures.sharing import sharing_figures
from benchmarks.figures.switching import saving_figure, switching_figures
from benchmarks.timing import Thunk, measure

BATCH = 128
STEP_SECONDS = 20.0  # for each of the four kinds of step
TASKS = 10
CLASSES = 10
INPUTS = 784
MEMORY_SIDE = 6000
# Enough to give a task its weights, masks and head; what they are does not matter here.
INSTANT = LPSConfig(alpha=0.1, beta=0.9, epochs=(0, 1, 0), batch_size=BATCH, rho_levels=1).of_task(1)
STRAIGHT = replace(INSTANT, solver="straight-through", beta="auto")
SHARE = replace(STRAIGHT, beta=0.7)
# Kinds of steps: the phase, its settings, and the bound on its time as a multiple of a dense step with fused Adam.
STEPS = {
    "warm-up step": ("warm-up", INSTANT, 1.05),
    "admm step, gradient pull": ("admm", INSTANT, 1.10),
    "admm step, proximal pull": ("admm", replace(INSTANT, pull="proximal"), 1.10),
    "straight-through step": ("straight-through", STRAIGHT, 1.12),
    "straight-through step, exact share": ("straight-through", SHARE, 1.12),
    "final step": ("final", INSTANT, 1.05),
}


def training_figures() -> Iterator[Figure]:
    """All of them take about five minutes."""
    check_operators()
    net = _network()
    answers = _learn(net, 1)
    second = copy.deepcopy(net)
    yield from _steps(second)
    yield from scored_figures(_network, _task(BATCH), _dense_step(*_batch()))
    answers += _learn(net, TASKS - 2)
    yield from _cost_of_later_tasks(second, net)
    answers += _learn(net, 1)
    yield from _file_and_forgetting(net, answers)
    yield from switching_figures(net, _inputs())
    few_steps = LPSConfig(alpha=0.1, beta=0.9, epochs=(0, 1, 0), batch_size=BATCH)
    yield saving_figure(second, _task(12 * BATCH), few_steps)
    yield from sharing_figures()
    yield from _memory()


def _network() -> Lifelong:
    torch.manual_seed(0)
    backbone = models.create("mlp", inputs=INPUTS, hidden=[2000, 2000], dropout=0.5)
    return Lifelong(backbone, features=2000)


def _task(examples: int, name: str = "noise") -> Task:
    """Noise with labels: speed and size do not depend on what is learnt."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(examples, INPUTS, generator=generator)
    data = Arrays(inputs, torch.arange(examples) % CLASSES)
    return Task(name, CLASSES, train=data, test=data)


def _learn(net: Lifelong, tasks: int) -> list[Tensor]:
    """Learn ``tasks`` more tasks; returns the logits of each right after it was learnt."""
    answers = []
    for _ in range(tasks):
        net.learn(_task(BATCH, f"noise {len(net.learnt) + 1}"), INSTANT)
        answers.append(_answer(net, len(net.learnt)))
    return answers


def _inputs() -> Tensor:
    data = _task(BATCH).test
    assert isinstance(data, Arrays)
    inputs: Tensor = data.inputs
    return inputs


def _answer(net: Lifelong, task: int) -> Tensor:
    with torch.no_grad():
        logits: Tensor = net.eval()(_inputs(), task=task)
    return logits


def _batch() -> tuple[Tensor, Tensor]:
    return next(batches(_task(BATCH).train, BATCH))


def _steps(net: Lifelong) -> Iterator[Figure]:
    """A step of each phase of the second task beside a plain dense step with fused Adam."""
    inputs, labels = _batch()
    functions: dict[str, Thunk] = {"dense": _dense_step(inputs, labels)}
    for name, (phase, config, _) in STEPS.items():
        functions[name] = _step_of(copy.deepcopy(net), phase, config, inputs, labels)
    times = measure(functions, STEP_SECONDS)
    for name, (_, _, bound) in STEPS.items():
        yield typically_within(f"{name} vs dense step, fused Adam", times[name], times["dense"], bound)


def _dense_step(inputs: Tensor, labels: Tensor) -> Thunk:
    network = nn.Sequential(models.create("mlp", inputs=INPUTS, hidden=[2000, 2000], dropout=0.5), nn.Linear(2000, 10))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        loss = cross_entropy(network(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _step_of(net: Lifelong, phase: str, config: TaskConfig, inputs: Tensor, labels: Tensor) -> Thunk:
    """A training step as :meth:`Lifelong.learn` takes it in this phase; of a solver, in the middle of its phase."""
    # Only the length of its data counts: 1000 steps an epoch.
    data = Arrays(torch.zeros(1, INPUTS).expand(1000 * BATCH, -1), torch.arange(1000 * BATCH) % CLASSES)
    task, transaction = Task("noise", CLASSES, train=data, test=data), net.transaction()
    learner = PhasedLearner(net, task, config, plan_task(net, config), transaction.__enter__(), None)
    fit = Fit(learner, task, config, Listener(), None, {})
    for earlier in learner.phases:
        learner.begin_phase(earlier.name, fit)
        if earlier.name == phase:
            break
    learner.begin_epoch()
    learner.before_step(phase, 333, fit)  # the first projection of ADMM
    steps = count()

    def step() -> None:
        if phase == "straight-through":  # whose counts change from step to step
            learner.before_step(phase, 1 + next(steps) % 998, fit)
        fit.step(inputs, labels, 1.0)

    step.transaction = transaction  # type: ignore[attr-defined] # open as long as the steps are taken
    return step


def _cost_of_later_tasks(second: Lifelong, tenth: Lifelong) -> Iterator[Figure]:
    """The whole of ``learn``, including what it takes to copy the network first."""
    config = LPSConfig(alpha=0.1, beta=0.9, epochs=(1, 3, 1), batch_size=BATCH)
    task = _task(20 * BATCH)
    functions: dict[str, Thunk] = {
        "second": lambda: copy.deepcopy(second).learn(task, config),
        "tenth": lambda: copy.deepcopy(tenth).learn(task, config),
    }
    times = measure(functions, 25.0)
    yield typically_within("learning task 10 vs task 2", times["tenth"], times["second"], 1.1)


def _file_and_forgetting(net: Lifelong, answers: list[Tensor]) -> Iterator[Figure]:
    """The ten tasks from one file: its size, and how many tasks have other logits than when they were learnt."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.lps"
        net.save(path)
        megabytes = path.stat().st_size / 1e6
        loaded = load(path)
    separate = TASKS * sum(p.numel() for p in (*net.backbone.parameters(), *net.heads[0].parameters())) * 4 / 1e6
    yield Figure(
        "model.lps of ten tasks", megabytes, " MB", "<=", 30, f"ten separate networks take {separate:.0f} MB in fp32"
    )
    pairs = zip(answers, (_answer(loaded, task) for task in range(1, TASKS + 1)), strict=True)
    changed = sum(not torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)
    detail = "of 10, bit by bit, from the file after all were learnt"
    yield Figure("tasks whose logits differ from when they were learnt", changed, "", "<=", 0, detail)


def _memory() -> Iterator[Figure]:
    for solver, bound in (("admm", 31), ("straight-through", 27)):
        per_weight, weights = measure_memory(MEMORY_SIDE, solver)
        detail = f"peak of the solver's phase of task 2 over the start of the process, {weights:,} weights"
        yield Figure(f"training state per prunable weight, {solver}", per_weight, " bytes", "<=", bound, detail)


def measure_memory(side: int, solver: str) -> tuple[float, int]:
    """Bytes per weight and weights, from a process of its own: the system only tells the peak of a whole process."""
    command = [sys.executable, "-m", "benchmarks.figures.memory", str(side), solver]
    # Without this the allocator keeps some of what is freed, and the system counts it.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        reason = result.stderr.strip().splitlines()[-1:] or [f"the process ended with {result.returncode}"]
        raise UnmeasurableError(f"the memory of training: {reason[0]}")
    per_weight, weights = result.stdout.split()
    return float(per_weight), int(weights)
