"""Facts about a network beside its weights, stored in the file as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lps.errors import ConfigError, FileFormatError
from lps.methods.lps.config import MAX_TASKS
from lps.signature import MOST_INPUTS, Input, Signature, Size, problem_with

Count = Annotated[int, Meta(ge=1)]
Accuracy = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Source:
    """The benchmark that the tasks come from, with everything that determines its data.

    ``seed`` is the seed of the stream (permutations, class order, held-out examples), ``options`` are
    specific to the benchmark, as in ``{"window": 256}``.
    """

    benchmark: str
    seed: Annotated[int, Meta(ge=0)]
    tasks: Count
    options: dict[str, int | float | str | bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """For a network cut down to one task: that task's number in the stream it was learnt in; None if unknown."""

    task: Count
    stream: Source | None = None


@dataclass
class Metadata:
    """Facts about a network that users of its file need without the data.

    ``input_shape`` is that of one example of task 1, if its input is one tensor; ``accuracy`` holds the accuracy of
    every task on its test examples, measured when it was learnt or, in a run, when the file was written, ``validation``
    that on its validation examples when it was learnt, each None where there are none; ``user`` is free for anything
    that JSON can hold. ``inputs`` says per task what it reads; None, or no entry, is one tensor of ``input_shape`` and
    of the weights' dtype.
    """

    input_shape: Annotated[list[Size], Meta(max_length=16)] | None = None
    stream: Source | None = None
    accuracy: list[Accuracy | None] | None = None
    validation: list[Accuracy | None] | None = None
    from_task: Origin | None = None
    user: dict[str, Any] = field(default_factory=dict)
    inputs: (
        Annotated[
            list[Annotated[list[Input], Meta(min_length=1, max_length=MOST_INPUTS)] | None],
            Meta(max_length=MAX_TASKS),
        ]
        | None
    ) = None

    def to_json(self) -> dict[str, Any]:
        """The metadata as plain values, without unknown fields."""
        try:
            plain: dict[str, Any] = msgspec.to_builtins(self)
            msgspec.convert(plain, type(self))
        except msgspec.ValidationError as error:
            raise ConfigError(f"metadata: {sentence(error)}") from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(f"metadata: expected values that JSON can hold, got a problem: {error}") from None
        return {key: value for key, value in plain.items() if value is not None and value != {}}

    @classmethod
    def from_json(cls, values: object) -> Metadata:
        """Metadata from the values that :meth:`to_json` returned, checked."""
        try:
            found = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise FileFormatError(f"metadata: {sentence(error)}; write the file again") from None
        for task, signature in enumerate(found.inputs or [], 1):
            problem = problem_with(signature or [])
            if problem is not None:
                raise FileFormatError(f"metadata: inputs of task {task}: {problem}; write the file again")
        return found

    def of_task(self, task: int) -> Metadata:
        """The metadata of a network that holds this task alone."""
        accuracy, validation = ((values or [])[task - 1 : task] or None for values in (self.accuracy, self.validation))
        origin = self.origin(task)
        alone = replace(self, stream=None, accuracy=accuracy, validation=validation, from_task=origin, inputs=None)
        own = self._inputs_of(task)
        if own is not None:
            alone.input_shape, alone.inputs = _plain_shape(own), [own]
        return alone

    def add_validation(self, task: int, accuracy: float) -> None:
        """Note the accuracy of a task that was just learnt; NaN if there is none."""
        self.validation = _with(self.validation, task, accuracy)

    def add_accuracy(self, task: int, accuracy: float) -> None:
        """The same on test examples; nothing is noted while no task has any."""
        noted = _with(self.accuracy, task, accuracy)
        self.accuracy = noted if any(each is not None for each in noted) else None

    def signature(self, task: int, dtype: str) -> Signature | None:
        """The inputs that a task reads, in a network whose weights have this dtype; None if that is not known."""
        own = self._inputs_of(task)
        if own is None and self.input_shape is not None:
            own = [Input(dtype, self.input_shape)]
        return own

    def record(self, task: int, signature: Signature, dtype: str) -> None:
        """Note the inputs of the latest task."""
        shape = _plain_shape(signature)
        if task == 1:
            self.input_shape = shape
        plain = self.input_shape is not None and signature == [Input(dtype, self.input_shape)]
        earlier = [self._inputs_of(number) for number in range(1, task)]
        inputs = [*earlier, None if plain else signature]
        self.inputs = inputs if any(inputs) else None

    def use(self, task: int, signature: Signature, dtype: str) -> None:
        """Take this as the inputs of a task, in place of what was recorded."""
        if self._inputs_of(task) is None and signature == [Input(dtype, signature[0].shape)]:
            self.input_shape = signature[0].shape
            return
        others = [self._inputs_of(number) for number in range(1, len(self.inputs or []) + 1)]
        self.inputs = [signature if number == task else own for number, own in enumerate(others, 1)]

    def _inputs_of(self, task: int) -> Signature | None:
        return self.inputs[task - 1] if self.inputs is not None and task <= len(self.inputs) else None

    def origin(self, task: int) -> Origin:
        """The stream that this task was learnt in, and its number there."""
        if task == 1 and self.from_task is not None:
            return self.from_task
        known = self.stream if self.stream is not None and task <= self.stream.tasks else None
        return Origin(task, known)


def _with(values: Sequence[float | None] | None, task: int, value: float) -> list[float | None]:
    """The values of the tasks before this one, as far as they are known, and its own."""
    before = [*(values or [])[: task - 1]]
    return [*before, *[None] * (task - 1 - len(before)), None if isnan(value) else value]


def _plain_shape(signature: Signature) -> list[int] | None:
    """The shape of an example that is one tensor."""
    return list(signature[0].shape) if len(signature) == 1 and signature[0].name is None else None


def sentence(error: msgspec.ValidationError) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.seed`" in our form: "seed: expected int, got str"."""
    what, _, where = str(error).partition(" - at `$")
    place = where.rstrip("`").lstrip(".")
    text = what.replace("`", "")
    text = text[:1].lower() + text[1:]
    return f"{place}: {text}" if place else text
