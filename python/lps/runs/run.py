"""One run: the tasks of a benchmark learnt one after another into a run directory."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch

from lps.artifact.read import load
from lps.data import Stream, stream
from lps.errors import CapacityError, ConfigError, FileFormatError
from lps.lifelong import Lifelong
from lps.methods.lps.config import TaskConfig
from lps.methods.lps.plan import plan_task
from lps.models import Architecture, create
from lps.partition import groups_with
from lps.runs.directory import CONFIG, MODEL, Records, RunDirectory, check_unused, make_next, read_records, results_of
from lps.runs.progress import Progress
from lps.runs.settings import Settings, contradiction
from lps.task import Learnt, Task, steps_per_epoch


def train(
    settings: Settings, output: Path | None, before: Settings | None, device: torch.device
) -> tuple[dict[str, Any], Path]:
    """Learn all tasks; returns the results and the run directory.

    ``before`` are the settings that a run in ``output`` was begun with, if it is to go on.
    """
    net, records = None, Records()
    if output is not None and before is not None:
        net, records = _learnt_before(output, before, settings)
        if net is not None and len(net.learnt) == settings.tasks:
            return results_of(settings, net, records, (output / MODEL).stat().st_size), output
    elif output is not None:
        check_unused(output)
    benchmark = _stream(settings)
    tasks = list(benchmark)  # all of them, so that missing data is found before the first is learnt
    net = (net or _new_network(settings, benchmark)).to(device)
    _check_capacity(net, [settings.of_task(task) for task in range(len(net.learnt) + 1, settings.tasks + 1)])
    learnt = _learn(net, tasks, settings, output or make_next(settings.benchmark), records)
    print()  # between the log and what the command prints
    return learnt


def _learnt_before(path: Path, before: Settings, settings: Settings) -> tuple[Lifelong | None, Records]:
    """The network and the records of a run that is to go on; None if it has not finished a task yet."""
    if not (path / MODEL).exists():
        return None, Records()
    net = load(path / MODEL)
    saved = net.metadata.stream
    if saved is None or replace(saved, tasks=before.tasks) != before.source():
        raise FileFormatError(f"{path / MODEL}: was not written by the run of {path / CONFIG}; start another run")
    if problem := contradiction(before, settings, len(net.learnt)):
        raise ConfigError(problem)
    return net, read_records(path, len(net.learnt))


def _stream(settings: Settings) -> Stream:
    return stream(
        settings.benchmark,
        data_dir=None if settings.data_dir is None else Path(settings.data_dir),
        tasks=settings.tasks,
        seed=settings.source().seed,
        download=settings.download,
        augment=settings.augment,
        options=settings.options,
    )


def _new_network(settings: Settings, benchmark: Stream) -> Lifelong:
    name, arguments = benchmark.architecture
    if settings.dropout is not None:
        arguments = {**arguments, "dropout": settings.dropout}
    torch.manual_seed(settings.seed)
    backbone = create(name, **arguments)
    architecture = cast("Architecture", backbone.architecture)
    return Lifelong(backbone, architecture.features, pattern=settings.pattern, sharing=settings.sharing)


def _check_capacity(net: Lifelong, configs: list[TaskConfig]) -> None:
    """Plan every task before the first is learnt: a run that cannot fit is refused at its start."""
    trial = deepcopy(net)
    tasks = len(trial.learnt) + len(configs)
    for config in configs:
        number = len(trial.learnt) + 1
        try:
            plans = plan_task(trial, config)
        except CapacityError as error:
            share = int(1e4 * (1 - config.reserve) / tasks) / 1e4
            raise CapacityError(f"{error}; {tasks} tasks of one size fit with an alpha of {share:g} each") from None
        for (partition, _), plan in zip(trial.prunable(), plans, strict=True):
            # Which groups a task takes does not matter for how many are left.
            groups = groups_with(partition.free(), plan.view).nonzero().squeeze(1)[: plan.keep_free]
            partition.owner.view(plan.view).index_fill_(1, groups, number)
            partition.spent = plan.spent
        trial.learnt.append(Learnt(f"task {number}", 0, ""))


def _learn(
    net: Lifelong, tasks: list[Task], settings: Settings, path: Path, records: Records
) -> tuple[dict[str, Any], Path]:
    """Learn what is not learnt yet; after each task test all, then save."""
    epochs = [settings.of_task(number).epochs for number in range(1, len(tasks) + 1)]
    batch = settings.lps.batch_size
    steps = [
        sum(each) * steps_per_epoch(len(task.train), batch)  # type: ignore[arg-type]
        for each, task in zip(epochs, tasks, strict=True)
    ]
    done = saved = len(net.learnt)
    results: dict[str, Any] = {}
    with RunDirectory(path, replace(settings, output=None), done, sum(steps[:done])) as directory:
        progress = Progress(epochs, sum(steps[done:]), directory.row)
        try:
            for number, task in enumerate(tasks[done:], start=done + 1):
                begin = perf_counter()
                report = net.learn(task, settings.of_task(number), listener=progress)
                accuracy = [net.accuracy(i, earlier.test) for i, earlier in enumerate(tasks[:number], start=1)]
                records.add(report, net.learnt[-1].digest, accuracy, perf_counter() - begin)
                net.metadata.stream, net.metadata.accuracy = settings.source(), accuracy
                results = directory.save(net, records, steps[number - 1])
                saved = number
                progress.learnt(accuracy, records.tasks[-1]["seconds"])
        except KeyboardInterrupt:
            sentence = f"interrupted; {saved} of {len(tasks)} tasks are learnt and saved"
            raise KeyboardInterrupt(f"{sentence}; go on with --resume --output {path}") from None
        finally:
            progress.close()
    return results, path
