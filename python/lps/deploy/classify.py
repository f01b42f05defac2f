"""Classes of the user's own inputs: which files hold them, what one task of a network answers, and as what text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from lps.batch import moved
from lps.data import raw
from lps.data.base import Raw
from lps.data.inputs import Form, Forms, ImageFile, InputFile, Named, input_batches, open_inputs
from lps.deploy.extraction.trace import argument_names
from lps.errors import ConfigError, escaped
from lps.lifelong import Lifelong
from lps.observed import dtype_of
from lps.options import one_line
from lps.signature import Signature

# Of one example: input, index, class, its name if the classes have names, probability, and with more classes class2,
# class_name2, probability2, ...; None where the network has no answer.
Answer = dict[str, str | int | float | None]


def open_files(net: Lifelong, task: int, signature: Signature, paths: Iterable[str]) -> tuple[list[InputFile], bool]:
    """The inputs in these files and folders; and whether images among them are scaled to 0..1 for want of knowledge."""
    form = form_of(net, task, signature)
    files = list(open_inputs(map(Path, paths), form))
    unknown = isinstance(form, Form) and form.raw is None
    return files, unknown and any(isinstance(file, ImageFile) for file in files)


def form_of(net: Lifelong, task: int, signature: Signature) -> Forms:
    """What files must hold: an array, or in an .npz file several by the names of the inputs."""
    like, raw_form = net.like.dtype, _raw_form(net, task)
    forms = [Form(kind.sizes(), like if kind.is_float else dtype_of(kind), raw_form) for kind in signature]
    if len(forms) == 1 and signature[0].name is None:
        return forms[0]
    return Named(dict(zip(argument_names(signature), forms, strict=True)), signature[0].name is not None)


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
    """The ``top`` best classes of every example, from the cut-out task or, if ``dense``, from the whole network.

    An example whose logits are infinite or NaN has no best class: its classes and probabilities are None.
    """
    classes, names = net.learnt[task - 1].classes, net.learnt[task - 1].class_names
    if not 1 <= top <= classes:
        raise ConfigError(f"--top: expected 1 to {classes}, the classes of task {task}, got {top}")
    device = next(net.parameters()).device
    net.activate(task)
    run: nn.Module = net if dense else net.extract(task, batch_size=batch_size)
    answers = []
    with tqdm(total=sum(map(len, files)), unit=" examples", disable=None, leave=False) as bar:
        for places, inputs in input_batches(files, batch_size):
            best = run(moved(inputs, device)).double().softmax(1).topk(top)
            found = zip(places, best.indices.tolist(), best.values.tolist(), strict=True)
            answers += [_answer(path, index, numbers, shares, names) for (path, index), numbers, shares in found]
            bar.update(len(places))
    return answers


def _answer(
    path: Path, index: int, classes: Sequence[int], probabilities: Sequence[float], names: Sequence[str]
) -> Answer:
    """The answer for one example; classes after the best one are numbered from 2."""
    # Bytes in a name that are no UTF-8 are written as escapes: JSON has no way to hold them.
    answer: Answer = {"input": str(path).encode(errors="backslashreplace").decode(), "index": index}
    known = all(map(isfinite, probabilities))  # an infinite or NaN logit makes all of them NaN
    for place, (number, probability) in enumerate(zip(classes, probabilities, strict=True), start=1):
        suffix = "" if place == 1 else str(place)
        answer[f"class{suffix}"] = number if known else None
        if names:
            answer[f"class_name{suffix}"] = names[number] if known else None
        # Six digits are those that float32 has.
        answer[f"probability{suffix}"] = float(f"{probability:.6g}") if known else None
    return answer


def unanswered(answers: Sequence[Answer]) -> str | None:
    """A sentence about the examples without an answer, if there are any."""
    without = [answer for answer in answers if answer["class"] is None]
    if not without:
        return None
    first = f"the first is {one_line(str(without[0]['input']))}, example {without[0]['index']}"
    return f"no answer for {len(without)} of {len(answers)} examples, whose logits are infinite or NaN; {first}"


def _csv(answers: Sequence[Answer]) -> str:
    text = io.StringIO()
    names = list(answers[0]) if answers else ["input", "index", "class", "probability"]
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    # Names are anybody's, and a table may go to a terminal.
    writer.writerows(
        {key: escaped(v) if "name" in key and isinstance(v, str) else v for key, v in row.items()} for row in answers
    )
    return text.getvalue()


def _json(answers: Sequence[Answer]) -> str:
    lines = ",\n".join(json.dumps(answer, allow_nan=False) for answer in answers)
    return f"[\n{lines}\n]\n"


TEXTS: dict[str, Callable[[Sequence[Answer]], str]] = {"csv": _csv, "json": _json}
