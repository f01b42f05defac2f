"""The files that are served, their tasks as models, and the new version of a file that was replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import torch

from lps.artifact.read import load
from lps.data.inputs import Forms
from lps.deploy.classify import form_of
from lps.deploy.extraction.trace import argument_names
from lps.deploy.server.errors import RefusedError
from lps.deploy.trial import use_signature
from lps.errors import ConfigError, LPSError, in_a_sentence
from lps.inventory import TaskSummary
from lps.lifelong import Lifelong
from lps.names import number_of
from lps.observed import dtype_of
from lps.options import shown
from lps.reading import open_regular
from lps.signature import Input
from lps.task import Head

# The protocol's names of dtypes. It has none for complex numbers.
DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
# An axis that had several sizes in training may be this many times as long as the longest of them.
MOST_TIMES = 4


@dataclass(frozen=True)
class Port:
    """One input of a task, without the batch; None in ``shape`` stands for any size, up to ``most`` numbers in all."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]
    most: int

    @property
    def datatype(self) -> str:
        """The protocol's name of the dtype."""
        return DATATYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Model:
    """One task of one version of a file. Its version is the task's digest: the same one gives the same answers."""

    name: str
    number: int
    version: str
    facts: TaskSummary
    ports: tuple[Port, ...]
    form: Forms  # how images become inputs
    file: ServedFile

    @property
    def by_name(self) -> bool:
        """Whether the network takes its inputs by their names."""
        return self.file.by_name[self.number]


@dataclass(eq=False)
class ServedFile:
    """A loaded file; a replaced file is another one, and this lives on until its last request is answered."""

    path: Path
    net: Lifelong
    bytes: int  # of its weights, as one dense network has them
    models: list[Model] = field(default_factory=list)
    by_name: dict[int, bool] = field(default_factory=dict)


Identity = tuple[int, int, int]


def identity_of(path: Path) -> Identity | None:
    """What changes when a file is replaced or written; None while there is none."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


@dataclass(frozen=True)
class Source:
    """How a file is loaded: everything but the file that the user's command line says."""

    backbone: str | None = None
    heads: Head | None = None
    input_shape: str | None = None
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))


def load_file(path: Path, prefix: str, source: Source) -> ServedFile:
    """The file, with every task ready to answer; a file that is not whole, or that cannot run, is refused."""
    net = _load_copy(path, source).to(source.device)
    net.require_backbone()
    weights = sum(tensor.nbytes for tensor in net.backbone.parameters())
    file = ServedFile(path, net, weights)
    names = [task.name for task in net.learnt]
    for facts in net.tasks:
        number = facts.number
        signature = use_signature(net, number, path, source.input_shape)
        form = form_of(net, number, signature)
        ports = tuple(map(partial(_port, net), argument_names(signature), signature))
        file.by_name[number] = signature[0].name is not None
        own = facts.name if names.count(facts.name) == 1 else str(number)  # in files from before names had to differ
        model = Model(prefix + own, number, net.learnt[number - 1].digest, facts, ports, form, file)
        file.models.append(model)
    return file


def _load_copy(path: Path, source: Source) -> Lifelong:
    """The network from a copy of the file: whoever shortens a file that is being read would end the process."""
    with TemporaryDirectory(prefix="lps-serve-") as folder:
        copy = Path(folder) / "model.lps"
        try:
            with open_regular(path) as file, copy.open("xb") as to:
                shutil.copyfileobj(file, to, 1 << 20)
        except OSError as error:
            reason = error.strerror or error
            raise LPSError(f"load: {in_a_sentence(path)}: could not be read: {reason}; check the path") from None
        try:
            return load(copy, source.backbone, source.heads)
        except LPSError as error:
            raise type(error)(str(error).replace(in_a_sentence(copy), in_a_sentence(path))) from None


def _port(net: Lifelong, name: str, kind: Input) -> Port:
    dtype = net.like.dtype if kind.is_float else dtype_of(kind)
    if dtype not in DATATYPES:
        raise ConfigError(f"inputs: {name}: expected a type that the protocol knows, got {kind.dtype}")
    return Port(name, dtype, kind.sizes(), prod(kind.shape) * (MOST_TIMES if kind.dynamic else 1))


class Catalog:
    """The files in service. With several, the tasks of each have its name before their own: ``file.task``."""

    def __init__(self, paths: Sequence[Path], source: Source) -> None:
        self._source = source
        self._stems = {path: f"{path.stem}." if len(paths) > 1 else "" for path in paths}
        if len(set(self._stems.values())) < len(paths):
            raise ConfigError(f"FILE: expected files whose names differ, got {shown(', '.join(map(str, paths)))}")
        self._seen = {path: identity_of(path) for path in paths}
        self._files = {path: load_file(path, self._stems[path], source) for path in paths}
        self._check_names(self._files)
        self._lock = Lock()  # of reloading

    @property
    def files(self) -> list[ServedFile]:
        """Those in service now."""
        return list(self._files.values())

    def models(self) -> Iterator[Model]:
        """Every task in service."""
        for file in self.files:
            yield from file.models

    def find(self, name: str, version: str | None = None) -> Model:
        """The task of this name or number, and of this version if one is given; 404 if there is none."""
        found = self._find(name)
        if version is not None and version != found.version:
            raise RefusedError(
                f"version: task {shown(name)} has the version {found.version}, got {shown(version)}; ask for its "
                "metadata again",
                404,
            )
        return found

    def _find(self, name: str) -> Model:
        reasons = []
        for path, file in list(self._files.items()):
            stem = self._stems[path]
            for model in file.models:
                if model.name == name:
                    return model
            if name.startswith(stem):
                try:
                    number = number_of(file.net.learnt, name.removeprefix(stem))
                except ConfigError as error:
                    reasons.append(str(error).removeprefix("Lifelong: "))
                    continue
                if 1 <= number <= len(file.models):
                    return file.models[number - 1]
                reasons.append(f"task: expected 1 to {len(file.models)}, got {shown(name)}")
        known = ", ".join(stem.removesuffix(".") for stem in self._stems.values())
        raise RefusedError(
            reasons[0] if reasons else f"task: expected file.task with a file of {known}, got {shown(name)}", 404
        )

    def changed(self) -> Iterator[Path]:
        """The files that are others than those that were last looked at."""
        for path, seen in self._seen.items():
            now = identity_of(path)
            if now is not None and now != seen:
                yield path

    def reload(self, path: Path) -> tuple[ServedFile, ServedFile]:
        """Put the new version of a file in service; returns the old and the new one. A file that is refused leaves the
        old one in service, and is not looked at again until it changes.
        """
        with self._lock:
            self._seen[path] = identity_of(path)
            new = load_file(path, self._stems[path], self._source)
            old = self._files[path]
            files = {**self._files, path: new}
            self._check_names(files)
            self._files = files  # at once: who has found a task before keeps it
            return old, new

    @staticmethod
    def _check_names(files: dict[Path, ServedFile]) -> None:
        names = [model.name for file in files.values() for model in file.models]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"FILE: {shown(name)} would be the name of several tasks; rename one (lps edit)")
