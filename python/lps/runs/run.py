"""One run: the tasks of a benchmark learnt one after another into a run directory."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch

from lps.artifact.read import load
from lps.data import stream
from lps.data.base import Stream
from lps.errors import ConfigError, DivergedError, FileFormatError, StoppedError, WriteError
from lps.lifelong import Lifelong
from lps.methods import METHODS
from lps.methods.base import Method
from lps.methods.options import READS
from lps.models import Architecture, create
from lps.options import convert
from lps.runs.checkpoint import Checkpoint, number_of
from lps.runs.directory import (
    MODEL,
    STATE,
    Records,
    RunDirectory,
    check_members,
    check_unused,
    make_next,
    read_memory,
    read_records,
    results_of,
    write_results,
)
from lps.runs.lock import locked
from lps.runs.progress import Progress
from lps.runs.settings import CONFIG, Settings, contradiction
from lps.runs.signals import Request, stop_on_signals
from lps.task import Task


def train(
    settings: Settings, output: Path | None, before: Settings | None, device: torch.device
) -> tuple[dict[str, Any], Path]:
    """Learn all tasks; returns the results and the run directory.

    ``before`` are the settings that the run in ``output`` was started with, if it is to be resumed.
    """
    with ExitStack() as stack:
        request = stack.enter_context(stop_on_signals())
        net, records = None, Records()
        if output is not None and before is not None:
            stack.enter_context(locked(output))
            check_members(output)
            net, records = _learnt_before(output, before, settings)
            if net is not None and len(net.learnt) == settings.tasks:
                # Written again: a run that was killed right after its last task did not get to it.
                return write_results(output, results_of(settings, _method(settings, net), records)), output
        elif output is not None:
            check_unused(output)
        benchmark = _stream(settings)
        tasks = list(benchmark)  # all of them now, so that missing data is found before the first task is learnt
        method = _method(settings, (net or _new_network(settings, benchmark)).to(device))
        if net is not None and output is not None:
            read_memory(output, method)
        method.check(tasks)
        path = output or make_next(settings.benchmark)
        if before is None:
            stack.enter_context(locked(path))
            check_unused(path)  # again: another run may have started in it meanwhile
        results = _learn(method, tasks, settings, path, records, request)
    print()  # between the log and what the command prints
    return results, path


def _learnt_before(path: Path, before: Settings, settings: Settings) -> tuple[Lifelong | None, Records]:
    """The network, if a task is learnt, and the records of a run that is to go on; settings that do not fit the learnt
    tasks or the one under way are refused before anything is written.
    """
    net, records, learnt = None, Records(), 0
    if (path / MODEL).exists():
        net = load(path / MODEL)
        saved, learnt = net.metadata.stream, len(net.learnt)
        others = [name for name, value in _modes(before).items() if getattr(net, name) != value]
        if saved is None or replace(saved, tasks=before.tasks) != before.source() or others:
            raise FileFormatError(f"{path / MODEL}: was not written by the run of {path / CONFIG}; start another run")
    checkpoint = Checkpoint(path / STATE)
    state = checkpoint.load()
    begun = state is not None and number_of(state) > learnt
    if problem := contradiction(before, settings, learnt, begun=begun):
        raise ConfigError(problem)
    if net is not None:
        records = read_records(path, net.learnt, forgets=METHODS[before.method].forgets)
    if not begun:
        checkpoint.clear()  # of a task that is in the file: the run was killed before it could delete it
    return net, records


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
    return Lifelong(backbone, architecture.features, **_modes(settings), quiet=True)


def _modes(settings: Settings) -> dict[str, str]:
    """How the network is made, as far as the method leaves it to the settings."""
    norms = READS[settings.method].norms or settings.norms
    return {"pattern": settings.pattern, "sharing": settings.sharing, "norms": norms}


def _method(settings: Settings, net: Lifelong) -> Method:
    kind = METHODS[settings.method]
    return kind(net, settings.of_all_tasks(), convert(settings.method_options, READS[settings.method].options))


def _learn(
    method: Method, tasks: list[Task], settings: Settings, path: Path, records: Records, request: Request
) -> dict[str, Any]:
    """Learn the remaining tasks; after each one, test all learnt tasks and save."""
    net = method.net
    steps = [method.steps(number, task) for number, task in enumerate(tasks, 1)]
    phases = [method.phases(number) for number in range(1, len(tasks) + 1)]
    done = len(net.learnt)
    results: dict[str, Any] = {}
    checkpoint = Checkpoint(path / STATE, settings.save_every)
    with RunDirectory(path, replace(settings, output=None), done, sum(steps[:done])) as directory:
        request.checkpoint = checkpoint
        progress = Progress(phases, sum(steps[done:]), directory)
        try:
            for number, task in enumerate(tasks[done:], start=done + 1):
                report = method.learn(task, listener=progress, checkpoint=checkpoint)
                begin = perf_counter()
                accuracy = [net.accuracy(i, earlier.test) for i, earlier in enumerate(tasks[:number], start=1)]
                seconds = sum(report.seconds.values()) + perf_counter() - begin
                records.add(report, net.learnt[-1].digest, accuracy, seconds)
                net.metadata.stream, net.metadata.accuracy = settings.source(), [*accuracy]
                results = directory.save(net, method, records, steps[number - 1])
                done = number
                checkpoint.clear()
                progress.learnt(accuracy, seconds)
                if checkpoint.stop and number < len(tasks):
                    raise StoppedError("between two tasks")
        except DivergedError:
            checkpoint.clear()  # with the same settings it would diverge again, and a state with others is refused
            raise
        except (KeyboardInterrupt, StoppedError, WriteError) as error:
            saved = f"{done} of {len(tasks)} tasks are learnt and saved"
            begun = ", and the state of the next" if checkpoint.exists() else ""
            go_on = f"go on with: python -m lps.train --resume --output {shlex.quote(str(path))}"
            if isinstance(error, WriteError):
                raise WriteError(f"{error}; {saved}{begun}; then {go_on}") from None
            raise request.stopped(f"interrupted; {saved}{begun}; {go_on}") from None
        finally:
            progress.close()
    return results
