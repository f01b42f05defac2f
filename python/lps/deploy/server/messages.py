"""Requests read and answers written: the Open Inference Protocol (version 2, REST) and two shorter forms.

Everything here is bytes in and bytes out, and every fault of a request is a :class:`RefusedError`. What a request says
of sizes is compared with what it holds before memory is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from lps.batch import assembled
from lps.data.files import fits, shape_text
from lps.data.inputs import Form, decode_image, prepared
from lps.deploy.server.catalog import DATATYPES, Model, Port
from lps.deploy.server.engine import Answer
from lps.deploy.server.errors import RefusedError
from lps.errors import DataError, in_a_sentence
from lps.metadata import sentence
from lps.options import shown
from lps_kernels.calls import Inputs

T = TypeVar("T")

JSON, BINARY = "application/json", "application/octet-stream"
HEADER_LENGTH = "inference-header-content-length"  # of the binary extension: where the JSON ends and tensors begin
OUTPUTS = ("logits", "probabilities", "class")
MOST_SIZE = 2**31 - 1  # of one axis
_NUMPY: dict[torch.dtype, str] = {
    torch.bool: "?",
    torch.uint8: "u1",
    torch.int8: "i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.float32: "<f4",
    torch.float64: "<f8",
}


class _Input(msgspec.Struct):
    name: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=MOST_SIZE)]], Meta(max_length=16)]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: Annotated[list[_Input], Meta(min_length=1, max_length=64)]
    id: Annotated[str, Meta(max_length=1000)] | None = None
    parameters: dict[str, Any] = {}
    outputs: Annotated[list[_Output], Meta(max_length=len(OUTPUTS))] = []


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    task: str | int
    input: Any


class _Rows(msgspec.Struct, forbid_unknown_fields=True):
    rows: Annotated[list[_Row], Meta(min_length=1)]
    top: Annotated[int, Meta(ge=1)] | None = None


_REQUEST = msgspec.json.Decoder(_Request)
_ROWS = msgspec.json.Decoder(_Rows)
_ANY = msgspec.json.Decoder()
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Question:
    """A request of the protocol: inputs of one task, the outputs that are wanted, and which of them as bytes."""

    inputs: Inputs
    id: str | None
    outputs: Mapping[str, bool]


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise RefusedError(in_a_sentence(sentence(error))) from None
    except RecursionError:
        raise RefusedError("the request has too many nested brackets") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RefusedError(f"the request is not JSON: {in_a_sentence(error)}") from None


# The protocol


def read_question(model: Model, body: bytes, header_length: str | None) -> Question:
    """A request for inference, of JSON alone or, with the length of its JSON, of JSON and tensors as bytes."""
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and int(header_length[:20]) <= len(body)):
            raise RefusedError(
                f"Inference-Header-Content-Length: expected 0 to {len(body)}, the length of the body, got "
                f"{shown(header_length)}"
            )
        length = int(header_length)
    # A body of tensors alone is the raw form, which says nothing of shapes.
    request = _decoded(_REQUEST.decode, body[:length])
    arrays = _arrays(model, request.inputs, memoryview(body)[length:])
    return Question(_as_inputs(model, arrays), request.id, _wanted(request))


def _arrays(model: Model, inputs: Sequence[_Input], rest: memoryview) -> dict[str, NDArray[Any]]:
    ports = {port.name: port for port in model.ports}
    found: dict[str, NDArray[Any]] = {}
    for given in inputs:
        port = ports.get(given.name)
        if port is None or given.name in found:
            raise RefusedError(
                f"inputs: expected {', '.join(map(shown, ports))}, each once, got {shown(given.name)} of {len(inputs)}"
            )
        where = f"inputs: {shown(given.name)}"
        if given.datatype != port.datatype:
            raise RefusedError(f"{where}: datatype: expected {port.datatype}, got {shown(given.datatype)}")
        _check_shape(where, port, given.shape)
        size = given.parameters.get("binary_data_size")
        if size is None:
            if given.data is msgspec.UNSET:
                raise RefusedError(f"{where}: expected data, or parameters.binary_data_size, got neither")
            found[given.name] = _from_lists(where, port, given.data, given.shape, flat=True)
            continue
        if given.data is not msgspec.UNSET:
            raise RefusedError(f"{where}: expected data or parameters.binary_data_size, got both")
        kind = np.dtype(_NUMPY[port.dtype])
        expected = prod(given.shape) * kind.itemsize
        if type(size) is not int or size != expected or size > len(rest):
            raise RefusedError(
                f"{where}: binary_data_size: expected {expected}, which its shape takes, with as many bytes after the "
                f"JSON, got {shown(str(size))} and {len(rest)} bytes"
            )
        found[given.name] = np.frombuffer(rest[:size], kind).reshape(given.shape)
        if port.dtype == torch.bool and found[given.name].view("u1").max() > 1:
            raise RefusedError(f"{where}: expected bytes 0 and 1, got others")
        rest = rest[size:]
    if len(rest):
        raise RefusedError(f"the request ends with {len(rest)} bytes that belong to no input")
    if len(found) < len(ports):
        raise RefusedError(f"inputs: expected {', '.join(map(shown, ports))}, got {', '.join(map(shown, found))}")
    return found


def _check_shape(where: str, port: Port, shape: Sequence[int]) -> None:
    if not shape or shape[0] < 1 or not fits(shape[1:], port.shape):
        expected = shape_text((None, *port.shape))
        raise RefusedError(
            f"{where}: shape: expected {expected} with at least 1 example, got {shown(str(list(shape)))}"
        )
    if not 0 < prod(shape[1:]) <= port.most:
        raise RefusedError(
            f"{where}: shape: expected 1 to {port.most} numbers in an example, got {shown(str(list(shape)))}"
        )


def _from_lists(where: str, port: Port, data: object, shape: Sequence[int], *, flat: bool) -> NDArray[Any]:
    """An array of this shape from lists in lists or, if ``flat``, also from one list of all its numbers."""
    level: list[Any] = [data]
    for depth, size in enumerate(shape):
        if set(map(type, level)) != {list}:
            raise RefusedError(f"{where}: data: expected lists in lists as its shape says, got something else")
        if flat and depth == 0 and len(level[0]) == prod(shape) and list not in map(type, level[0]):
            level = level[0]
            break
        if set(map(len, level)) != {size}:
            got = next(len(part) for part in level if len(part) != size)
            raise RefusedError(f"{where}: data: expected {size} entries along axis {depth} of its shape, got {got}")
        level = list(chain.from_iterable(level))
    return _from_list(where, port, level).reshape(shape)


def _from_list(where: str, port: Port, values: list[Any]) -> NDArray[Any]:
    known: tuple[type, ...] = (bool,) if port.dtype == torch.bool else (int,)
    known = (int, float) if port.dtype.is_floating_point else known
    if not set(map(type, values)) <= set(known):
        what = " or ".join(kind.__name__ for kind in known)
        wrong = next(value for value in values if type(value) not in known)
        raise RefusedError(f"{where}: data: expected numbers of type {what}, got {shown(repr(wrong))}")
    kind = np.dtype(_NUMPY[port.dtype])
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused with all that is
            return np.array(values, kind)
    except (OverflowError, ValueError):
        raise RefusedError(f"{where}: data: expected numbers that {port.datatype} holds, got larger ones") from None


def _as_inputs(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Inputs:
    """A batch, if all its inputs are finite and as many."""
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        raise RefusedError(f"inputs: expected as many examples in each, got {', '.join(map(str, sorted(counts)))}")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = ~np.isfinite(array.reshape(len(array), -1)).all(1)
            raise RefusedError(
                f"inputs: {shown(name)}: example {int(rows.nonzero()[0][0])}: expected finite numbers, got an infinite "
                "one or NaN"
            )
    tensors = [_tensor(arrays[port.name]) for port in model.ports]
    return assembled([port.name if model.by_name else None for port in model.ports], tensors)


def _tensor(array: NDArray[Any]) -> Tensor:
    """A copy of its own: the bytes of a request cannot be written."""
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))


def _wanted(request: _Request) -> dict[str, bool]:
    """The outputs that a request wants, and whether as bytes; all of them if it names none."""
    as_bytes = _flag(request.parameters, "binary_data_output", default=False)
    if not request.outputs:
        return dict.fromkeys(OUTPUTS, as_bytes)
    wanted: dict[str, bool] = {}
    for output in request.outputs:
        if output.name not in OUTPUTS or output.name in wanted:
            raise RefusedError(f"outputs: expected {', '.join(OUTPUTS)}, each at most once, got {shown(output.name)}")
        if output.parameters.get("classification"):
            raise RefusedError("outputs: classification is not known here; ask for the output class")
        wanted[output.name] = _flag(output.parameters, "binary_data", default=as_bytes)
    return wanted


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise RefusedError(f"parameters.{name}: expected true or false, got {shown(repr(value))}")
    return value


def write_answer(model: Model, question: Question, answer: Answer) -> tuple[bytes, dict[str, str]]:
    """The answer to a question of the protocol, and its headers."""
    found = {"logits": answer.logits, "probabilities": answer.probabilities, "class": answer.classes}
    outputs, blobs = [], []
    for name, as_bytes in question.outputs.items():
        array = found[name]
        kind = "INT64" if array.dtype.kind == "i" else f"FP{8 * array.itemsize}"
        output: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": kind}
        if as_bytes:
            blobs.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = array.reshape(-1).tolist()
        outputs.append(output)
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": outputs}
    if question.id is not None:
        head["id"] = question.id
    text = encode(head)
    if not blobs:
        return text, {"content-type": JSON}
    return b"".join([text, *blobs]), {"content-type": BINARY, HEADER_LENGTH: str(len(text))}


def metadata_of(model: Model) -> dict[str, Any]:
    """What the protocol tells of a model; ``parameters`` holds what it has no place for."""
    floats = DATATYPES[model.file.net.like.dtype]
    classes, facts = model.facts.classes, model.facts
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": "lps",
        "inputs": [
            {
                "name": port.name,
                "datatype": port.datatype,
                "shape": [-1, *(-1 if size is None else size for size in port.shape)],
            }
            for port in model.ports
        ],
        "outputs": [
            {"name": "logits", "datatype": floats, "shape": [-1, classes]},
            {"name": "probabilities", "datatype": floats, "shape": [-1, classes]},
            {"name": "class", "datatype": "INT64", "shape": [-1]},
        ],
        "parameters": {
            "task": facts.number,
            "classes": classes,
            "class_names": list(facts.class_names),
            "accuracy": facts.accuracy,
            "share": facts.share,
            "density": facts.density,
            "images": takes_images(model),
        },
    }


# The shorter forms


def takes_images(model: Model) -> bool:
    """Whether images become inputs of the task."""
    try:
        return isinstance(model.form, Form) and bool(model.form.image_size())
    except DataError:
        return False


def read_image(model: Model, body: bytes) -> Inputs:
    """An image as the input of a task."""
    where = Path("the image")  # it has no name
    try:
        if not isinstance(model.form, Form):
            raise RefusedError(f"the image: task {shown(model.name)} reads several inputs; send them as JSON", 415)
        image = decode_image(where, BytesIO(body), len(body), model.form.image_size())
        return prepared(where, image, model.form)
    except DataError as error:
        raise RefusedError(in_a_sentence(error)) from None


def read_list(model: Model, body: bytes) -> Inputs:
    """One example or several of a task, as lists; for several inputs an object of such lists by name."""
    value = _decoded(_ANY.decode, body)
    return _as_inputs(model, _by_port(model, value, "the request", several=None))


def _by_port(model: Model, value: object, where: str, *, several: bool | None) -> dict[str, NDArray[Any]]:
    """The arrays of a value that is one example or, if ``several`` is None, perhaps a list of them."""
    if len(model.ports) == 1 and not model.by_name:
        return {model.ports[0].name: _examples(where, model.ports[0], value, several)}
    names = {port.name for port in model.ports}
    if not isinstance(value, dict) or set(value) != names:
        raise RefusedError(
            f"{where}: expected an object with {', '.join(map(shown, sorted(names)))}, got something else"
        )
    return {port.name: _examples(where, port, value[port.name], several) for port in model.ports}


def _examples(where: str, port: Port, value: object, several: bool | None) -> NDArray[Any]:
    shape = _shape_of(value)
    if fits(shape, port.shape):
        value, shape = [value], [1, *shape]
    elif several is False or not fits(shape[1:], port.shape):
        one, more = shape_text(port.shape), shape_text((None, *port.shape))
        expected = one if several is False else f"{more} or {one}"
        raise RefusedError(f"{where}: {shown(port.name)}: expected lists of shape {expected}, got {shown(str(shape))}")
    _check_shape(f"{where}: {shown(port.name)}", port, shape)
    return _from_lists(f"{where}: {shown(port.name)}", port, value, shape, flat=False)


def _shape_of(value: object) -> list[int]:
    """That of lists in lists, by the first of each; of at most 17 axes."""
    shape: list[int] = []
    while isinstance(value, list) and len(shape) < 17:
        shape.append(len(value))
        value = value[0] if value else None
    return shape


@dataclass(frozen=True)
class Rows:
    """A batch with a task per row: for each task the places of its rows and their inputs."""

    count: int
    top: int | None
    parts: list[tuple[Model, list[int], Inputs]] = field(default_factory=list)


def read_rows(find: Callable[[str], Model], body: bytes) -> Rows:
    """A batch with a task per row; rows of one task and shape go together."""
    request = _decoded(_ROWS.decode, body)
    groups: dict[tuple[Any, ...], tuple[Model, list[int], list[dict[str, NDArray[Any]]]]] = {}
    models: dict[str, Model] = {}
    for place, row in enumerate(request.rows):
        name = str(row.task)
        try:
            model = models[name] = models.get(name) or find(name)
            arrays = _by_port(model, row.input, "input", several=False)
        except RefusedError as error:
            raise RefusedError(f"rows[{place}]: {error}", error.status) from None
        key = (model, *(array.shape for array in arrays.values()))
        _, places, parts = groups.setdefault(key, (model, [], []))
        places.append(place)
        parts.append(arrays)
    found = Rows(len(request.rows), request.top)
    for model, places, parts in groups.values():
        stacked = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        found.parts.append((model, places, _as_inputs(model, stacked)))
    return found


def read_top(text: str | None) -> int | None:
    """How many classes an answer is to name."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MOST_SIZE and len(text) <= 6):
        raise RefusedError(f"top: expected a whole number from 1, got {shown(text)}")
    return int(text)


def best_classes(model: Model, answer: Answer, top: int | None) -> list[list[dict[str, Any]]]:
    """For each example its best classes with their probabilities, five unless the request says how many."""
    count = min(top or 5, model.facts.classes)
    names = model.facts.class_names
    found = []
    for shares in answer.probabilities:
        best = np.argsort(-shares, kind="stable")[:count]
        found.append([_class(int(number), float(shares[number]), names) for number in best])
    return found


def _class(number: int, probability: float, names: Sequence[str]) -> dict[str, Any]:
    # Six digits are those that float32 has.
    said: dict[str, Any] = {"class": number, "probability": float(f"{probability:.6g}")}
    return {**said, "class_name": names[number]} if names else said


def write_classes(model: Model, answer: Answer, top: int | None) -> dict[str, Any]:
    """The answer to `/classify`."""
    return {"task": model.name, "version": model.version, "answers": best_classes(model, answer, top)}


def write_rows(rows: Rows, answers: Iterable[Answer]) -> dict[str, Any]:
    """The answer to `/infer`: an entry per row, in the order of the request."""
    found: list[dict[str, Any]] = [{}] * rows.count
    for (model, places, _), answer in zip(rows.parts, answers, strict=True):
        for place, classes in zip(places, best_classes(model, answer, rows.top), strict=True):
            found[place] = {"task": model.name, "version": model.version, "classes": classes}
    return {"rows": found}
