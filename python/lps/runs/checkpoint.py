"""The state of a task being learnt, on disk: safe against a kill at any moment, and without pickle.

The directory holds ``state-<number>.safetensors``. A new file is written atomically, read back and compared before the
previous one is deleted; the newest complete one is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from lps.artifact.atomic import write_atomically
from lps.errors import ConfigError, FileFormatError, LPSError, WriteError, in_a_sentence
from lps.options import shown
from lps.reading import read_bytes, safetensors_header

FORMAT = "learn-prune-share state"
VERSION = 2  # 1 had no counts of the solver

State = dict[str, Any]

_DIGEST = "sha256"  # of everything else in the file


class Checkpoint:
    """Keeps the state of learning in ``directory``, every ``every`` seconds.

    ``stop`` may be set at any time, for instance by a signal handler: the current step is finished, the state is saved,
    and ``learn`` raises :class:`StoppedError`.
    """

    def __init__(self, directory: str | Path, every: float = 60.0) -> None:
        if not (every > 0 and isfinite(every)):
            raise ConfigError(f"checkpoint: every: expected seconds above 0, got {every}")
        self.directory = Path(directory)
        self.every = every
        self.stop = False
        self._saved = monotonic()

    def due(self) -> bool:
        """Whether it is time to save."""
        return self.stop or monotonic() - self._saved >= self.every

    def save(self, state: State) -> None:
        """Write the state; the previous one is deleted once this one has been verified."""
        content = encode(state)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"{self.directory}: cannot be made: {error.strerror}; choose another directory") from None
        before = self._files()
        number = _number(before[-1]) + 1 if before else 1
        path = self.directory / f"state-{number}.safetensors"
        write_atomically(path, content)
        if path.read_bytes() != content:
            raise LPSError(f"{path}: does not read back as written; check the disk; the previous state is kept")
        for old in before:
            old.unlink()
        self._saved = monotonic()

    def load(self) -> State | None:
        """The newest complete state; None if there is no file."""
        problem: FileFormatError | None = None
        for path in reversed(self._files()):
            try:
                return decode(read_bytes(path))
            except FileFormatError as error:
                reason = f"{in_a_sentence(error)}; delete it to learn the task from its start"
            except (OSError, MemoryError) as error:
                reason = f"cannot be read: {getattr(error, 'strerror', None) or 'not enough memory'}; check the file"
            problem = problem or FileFormatError(f"{path}: {reason}")
        if problem is not None:
            raise problem
        return None

    def exists(self) -> bool:
        """Whether there is a state to resume from."""
        return bool(self._files())

    def clear(self) -> None:
        """Delete all states: the task is learnt and saved."""
        for path in self._files():
            path.unlink()
        with suppress(OSError):  # it may not exist, or hold other files
            self.directory.rmdir()

    def _files(self) -> list[Path]:
        """State files, the oldest first."""
        files = [path for path in self.directory.glob("state-*.safetensors") if _number(path)]
        return sorted(files, key=_number)


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("state-")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def encode(state: State) -> bytes:
    """The state as bytes of a file: tensors as safetensors, everything else as JSON in its metadata."""
    tensors: dict[str, Tensor] = {}
    manifest = json.dumps({"format": FORMAT, "version": VERSION, "state": _plain("state", state, tensors)})
    digest = _digest(manifest, tensors.values())
    return to_safetensors(tensors, metadata={"manifest": manifest, _DIGEST: digest})


def decode(content: bytes) -> State:
    """The state from the bytes that :func:`encode` returned; anything else is refused."""
    try:
        metadata = safetensors_header(BytesIO(content), len(content))
        tensors = from_safetensors(content)
        manifest, digest = metadata["manifest"], metadata[_DIGEST]
        values = json.loads(manifest)  # with NaN, which figures of a report may be
        kind, version = values["format"], values["version"]
        if kind != FORMAT or type(version) is not int or version != VERSION:
            raise FileFormatError(f"expected {FORMAT}, version {VERSION}, got {shown(kind)}, {shown(version)}")
        names = [f"{index:06d}" for index in range(len(tensors))]
        ordered = [tensors[name] for name in names]
        if digest != _digest(manifest, ordered):
            raise FileFormatError("the checksum does not match, so the file is damaged")
        unused = set(range(len(ordered)))
        state: State = _restored(values["state"], ordered, unused)
        if unused or not isinstance(state, dict):
            raise ValueError("it holds no state, or tensors that are not part of it")
    except FileFormatError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, RecursionError, RuntimeError) as error:
        raise FileFormatError(f"is not a whole state file ({in_a_sentence(error)})") from None
    return state


def number_of(state: State) -> int:
    """The number of the task that a state belongs to."""
    owner = state.get("belongs_to")
    number = owner.get("number") if isinstance(owner, dict) else None
    if type(number) is not int:
        raise FileFormatError("resume: the state is not that of a task; delete it to learn the task from its start")
    return number


def fitting(where: str, values: object, like: Tensor) -> Tensor:
    """The values that a state holds for a tensor; those of another tensor are refused."""
    if not isinstance(values, Tensor) or (values.shape, values.dtype) != (like.shape, like.dtype):
        got = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise FileFormatError(f"{where}: expected {like.dtype} {list(like.shape)}, got {got}")
    return values


def _digest(manifest: str, tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256(manifest.encode())
    for tensor in tensors:
        digest.update(f"\n{tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(where: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON: every tensor, tuple and dict becomes an object whose one key names its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        # A copy: safetensors refuses tensors that share memory.
        tensors[f"{len(tensors):06d}"] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, list | tuple):
        items = [_plain(f"{where}[{index}]", item, tensors) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"dict": [[key, _plain(f"{where}.{key}", item, tensors)] for key, item in value.items()]}
    got = type(value).__name__
    raise ConfigError(f"checkpoint: {where}: expected numbers, texts, tensors and collections of them, got {got}")


def _restored(value: Any, tensors: list[Tensor], unused: set[int]) -> Any:
    """The value that :func:`_plain` made JSON of; every tensor is used once."""
    if isinstance(value, list):
        return [_restored(item, tensors, unused) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        if type(content) is not int or content not in unused:
            raise ValueError("a tensor that is not there, or stands twice")
        unused.remove(content)
        return tensors[content]
    if kind not in ("tuple", "dict") or not isinstance(content, list):
        raise ValueError(f"{kind} of {type(content).__name__} is not a kind of value")
    if kind == "tuple":
        return tuple(_restored(item, tensors, unused) for item in content)
    items = {key: _restored(item, tensors, unused) for key, item in map(tuple, content)}
    if len(items) < len(content) or not all(isinstance(key, str | int) for key in items):
        raise ValueError("a key stands twice, or is not a text or a whole number")
    return items
