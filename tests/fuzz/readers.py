"""Every reader of the package as a function of bytes, and what must hold for all bytes.

A reader returns or raises the package's own error with a sentence on one line, and takes little memory: at most twice
the size of the file, the arrays that its caller asked for, and 100 MB.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lps
import torch
from lps.artifact.facts import facts_of
from lps.artifact.read import load_tensors
from lps.data import cifar, notmnist, omniglot, rf, stream, svhn, tinyimagenet
from lps.data.base import Raw
from lps.data.files import read_file, read_idx, read_members
from lps.data.inputs import ArrayFile, Form, ImageFile, Named, NamedFile
from lps.data.permuted import Permute
from lps.data.trees import ZipTree
from lps.errors import LPSError
from lps.runs import checkpoint
from lps.runs.directory import RESULTS, read_records
from lps.runs.settings import read_settings, settings_from
from lps.task import Learnt

from tests.fuzz import memory, mutators
from tests.fuzz.mutators import Mutator

CORPUS = Path(__file__).parent / "corpus"
# In memory where there is such a place: writing the files would take longer than reading them.
_PLACE = tempfile.TemporaryDirectory(prefix="lps-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
FOLDER = Path(_PLACE.name)

FLOATS = Form((12,), torch.float32, None)
TOKENS = Form((None,), torch.int64, None)
NAMED = Named({"ids": TOKENS, "mask": Form((None,), torch.int32, None)}, by_name=True)
DIGITS = Form((64,), torch.float32, Raw((64,), (1, 8, 8), 16, Permute(None, 16)))
RADIO = Form((2, 8), torch.float32, Raw((2, None), None, 255, rf.UnitPower(0, 8)))
COLOUR = Form((3, 32, 32), torch.float32, None)

# Two images, as the official archive of CIFAR-10 holds 50,000.
RECORDS = 2 * 3073
MEMBERS = {"cifar-10-batches-bin/data_batch_1.bin": RECORDS}


@dataclass(frozen=True)
class Reader:
    """``read`` takes the path of a file; ``needs`` is the memory of the arrays that it is asked for."""

    read: Callable[[Path], object]
    mutate: Mutator
    name: str = "file"
    needs: int = 0


def check(reader: Reader, data: bytes) -> None:
    """Let a reader read these bytes; an exception of any other kind than the package's own goes through."""
    path = FOLDER / reader.name
    path.write_bytes(data)
    most = 2 * len(data) + reader.needs + memory.ALLOWED
    taken = _taken(reader, path)
    if taken > most:  # it may be the peak of an earlier call
        memory.forget()
        path.write_bytes(data)
        taken = _taken(reader, path)
    if taken > most:
        raise AssertionError(f"took {taken:,} bytes of memory for a file of {len(data):,}; expected at most {most:,}")


def _taken(reader: Reader, path: Path) -> int:
    before = memory.resident()
    reader.read(path)
    return memory.grown(before)


def refusable(call: Callable[[], object]) -> None:
    """Call a reader; a refusal must be one sentence on one line."""
    try:
        call()
    except LPSError as error:
        if len(str(error).splitlines()) != 1:
            raise AssertionError(f"expected a sentence on one line, got {error!s:.1000}") from error


def _idx(path: Path) -> None:
    packed = path.rename(path.with_suffix(".gz")) if path.read_bytes()[:2] == b"\x1f\x8b" else path
    refusable(lambda: read_idx(packed, (3, 28, 28)))


def _cifar(path: Path) -> None:
    start = path.read_bytes()[:2]
    if start == b"PK":
        refusable(lambda: cifar.read_sheets(path, 100, 10))
    elif start == b"\x1f\x8b":
        refusable(lambda: [cifar.records(data, path, (10,)) for data in read_members(path, MEMBERS).values()])
    else:
        refusable(lambda: cifar.records(read_file(path, RECORDS), path, (10,)))


def _model(path: Path) -> None:
    refusable(lambda: lps.load(path))
    refusable(lambda: facts_of(load_tensors(path)))


def _npz(path: Path) -> None:
    refusable(lambda: rf.read(path, 2))
    refusable(lambda: rf.read_captures(path))
    refusable(lambda: _first(NamedFile(path, NAMED)))


LEARNT = [Learnt("t", 2, "ab")] * 2  # whose record is in the corpus


def _npy(path: Path) -> None:
    for form in (FLOATS, DIGITS, RADIO, TOKENS):
        refusable(lambda form=form: _first(ArrayFile(path, form)))  # type: ignore[misc]


def _first(file: ArrayFile | NamedFile) -> None:
    file.read(0, min(len(file), 64))


def _state(path: Path) -> None:
    refusable(lambda: checkpoint.decode(path.read_bytes()))


def _yaml(path: Path) -> None:
    refusable(lambda: settings_from(read_settings(path)))


def _zip(path: Path) -> None:
    """As of TinyImageNet and of Omniglot, with all that is read of them."""

    def read() -> None:
        tree = ZipTree(path)
        for name in tree.names()[:20]:
            refusable(lambda name=name: tree.read(name, 2**14))  # type: ignore[misc]
            refusable(lambda name=name: omniglot.read_drawing(tree, name))  # type: ignore[misc]
            refusable(lambda name=name: tinyimagenet.read_images(tree, [[name]]))  # type: ignore[misc]
        refusable(lambda: tinyimagenet.class_names(tree))
        refusable(lambda: tinyimagenet.test_images(tree, ["n1", "n2"]))
        refusable(lambda: omniglot.characters(tree, 1))

    refusable(read)


def _folder(path: Path) -> None:
    """The file lists what is in a folder of tasks: an image, text, a pipe or a link each, and its path."""
    root = FOLDER / "tasks"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for line in path.read_bytes().split(b"\n")[:40]:
        kind, _, place = line.partition(b" ")
        parts = [part[:60] for part in place.replace(b"\0", b"").split(b"/")[:5] if part not in (b"", b".", b"..")]
        if not parts:
            continue
        target = root.joinpath(*map(os.fsdecode, parts))
        if any(above.is_symlink() for above in (target, *target.parents)) or target.exists():
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == b"link":
                target.symlink_to("..")
            elif kind == b"pipe":
                os.mkfifo(target)
            else:
                target.write_bytes(IMAGE if kind == b"image" else kind)
        except OSError:  # two entries that exclude each other
            continue
    refusable(lambda: list(stream("folder", data_dir=root, options={"image_size": 16})))


IMAGE = (CORPUS / "image" / "rgb.png").read_bytes()

READERS = {
    "model": Reader(_model, mutators.model),
    "state": Reader(_state, mutators.state),
    "idx": Reader(_idx, mutators.gzipped, needs=3 * 784),
    "cifar": Reader(_cifar, mutators.archive, needs=100 * 3072),
    "npz": Reader(_npz, mutators.zipped),
    "npy": Reader(_npy, mutators.npy),
    "image": Reader(lambda path: refusable(lambda: ImageFile(path, COLOUR).read(0, 1)), mutators.image),
    "mat": Reader(lambda path: refusable(lambda: svhn.read(path, 2)), mutators.matlab, needs=2 * 3072),
    "zip": Reader(_zip, mutators.zipped),
    "letters": Reader(lambda path: refusable(lambda: notmnist.read(path, 10)), mutators.archive),
    "folder": Reader(_folder, mutators.lines),
    "yaml": Reader(_yaml, mutators.json_text),
    "json": Reader(
        lambda path: refusable(lambda: read_records(path.parent, LEARNT, forgets=False)), mutators.json_text, RESULTS
    ),
}
