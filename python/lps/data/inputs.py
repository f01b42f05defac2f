"""Inputs to classify: arrays and images from the user's own files, prepared as a task's network reads them.

Files may be cut short, damaged or something else; each is checked, nothing is unpickled, and what cannot be used gives
a one-sentence :class:`DataError`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from lps.batch import tensors_of, together
from lps.data.base import Raw
from lps.data.files import REPLACE, AnyOf, Bytes, fits, read_npz, shape_text, unlike, unreadable
from lps.data.npy import read_header
from lps.errors import DataError
from lps.options import one_line, shown
from lps.reading import open_regular, size_of
from lps_kernels.calls import Inputs

CHECK_PATH = "check the path"
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
WIDE_MODES = ("I", "F")  # more than eight bits per channel, which Pillow would clip

# Those that people have; each is a decoder less to trust. Of those left out, EPS would start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Decoding may take twice the file's size and this many bytes: 12 megapixels, more in files that are not mostly empty.
MOST_MEMORY = 96_000_000
FLOATS, WHOLE = AnyOf("f", "floats"), AnyOf("iub", "whole numbers")
MOST_SIDE = 2**16 - 1  # of an image in pixels


@dataclass(frozen=True)
class Form:
    """What a task's network reads: examples of this shape and dtype, and how bytes become such, if that is known.

    None in the shape stands for any size.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    raw: Raw | None

    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width that an image is brought to."""
        if self.raw is not None and self.raw.image is not None:
            return self.raw.image
        known = [size for size in self.shape if size is not None]
        if self.raw is not None or len(self.shape) != 3 or len(known) != 3 or known[0] not in MODES:
            raise DataError(
                f"images: the task reads inputs of shape {shape_text(self.shape)}, not images of 1 or 3 channels; "
                "pass an .npy file"
            )
        channels, height, width = known
        return channels, height, width

    @property
    def floats(self) -> bool:
        """Whether examples are floats, and not whole numbers such as tokens."""
        return self.dtype.is_floating_point

    def from_bytes(self, where: Path, values: Tensor) -> Tensor:
        """Prepare bytes (or values on their scale) of the task's data files, [batch, ...]."""
        assert self.raw is not None
        if float(values.max()) > self.raw.top:
            raise unlike(where, "bytes", f"0 to {self.raw.top}", int(values.max()), "use the scale of the data files")
        shape = [-1 if size is None else size for size in self.raw.shape]
        return self.checked(where, self.raw.transform(values.reshape(len(values), *shape)), 0)

    def checked(self, where: Path, inputs: Tensor, first: int) -> Tensor:
        """Inputs in the network's dtype; refuses another shape and what is not finite. ``first`` is their index."""
        if not self.floats:
            self._check_range(where, inputs)
        inputs = inputs.to(self.dtype)
        if not fits(inputs.shape[1:], self.shape):
            expected = shape_text(self.shape)
            raise unlike(where, "shape of an example", expected, list(inputs.shape[1:]), "take those of the task")
        if not self.floats:
            return inputs
        wrong = (~inputs.flatten(1).isfinite().all(1)).nonzero()
        if len(wrong):
            example = int(wrong[0])
            value = inputs[example][~inputs[example].isfinite()][0].item()
            raise unlike(where, f"example {first + example}", "finite numbers", value, "leave it out or mend it")
        return inputs

    def _check_range(self, where: Path, inputs: Tensor) -> None:
        """Refuse whole numbers that the dtype cannot hold: they would become others."""
        low, high = (0, 1) if self.dtype == torch.bool else (torch.iinfo(self.dtype).min, torch.iinfo(self.dtype).max)
        for value in (int(inputs.min()), int(inputs.max())) if inputs.numel() else ():
            if not low <= value <= high:
                raise unlike(where, "whole numbers", f"{low} to {high}", value, "take those of the task")


@dataclass(frozen=True)
class Named:
    """Several inputs, each with its form; ``by_name`` says how the network takes them."""

    forms: dict[str, Form]
    by_name: bool


Forms = Form | Named


class ArrayFile:
    """The examples of an .npy file: ready inputs if they are floats, bytes of the task's data files if they are uint8.

    Mapped, not read: of a large file only the batch at hand is in memory.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form = path, form
        try:
            with open_regular(path) as file:
                self.array = self._mapped(file)
        except DataError:
            raise
        except OSError as error:
            raise unreadable(path, error, CHECK_PATH) from None
        except ValueError as error:
            raise unreadable(path, error, "write it again with numpy.save, as floats or uint8") from None

    def _mapped(self, file: BinaryIO) -> NDArray[Any]:
        """The examples in the file, after everything that its header says was checked."""
        header = read_header(file)
        left = size_of(file) - header.size
        if left < header.array_bytes:
            raise ValueError(f"its header tells of {header.array_bytes:,} more bytes, but there are {left:,}")
        self.bytes = header.dtype == np.uint8 and self.form.floats
        kinds = FLOATS if self.form.floats else WHOLE
        if not self.bytes and not (header.dtype.kind in kinds.letters and header.dtype.itemsize <= 8):
            words = f"{kinds.words} or uint8" if self.form.floats else kinds.words
            raise unlike(self.path, "type", words, shown(str(header.dtype)), "convert it with astype")
        if self.bytes and self.form.raw is None:
            raise DataError(
                f"{one_line(str(self.path))}: the model does not say how bytes become its inputs; "
                "convert them to floats as in its training"
            )
        single = self._is_single(header.shape)
        if header.array_bytes == 0:
            raise DataError(f"{one_line(str(self.path))}: holds no examples")
        array = np.memmap(file, header.dtype, "r", header.size, header.shape, "F" if header.fortran else "C")
        return array[None] if single else array

    def _is_single(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape is a single example; one that does not hold examples is refused."""
        shapes = self._shapes()
        if any(fits(shape, example) for example in shapes):
            return True
        if not shape or not any(fits(shape[1:], example) for example in shapes):
            expected = ", ".join(f"{shape_text((None, *example))} or {shape_text(example)}" for example in shapes)
            raise unlike(self.path, "shape", expected, shown(list(shape)), "reshape it")
        return False

    def _shapes(self) -> list[tuple[int | None, ...]]:
        """Shapes that an example may have."""
        raw = self.form.raw
        if not self.bytes or raw is None:
            return [self.form.shape]
        shapes: list[tuple[int | None, ...]] = [raw.shape]
        if raw.image is not None and raw.image != raw.shape:
            shapes += [raw.image, raw.image[1:]]  # grey images are stored flat
        return shapes

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.array)

    def read(self, start: int, stop: int) -> Tensor:
        """These examples, prepared."""
        values = _tensor_of(self.array[start:stop], self.form)
        return self.form.from_bytes(self.path, values) if self.bytes else self.form.checked(self.path, values, start)


class NamedFile:
    """The examples of an .npz file: an array for each input of the network, by its name."""

    def __init__(self, path: Path, inputs: Named) -> None:
        self.path, self.inputs = path, inputs
        shapes = {name: (None, *form.shape) for name, form in inputs.forms.items()}
        kinds = {name: FLOATS if form.floats else WHOLE for name, form in inputs.forms.items()}
        self.arrays = read_npz(path, shapes, **kinds)
        counts = {len(array) for array in self.arrays.values()}
        if len(counts) != 1 or 0 in counts:
            got = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in self.arrays.items())
            raise unlike(path, "examples", "the same number in every array, at least one", got, "write it again")

    def __len__(self) -> int:
        """How many examples there are."""
        return len(next(iter(self.arrays.values())))

    def read(self, start: int, stop: int) -> Inputs:
        """These examples, prepared."""
        found = [
            form.checked(self.path, _tensor_of(self.arrays[name][start:stop], form), start)
            for name, form in self.inputs.forms.items()
        ]
        return dict(zip(self.inputs.forms, found, strict=True)) if self.inputs.by_name else tuple(found)


def _tensor_of(part: NDArray[Any], form: Form) -> Tensor:
    """A copy in this machine's byte order, as torch knows no other; whole numbers in the widest type."""
    return torch.from_numpy(np.array(part, part.dtype.newbyteorder("=") if form.floats else np.int64))


class ImageFile:
    """One image, brought to the size that the task reads; one that cannot be read is noticed when it is."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form, self.size = path, form, form.image_size()

    def __len__(self) -> int:
        """One example."""
        return 1

    def read(self, _start: int, _stop: int) -> Tensor:
        """The image, prepared."""
        return prepared(self.path, read_image(self.path, self.size), self.form)


def prepared(where: Path, image: Bytes, form: Form) -> Tensor:
    """An image as a batch of one; where nothing is known of the training data its values become 0 to 1."""
    pixels = torch.from_numpy(image)[None]
    if form.raw is None:
        return form.checked(where, pixels / 255, 0)
    top = form.raw.top
    return form.from_bytes(where, pixels if top == 255 else pixels * (top / 255))


def read_image(path: Path, size: tuple[int, int, int]) -> Bytes:
    """Read an image file of any size, brought to these channels, height and width."""
    try:
        with open_regular(path) as file:
            return decode_image(path, file, size_of(file), size)
    except OSError as error:
        raise unreadable(path, error, CHECK_PATH if error.errno else REPLACE) from None


def decode_image(where: Path, file: BinaryIO, length: int, size: tuple[int, int, int]) -> Bytes:
    """The same for an image of ``length`` bytes that is open already, or in memory; ``where`` is for refusals."""
    channels, height, width = size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage that does not concern the pixels
            with Image.open(file, formats=FORMATS) as opened:
                image = _decoded(where, opened, 2 * length + MOST_MEMORY, size)
    except DataError:
        raise
    except UnidentifiedImageError:
        known = f"an image ({', '.join(FORMATS)})"
        raise unlike(where, "kind of file", known, "something else", "leave it out") from None
    except OSError as error:
        raise unreadable(where, error, CHECK_PATH if error.errno else REPLACE) from None
    except Exception as error:  # Pillow's decoders raise errors of any kind for damaged files
        raise unreadable(where, error, REPLACE) from None
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image).reshape(height, width, channels).transpose(2, 0, 1)


def _decoded(path: Path, opened: Image.Image, memory: int, size: tuple[int, int, int]) -> Image.Image:
    """The pixels of an image that has been opened, if that takes at most so many bytes of memory."""
    if opened.mode.startswith(WIDE_MODES):
        raise unlike(path, "image", "8 bits per channel", f"mode {opened.mode}", "convert it")
    # Bytes per pixel: the image, what its decoder needs beside it, and the turned or converted image.
    cost = 4 + {"WEBP": 12}.get(opened.format or "", 0) + 6 * ("progressive" in opened.info) + 4
    if opened.width * opened.height * cost > memory and isinstance(opened, JpegImageFile):  # MPO, too
        # Photographs: shrunk to an eighth at most while they are decoded, but not below twice what is needed.
        opened.draft(None, (2 * max(size), 2 * max(size)))
    # A TIFF image may lie in tiles that are larger than itself.
    tile = [opened.tag_v2.get(tag, 0) for tag in (322, 323)] if isinstance(opened, TiffImageFile) else [0, 0]
    pixels = max(opened.width * opened.height, tile[0] * tile[1])
    if pixels * cost > memory or max(opened.size) > MOST_SIDE:
        most = f"at most {memory // cost:,} pixels in a file of this size and kind"
        raise unlike(path, "image", most, f"{opened.width}x{opened.height}", "make it smaller")
    ImageOps.exif_transpose(opened, in_place=True)
    mode = MODES[size[0]]
    return opened if opened.mode == mode else opened.convert(mode)


InputFile = ArrayFile | ImageFile | NamedFile


def open_inputs(paths: Iterable[Path], form: Forms) -> Iterator[InputFile]:
    """The files that the paths name; a folder stands for the images in it, in the order of their names."""
    for path in paths:
        if isinstance(form, Named):
            if path.suffix.lower() != ".npz":
                names = ", ".join(form.forms)
                raise unlike(path, "kind of file", f"an .npz file with {names}", "another", "write it with numpy.savez")
            yield NamedFile(path, form)
        elif path.is_dir():
            entries = (entry for entry in sorted(path.iterdir()) if not entry.name.startswith("."))
            images = [entry for entry in entries if entry.suffix.lower() in image_endings()]
            if not images:
                raise DataError(
                    f"{one_line(str(path))}: the folder holds no images; pass one that does, or single files"
                )
            yield from (ImageFile(image, form) for image in images)
        else:
            yield (ArrayFile if path.suffix.lower() == ".npy" else ImageFile)(path, form)


def input_batches(files: Sequence[InputFile], size: int) -> Iterator[tuple[list[tuple[Path, int]], Inputs]]:
    """Batches across files, with the file and the index in it of each example; those of one batch have one shape."""
    places: list[tuple[Path, int]] = []
    parts: list[Inputs] = []
    for file in files:
        start = 0
        while start < len(file):
            stop = min(len(file), start + size - len(places))
            part = file.read(start, stop)
            if parts and _sizes(part) != _sizes(parts[0]):
                yield places, together(parts)
                places, parts = [], []
            parts.append(part)
            places += [(file.path, index) for index in range(start, stop)]
            start = stop
            if len(places) == size:
                yield places, together(parts)
                places, parts = [], []
    if places:
        yield places, together(parts)


def _sizes(inputs: Inputs) -> list[torch.Size]:
    return [tensor.shape[1:] for tensor in tensors_of(inputs)]


def image_endings() -> set[str]:
    """Of the images that are read."""
    return {ending for ending, name in Image.registered_extensions().items() if name in FORMATS}
