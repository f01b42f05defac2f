"""What a ``model.lps`` holds: names of its tensors and keys of its manifest, once for writer and reader.

docs/format.md describes the same in words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from lps.errors import FileFormatError
from lps.metadata import sentence
from lps.observed import dtype_name
from lps.options import shown
from lps.partition import MOST_EXCLUDED
from lps_kernels.ops.bits import packed_size

FORMAT = "learn-prune-share"
VERSION = 3
BEFORE_FROZEN = 2  # the version of files without frozen parameters
METHOD = "lps"
PART = "net"  # the one network of the method lps; other methods may have several
CHECKSUM = "checksum"  # the tensor with the sha256 of the manifest, which holds that of every other tensor
EVERY_TASK = "all tasks"  # whose a tensor is that is not one task's

# What a tensor may be; every reader of the format has to know these.
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)

MOST_METADATA = 2**20  # bytes of JSON
MOST_ARCHITECTURE = 2**14  # bytes of JSON; two of them may stand for a layer of the network

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Positive = Annotated[int, Meta(ge=1, lt=2**62)]
Shape = Annotated[list[Count], Meta(max_length=32)]

T = TypeVar("T")


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """An object of the manifest: exactly the keys that it declares."""


class _Shaped(Record):
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        """As in ``float32 [2, 3]``."""
        return f"{self.dtype} {self.shape}"


class Form(_Shaped):
    """A tensor of the network."""

    name: str


class Layer(Form):
    """A prunable weight: ``spent`` is the sum of the tasks' alpha, ``init_std`` the spread that fresh weights get."""

    spent: Annotated[float, Meta(ge=0, le=2)]  # above 1 where few groups round down: below 1 + 0.5 / groups
    init_std: Annotated[float, Meta(ge=0, lt=1e30)]


class Made(Record):
    """How to make a backbone: ``lps.models.create(name, **arguments)``."""

    name: str
    arguments: dict[str, Any]


class Part(Record, omit_defaults=True):
    """One network. ``private`` are the names in ``common`` that every task has a copy of its own of, ``frozen`` those
    that no task has learnt.
    """

    name: str
    architecture: Made | None
    features: Positive
    pattern: str
    sharing: str
    exclude: Annotated[list[Annotated[str, Meta(max_length=MOST_EXCLUDED)]], Meta(max_length=MOST_EXCLUDED)]
    norms: str
    layers: list[Layer]
    common: list[Form]
    private: list[str]
    frozen: list[str] = []  # since version 3; a file in which nothing is frozen is one of version 2


class HeadEntry(Record):
    """A head: ``linear`` is an nn.Linear from the features to the classes; the user has to make any other."""

    kind: Literal["linear", "custom"]
    tensors: list[Form]


class TaskEntry(Record):
    """One task and the part that answers it."""

    name: str
    classes: Positive
    class_names: list[str]
    digest: str
    part: str
    head: HeadEntry


class Stored(_Shaped):
    """A tensor of the file: dtype and shape as stored, how it is coded, and the sha256 of its bytes in the file."""

    code: str
    sha256: str


class Manifest(Record):
    """All of the file that is not a tensor; without ``tensors`` it describes a state_dict."""

    format: str
    version: int
    written_by: str
    method: str
    parts: list[Part]
    tasks: list[TaskEntry]
    metadata: dict[str, Any]
    tensors: dict[str, Stored]


_NONE = msgspec.Raw(b"null")


class _HeadingOfPart(msgspec.Struct):
    architecture: msgspec.Raw = _NONE


class _Heading(msgspec.Struct):
    """What the manifests of all versions have, with the values that may be of any form left as text."""

    format: Any = None
    version: Any = None
    metadata: msgspec.Raw = _NONE
    architecture: msgspec.Raw = _NONE  # of version 1
    parts: list[_HeadingOfPart] = []


def version_of(text: str) -> int:
    """The version of a manifest that this package can read; refuses one that would take far more memory than itself."""
    heading = decoded(text, _Heading)
    if heading.format != FORMAT:
        refuse(f"not a model.lps, because its manifest does not say format {FORMAT}")
    version = heading.version
    if type(version) is not int or version < 1:
        refuse(f"manifest.version: expected 1 to {VERSION}, got {shown(repr(version))}")
    if version > VERSION:
        refuse(
            f"format version {shown(version)} was written by a newer version; update the package, which reads {VERSION}"
        )
    _check_length("metadata", heading.metadata, MOST_METADATA)
    for made in (heading.architecture, *(part.architecture for part in heading.parts)):
        _check_length("architecture", made, MOST_ARCHITECTURE)
    return version


def _check_length(what: str, value: msgspec.Raw, most: int) -> None:
    """Before it is decoded: values such as [] take up to thirty times the memory of their text."""
    if len(bytes(value)) > most:
        refuse(f"manifest.{what}: expected at most {most:,} bytes of JSON, got {len(bytes(value)):,}")


def decoded(text: str, kind: type[T]) -> T:
    """The manifest as this kind of object, with all its keys and types checked."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        refuse(f"manifest: {sentence(error)}")
    except (ValueError, RecursionError) as error:
        refuse(f"the manifest is not JSON: {error}")


class Names:
    """Names of the tensors of one part: part / "all" or the number of a task / kind / name in the network."""

    def __init__(self, part: str) -> None:
        self.part = part

    def owner(self, layer: str) -> str:
        """Who owns each weight."""
        return f"{self.part}/all/owner/{layer}"

    def common(self, name: str) -> str:
        """A tensor that no task owns."""
        return f"{self.part}/all/common/{name}"

    def values(self, task: int, layer: str) -> str:
        """The weights that the task owns."""
        return f"{self.part}/{task}/values/{layer}"

    def mask(self, task: int, layer: str) -> str:
        """Which weights of earlier tasks it reuses."""
        return f"{self.part}/{task}/mask/{layer}"

    def private(self, task: int, name: str) -> str:
        """Its copy of a private tensor."""
        return f"{self.part}/{task}/private/{name}"

    def head(self, task: int, name: str) -> str:
        """A tensor of its head."""
        return f"{self.part}/{task}/head/{name}"


def belongs_to(name: str) -> str:
    """Whose a tensor of the file is: "task 3" or "all tasks"."""
    scope = name.split("/")[1:2]
    return f"task {scope[0]}" if scope and scope != ["all"] else EVERY_TASK


def owner_form(size: int, tasks: int) -> str:
    """The planes of an owner map: bit j of every owner, for all bits that the number of tasks needs."""
    return f"uint8 [{tasks.bit_length()}, {packed_size(size)}]"


def expected_tensors(part: Part, tasks: Sequence[TaskEntry], owned: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Names and forms of all tensors of a part; ``owned`` says of each layer how many weights each task owns."""
    names, forms = Names(part.name), {}
    private = set(part.private)
    for layer in part.layers:
        counts = owned[layer.name]
        forms[names.owner(layer.name)] = owner_form(prod(layer.shape), len(tasks))
        for number, count in enumerate(counts, 1):
            forms[names.values(number, layer.name)] = f"{layer.dtype} [{count}]"
        for number in range(2, len(tasks) + 1):  # nothing was there for task 1 to reuse
            forms[names.mask(number, layer.name)] = f"uint8 [{packed_size(sum(counts[: number - 1]))}]"
    for tensor in part.common:
        if tensor.name not in private:
            forms[names.common(tensor.name)] = str(tensor)
    for number, task in enumerate(tasks, 1):
        forms |= {names.private(number, tensor.name): str(tensor) for tensor in part.common if tensor.name in private}
        forms |= {names.head(number, tensor.name): str(tensor) for tensor in task.head.tensors}
    return forms


def form(tensor: Tensor) -> str:
    """Dtype and shape, as in ``float32 [2, 3]``."""
    return f"{dtype_name(tensor)} {list(tensor.shape)}"


def sha256(tensor: Tensor) -> str:
    """Of the bytes of a contiguous tensor."""
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def compare(what: str, expected: Mapping[str, str], got: Mapping[str, str], where: str = "") -> None:
    """Refuse names or forms that differ from the expected ones."""
    for name, wanted in expected.items():
        if got.get(name) != wanted:
            refuse(f"{where}expected {what} {name} to be {wanted}, got {got.get(name, 'none')}")
    for name, surplus in got.items():
        if name not in expected:
            refuse(f"{where}expected no {what} {name}, got {surplus}")


def check_form(tensors: Mapping[str, Tensor], name: str, expected: str) -> Tensor:
    """The tensor of this name, if it has this form."""
    compare("tensor", {name: expected}, {name: form(tensors[name])} if name in tensors else {})
    return tensors[name]


def refuse(message: str) -> NoReturn:
    """The one sentence that says what is wrong with a file."""
    raise FileFormatError(message)
