"""Classes of the user's own inputs: which files hold them, what one task of a network answers, and as what text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from lps.data import Raw, raw
from lps.data.inputs import Form, ImageFile, InputFile, input_batches, open_inputs
from lps.errors import ConfigError
from lps.lifelong import Lifelong

# Of one example: input, index, class, probability, and with more classes class2, probability2, ...
Answer = dict[str, str | int | float]


def open_files(net: Lifelong, task: int, shape: Sequence[int], paths: Iterable[str]) -> tuple[list[InputFile], bool]:
    """The inputs in these files and folders; and whether images among them are scaled to 0..1 for want of knowledge."""
    _, weight = next(net.prunable())
    form = Form(tuple(shape), weight.dtype, _raw_form(net, task))
    files = list(open_inputs(map(Path, paths), form))
    return files, form.raw is None and any(isinstance(file, ImageFile) for file in files)


def _raw_form(net: Lifelong, task: int) -> Raw | None:
    """How the data of the task become inputs, if the file names the benchmark that the task comes from."""
    origin = net.metadata.origin(task)
    if origin.stream is None:
        return None
    return raw(origin.stream.benchmark, origin.task, seed=origin.stream.seed, options=origin.stream.options)


@torch.no_grad()
def classify(
    net: Lifelong, task: int, files: Sequence[InputFile], *, top: int, batch_size: int, dense: bool
) -> list[Answer]:
    """The ``top`` best classes of every example, from the cut-out task or, if ``dense``, from the whole network."""
    classes = net.learnt[task - 1].classes
    if not 1 <= top <= classes:
        raise ConfigError(f"--top: expected 1 to {classes}, the classes of task {task}, got {top}")
    device = next(net.parameters()).device
    net.activate(task)
    run: nn.Module = net if dense else net.extract(task, batch_size=batch_size)
    answers = []
    with tqdm(total=sum(map(len, files)), unit=" examples", disable=None, leave=False) as bar:
        for places, inputs in input_batches(files, batch_size):
            best = run(inputs.to(device)).double().softmax(1).topk(top)
            found = zip(places, best.indices.tolist(), best.values.tolist(), strict=True)
            answers += [_answer(path, index, numbers, shares) for (path, index), numbers, shares in found]
            bar.update(len(places))
    return answers


def _answer(path: Path, index: int, classes: Sequence[int], probabilities: Sequence[float]) -> Answer:
    """The answer for one example; classes after the best one are numbered from 2."""
    answer: Answer = {"input": str(path), "index": index}
    for place, (number, probability) in enumerate(zip(classes, probabilities, strict=True), start=1):
        suffix = "" if place == 1 else str(place)
        answer[f"class{suffix}"] = number
        answer[f"probability{suffix}"] = float(f"{probability:.6g}")  # the digits that float32 has
    return answer


def _csv(answers: Sequence[Answer]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(answers[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(answers)
    return text.getvalue()


def _json(answers: Sequence[Answer]) -> str:
    lines = ",\n".join(json.dumps(answer) for answer in answers)
    return f"[\n{lines}\n]\n"


TEXTS: dict[str, Callable[[Sequence[Answer]], str]] = {"csv": _csv, "json": _json}
