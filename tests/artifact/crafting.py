"""Files that are wrong in one place and right in all others: their checksums, hashes and digests fit what they hold.

Only a faulty or hostile writer makes such files. Everything here is written after docs/format.md and shares no code
with the package's own writer.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from time import process_time
from typing import Any

import lps
import torch
from safetensors import safe_open
from torch import Tensor

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e5m2: "F8_E5M2",
}

Header = dict[str, Any]


class Raw:
    """JSON that Python would not write by itself, as in 1e999."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Raw({self.text:.20})"


def to_json(value: Any) -> str:
    """The value as JSON, with all :class:`Raw` ones in it as they are."""
    raws: list[Raw] = []

    def token(raw: Raw) -> str:
        raws.append(raw)
        return f"@raw {len(raws) - 1}@"

    text = json.dumps(value, default=token)
    for index, raw in enumerate(raws):
        text = text.replace(f'"@raw {index}@"', raw.text)
    return text


def bytes_of(tensor: Tensor) -> bytes:
    """Row-major, little-endian."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class Crafted:
    """A model.lps in parts. ``stored`` replaces what the manifest says of single tensors, ``header`` edits the header.

    Of version 1 or 2, as the file that it was read from.
    """

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            self.manifest: dict[str, Any] = json.loads(file.metadata()["manifest"])
            self.tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.version = self.manifest["version"]
        del self.tensors["checksum"]
        self.manifest.pop("tensors", None)
        self.stored: dict[str, dict[str, Any]] = {}
        self.header: Callable[[Header], object] = lambda _: None
        self.text: str | None = None  # of the whole manifest, in place of the object
        self.data = b""  # more bytes after the tensors

    @property
    def part(self) -> dict[str, Any]:
        """The part of the manifest that describes the one network."""
        part: dict[str, Any] = self.manifest["parts"][0] if self.version == 2 else self.manifest
        return part

    @property
    def arguments(self) -> dict[str, Any]:
        """What the network is made with."""
        arguments: dict[str, Any] = self.part["architecture"]["arguments"]
        return arguments

    def content(self) -> bytes:
        """The bytes of the file, with the hashes that go with what it holds now."""
        manifest = self.manifest
        if self.version == 2 and "tensors" not in manifest:
            manifest = {**manifest, "tensors": {name: self._stored(name) for name in self.tensors}}
        text = to_json(manifest) if self.text is None else self.text
        digest = hashlib.sha256(text.encode())
        if self.version == 1:
            for name in sorted(self.tensors):
                tensor = self.tensors[name]
                digest.update(f"\n{name} {dtype_of(tensor)} {list(tensor.shape)}\n".encode() + bytes_of(tensor))
        checksum = torch.tensor(list(digest.digest()), dtype=torch.uint8)
        return safetensors({"checksum": checksum, **self.tensors}, {"manifest": text}, self.header) + self.data

    def _stored(self, name: str) -> dict[str, Any]:
        tensor = self.tensors[name]
        sha256 = hashlib.sha256(bytes_of(tensor)).hexdigest()
        entry = {"dtype": dtype_of(tensor), "shape": list(tensor.shape), "code": "raw", "sha256": sha256}
        return {**entry, **self.stored.get(name, {})}

    def redigest(self) -> None:
        """Give every task the digest of what the file holds now."""
        for number, task in enumerate(self.manifest["tasks"], 1):
            digest = hashlib.sha256()
            for name, tensor in self._run_with(number, task):
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode() + bytes_of(tensor))
            task["digest"] = digest.hexdigest()

    def _run_with(self, number: int, task: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """What task ``number`` runs with: composed weights, common or private tensors, its head."""
        part, old = self.part, self.version == 1
        for layer in part["layers"]:
            yield layer["name"], self._weight(number, layer["name"], layer["shape"])
        for entry in part["common"]:
            name = entry["name"]
            scope = f"{number}/private" if name in part.get("private", []) else "all/common"
            yield name, self.tensors[f"common/{name}" if old else f"net/{scope}/{name}"]
        names = ["weight", "bias"] if old else [entry["name"] for entry in task["head"]["tensors"]]
        for name in names:
            yield f"head.{name}", self.tensors[f"head/{number}/{name}" if old else f"net/{number}/head/{name}"]

    def _weight(self, number: int, layer: str, shape: list[int]) -> Tensor:
        owner = self.owner(layer)
        values = self._values(layer, owner)
        used = owner == number
        if number > 1:
            earlier = (owner > 0) & (owner < number)
            mask = self.tensors[f"mask/{number}/{layer}" if self.version == 1 else f"net/{number}/mask/{layer}"]
            used[earlier] = unpacked(mask, int(earlier.sum()))
        return torch.where(used, values + 0.0, torch.zeros_like(values)).reshape(shape)

    def owner(self, layer: str) -> Tensor:
        """The owner of every weight of a layer, in one row."""
        (size,) = (torch.Size(entry["shape"]).numel() for entry in self.part["layers"] if entry["name"] == layer)
        planes = self.tensors[f"owner/{layer}" if self.version == 1 else f"net/all/owner/{layer}"]
        owner = torch.zeros(size, dtype=torch.long)
        for bit, plane in enumerate(planes):
            owner += unpacked(plane, size).long() << bit
        return owner

    def _values(self, layer: str, owner: Tensor) -> Tensor:
        values = torch.zeros(len(owner), dtype=next(t.dtype for n, t in self.tensors.items() if "values" in n))
        if self.version == 1:
            values[owner > 0] = self.tensors[f"values/{layer}"]
        else:
            for number in range(1, len(self.manifest["tasks"]) + 1):
                values[owner == number] = self.tensors[f"net/{number}/values/{layer}"]
        return values


def unpacked(bits: Tensor, count: int) -> Tensor:
    """The first ``count`` flags; element 8 i + j is bit j of byte i."""
    return ((bits.reshape(-1, 1) >> torch.arange(8)) & 1).reshape(-1)[:count] != 0


def safetensors(
    tensors: dict[str, Tensor], metadata: dict[str, Any], edit: Callable[[Header], object] = lambda _: None
) -> bytes:
    """A safetensors file of our own making, whose header can be edited before it is written."""
    header: Header = {"__metadata__": metadata}
    data = b""
    # The widest first, as safetensors aligns them.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        content = bytes_of(tensor)
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += content
    edit(header)
    return with_header(to_json(header).encode(), data)


def with_header(header: bytes, data: bytes, length: int | None = None) -> bytes:
    """Length, header (padded to eight bytes) and data; the length may lie."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def state_file(manifest: str, tensors: dict[str, Tensor], digest: str | None = None) -> bytes:
    """The state of a task being learnt, with the checksum that goes with it."""
    sha256 = hashlib.sha256(manifest.encode(errors="surrogatepass"))
    for tensor in tensors.values():
        sha256.update(f"\n{tensor.dtype} {list(tensor.shape)}\n".encode() + bytes_of(tensor))
    return safetensors(tensors, {"manifest": manifest, "sha256": digest or sha256.hexdigest()})


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value in an object, at any depth."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in pairs:
        yield (*before, key)
        yield from places(item, (*before, key))


def put(values: Any, keys: tuple[Any, ...], value: Any) -> None:
    """Replace one value in an object."""
    for key in keys[:-1]:
        values = values[key]
    values[keys[-1]] = value


def drop(values: Any, keys: tuple[Any, ...]) -> None:
    """Remove one value from an object."""
    for key in keys[:-1]:
        values = values[key]
    del values[keys[-1]]


def get(values: Any, keys: tuple[Any, ...]) -> Any:
    """One value in an object."""
    for key in keys:
        values = values[key]
    return values


# Above what the process has when an attempt begins: a bomb is refused by the system before it hurts the machine.
_MEMORY_LIMIT = 2 << 30


def serve(warm: str) -> None:
    """Attempt what lines on the standard input ask for, each in a process of its own, and print what came of it.

    The child processes are forks, so that they need not import torch again: no thread may run beside this one.
    """
    lps.load(warm)
    for line in sys.stdin:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writer, json.dumps(_attempt(warm, **json.loads(line))).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:  # noqa: PTH123 a pipe
            answer = file.read()
        _, status = os.waitpid(child, 0)
        print(
            answer.decode()
            or json.dumps({"error": f"killed, status {status}", "message": "", "seconds": 30, "megabytes": 0}),
            flush=True,
        )


def _attempt(warm: str, module: str, arguments: list[str]) -> dict[str, Any]:
    """Load a file, or run a command of the package; says what it cost and how it ended."""
    lps.load(warm)  # touches the pages that the fork did not take over
    run = importlib.import_module(module).main if module else lambda paths: lps.load(*paths) and 0
    error, shown = "", io.StringIO()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY_LIMIT,) * 2)
    signal.alarm(30)  # then it is killed
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
    try:
        with redirect_stderr(shown), redirect_stdout(io.StringIO()):
            error = str(run(arguments))  # an exit code
        message = shown.getvalue()
    except BaseException as raised:  # whatever it is, the test is to see it
        error, message = type(raised).__name__, str(raised)
    seconds = process_time() - begin
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"error": error, "message": message[:2000], "seconds": seconds, "megabytes": megabytes}
