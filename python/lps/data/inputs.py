"""Inputs to classify: arrays and images from the user's own files, prepared as a task's network reads them.

Files may be cut short, damaged or something else; each is checked, nothing is unpickled, and what cannot be used gives
a one-sentence :class:`DataError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from lps.data.base import Raw
from lps.data.files import REPLACE, fits, shape_text, unlike, unreadable
from lps.errors import DataError

CHECK_PATH = "check the path"
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
WIDE_MODES = ("I", "F")  # more than eight bits per channel, which Pillow would clip


@dataclass(frozen=True)
class Form:
    """What a task's network reads: examples of this shape and dtype, and how bytes become such, if that is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    raw: Raw | None

    def image_size(self) -> tuple[int, int, int]:
        """Channels, height and width that an image is brought to."""
        if self.raw is not None and self.raw.image is not None:
            return self.raw.image
        if self.raw is not None or len(self.shape) != 3 or self.shape[0] not in MODES:
            raise DataError(
                f"images: the task reads inputs of shape {list(self.shape)}, not images of 1 or 3 channels; "
                "pass an .npy file"
            )
        channels, height, width = self.shape
        return channels, height, width

    def from_bytes(self, where: Path, values: Tensor) -> Tensor:
        """Prepare bytes (or values on their scale) of the task's data files, [batch, ...]."""
        assert self.raw is not None
        if float(values.max()) > self.raw.top:
            raise unlike(where, "bytes", f"0 to {self.raw.top}", int(values.max()), "use the scale of the data files")
        shape = [-1 if size is None else size for size in self.raw.shape]
        return self.checked(where, self.raw.transform(values.reshape(len(values), *shape)), 0)

    def checked(self, where: Path, inputs: Tensor, first: int) -> Tensor:
        """Inputs in the network's dtype; refuses another shape and what is not finite. ``first`` is their index."""
        inputs = inputs.to(self.dtype)
        if inputs.shape[1:] != self.shape:
            raise unlike(
                where, "shape of an example", list(self.shape), list(inputs.shape[1:]), "take those of the task"
            )
        wrong = (~inputs.flatten(1).isfinite().all(1)).nonzero()
        if len(wrong):
            example = int(wrong[0])
            value = inputs[example][~inputs[example].isfinite()][0].item()
            raise unlike(where, f"example {first + example}", "finite numbers", value, "leave it out or mend it")
        return inputs


class ArrayFile:
    """The examples of an .npy file: ready inputs if they are floats, bytes of the task's data files if they are uint8.

    Mapped, not read: of a large file only the batch at hand is in memory.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form = path, form
        try:
            self.array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except OSError as error:
            raise unreadable(path, error, CHECK_PATH) from None
        # What numpy raises for pickled objects, other kinds of files and headers that lie.
        except (ValueError, TypeError, EOFError, OverflowError, SyntaxError, MemoryError) as error:
            raise unreadable(path, error, "write it again with numpy.save, as floats or uint8") from None
        self.bytes = self.array.dtype == np.uint8
        if not self.bytes and not (self.array.dtype.kind == "f" and self.array.dtype.itemsize <= 8):
            raise unlike(path, "type", "floats or uint8", self.array.dtype, "convert it with astype")
        if self.bytes and form.raw is None:
            raise DataError(
                f"{path}: the model does not say how bytes become its inputs; convert them to floats as in its training"
            )
        shapes = self._shapes()
        if any(fits(self.array.shape, shape) for shape in shapes):
            self.array = self.array[None]  # a single example
        elif not any(fits(self.array.shape[1:], shape) for shape in shapes) or not self.array.ndim:
            expected = ", ".join(f"{shape_text((None, *shape))} or {shape_text(shape)}" for shape in shapes)
            raise unlike(path, "shape", expected, list(self.array.shape), "reshape it")
        if not len(self.array):
            raise DataError(f"{path}: holds no examples")

    def _shapes(self) -> list[tuple[int | None, ...]]:
        """Shapes that an example may have."""
        raw = self.form.raw
        if not self.bytes or raw is None:
            return [self.form.shape]
        shapes = [raw.shape]
        if raw.image is not None and raw.image != raw.shape:
            shapes += [raw.image, raw.image[1:]]  # grey images are stored flat
        return shapes

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.array)

    def read(self, start: int, stop: int) -> Tensor:
        """These examples, prepared."""
        part = self.array[start:stop]
        values = torch.from_numpy(np.array(part, part.dtype.newbyteorder("=")))  # torch knows no other byte order
        return self.form.from_bytes(self.path, values) if self.bytes else self.form.checked(self.path, values, start)


class ImageFile:
    """One image, brought to the size that the task reads; one that cannot be read is noticed when it is."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self.form, self.size = path, form, form.image_size()

    def __len__(self) -> int:
        """One example."""
        return 1

    def read(self, _start: int, _stop: int) -> Tensor:
        """The image, prepared; where nothing is known of the training data its values become 0 to 1."""
        channels, height, width = self.size
        try:
            with Image.open(self.path) as opened:
                if opened.mode.startswith(WIDE_MODES):
                    raise unlike(self.path, "image", "8 bits per channel", f"mode {opened.mode}", "convert it")
                image = ImageOps.exif_transpose(opened).convert(MODES[channels])
        except DataError:
            raise
        except UnidentifiedImageError:
            known = "an image that Pillow can read or an .npy file"
            raise unlike(self.path, "kind of file", known, "something else", "leave it out") from None
        except OSError as error:
            raise unreadable(self.path, error, CHECK_PATH if error.errno else REPLACE) from None
        except (ValueError, EOFError, SyntaxError, Image.DecompressionBombError) as error:
            raise unreadable(self.path, error, REPLACE) from None
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).reshape(1, height, width, channels).permute(0, 3, 1, 2)
        if self.form.raw is None:
            return self.form.checked(self.path, pixels / 255, 0)
        top = self.form.raw.top
        return self.form.from_bytes(self.path, pixels if top == 255 else pixels * (top / 255))


InputFile = ArrayFile | ImageFile


def open_inputs(paths: Iterable[Path], form: Form) -> Iterator[InputFile]:
    """The files that the paths name; a folder stands for the images in it, in the order of their names."""
    for path in paths:
        if path.is_dir():
            entries = (entry for entry in sorted(path.iterdir()) if not entry.name.startswith("."))
            images = [entry for entry in entries if entry.suffix.lower() in _endings()]
            if not images:
                raise DataError(f"{path}: the folder holds no images; pass one that does, or single files")
            yield from (ImageFile(image, form) for image in images)
        else:
            yield (ArrayFile if path.suffix.lower() == ".npy" else ImageFile)(path, form)


def input_batches(files: Sequence[InputFile], size: int) -> Iterator[tuple[list[tuple[Path, int]], Tensor]]:
    """Batches across files, with the file and the index in it of each example."""
    places: list[tuple[Path, int]] = []
    parts: list[Tensor] = []
    for file in files:
        start = 0
        while start < len(file):
            stop = min(len(file), start + size - len(places))
            parts.append(file.read(start, stop))
            places += [(file.path, index) for index in range(start, stop)]
            start = stop
            if len(places) == size:
                yield places, torch.cat(parts)
                places, parts = [], []
    if places:
        yield places, torch.cat(parts)


def _endings() -> set[str]:
    """Of the images that Pillow can read."""
    return {ending for ending, name in Image.registered_extensions().items() if name in Image.OPEN}
