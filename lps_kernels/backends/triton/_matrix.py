"""What the matrix products in Triton share on the host's side: tiles, splitting, launching, compiling ahead of time.

Tiles are [examples, rows]. Where there are too few of them to fill the device, the depth is split as well: the parts go
to scratch memory and ``finish_kernel`` adds them up in their order. What is summed before what depends on the sizes,
the dtype and the device alone: there are no atomics, and the tuner chooses among tiles that sum alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from lps_kernels.backends.triton._launch import INTERPRETING, Ahead, on_device_of, parts_of, registers
from lps_kernels.backends.triton._products import finish_kernel
from lps_kernels.ops._matrix import Convolution
from lps_kernels.tf32 import tf32_allowed

# Splitting the depth counts tiles of this many examples and rows, and leaves each part a multiple of this depth.
TYPICAL_TILE = 64
PART_DEPTH = 128
# The tile of few examples, and up to how many those are.
FEW_TILE = 16
FEW = 32
# Multiprocessors where there is no GPU: the interpreter splits small batches too.
NO_PROCESSORS = 100
FINISH_BLOCK = 512
FINISH_OPTIONS: dict[str, object] = {"num_warps": 4}

TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Tile:
    """How much of the product one program takes, and how many warps and pipeline stages it does so with."""

    examples: int
    rows: int
    depth: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, object]:
        """The kernel's constants of this tile."""
        return {"EXAMPLES": self.examples, "ROWS": self.rows, "DEPTH": self.depth}

    @property
    def options(self) -> dict[str, object]:
        """What the compiler is told. NVIDIA's would spill a few registers to get more blocks onto a multiprocessor."""
        return {"num_warps": self.warps, "num_stages": self.stages, **registers(255)}


Tiles = Mapping[int, tuple[Tile, ...]]

# By bytes of an element, for many examples and for few. A product of fp32 on tensor cores holds two parts of each
# factor, so its tiles are shallower. None spills registers on any listed architecture.
TILES: Tiles = {
    2: (Tile(128, 64, 32, 8, 3), Tile(64, 64, 32, 4, 3), Tile(16, 64, 32, 4, 4)),
    4: (Tile(128, 64, 16, 8, 3), Tile(64, 64, 16, 4, 3), Tile(16, 64, 16, 4, 4)),
    8: (Tile(64, 64, 16, 8, 1), Tile(16, 32, 16, 4, 2)),
}


def candidates(tiles: tuple[Tile, ...], examples: int) -> tuple[Tile, ...]:
    """The tiles among which a measurement may choose, because all of them give the same bits.

    They have one depth and are made of the same matrix instruction. Tiles of few examples are made of another on most
    GPUs, so the number of examples alone decides between these and the others.
    """
    few = tuple(tile for tile in tiles if tile.examples == FEW_TILE)
    many = tuple(tile for tile in tiles if tile.examples > FEW_TILE)
    return (few or many) if examples <= FEW else (many or few)


class Tuned:
    """A kernel that is tuned by trying its tiles once for every size class and set of dtypes.

    A first call measures if there are several, which waits for the device, so it comes before the call is captured in
    a CUDA graph. The interpreter takes the first tile.
    """

    # Triton's tuner keeps the arguments of the call under way in itself.
    _one_at_a_time = threading.Lock()

    def __init__(self, kernel: Any, tiles: tuple[Tile, ...]) -> None:
        configs = [triton.Config(tile.constants, **tile.options) for tile in tiles]
        self._tuner = triton.autotune(configs=configs[:1] if INTERPRETING else configs, key=["size_class"])(kernel)

    def launch(self, grid: Callable[[Mapping[str, int]], tuple[int, ...]], **arguments: object) -> None:
        """Launch on the grid that a tile's constants make."""
        with self._one_at_a_time:
            self._tuner[grid](**arguments)


_tuned = cache(Tuned)


def size_class(*sizes: int) -> int:
    """The sizes rounded up to powers of two, as one number."""
    number = 0
    for size in sizes:
        number = number << 6 | max(0, size - 1).bit_length()
    return number


@dataclass(frozen=True)
class Product:
    """Tensors and sizes that every product has. Of the ``outputs``, ``height`` are computed: those in ``rows``."""

    x: Tensor
    out: Tensor
    rows: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    height: int
    outputs: int
    depth: int
    relu: bool
    conv: Convolution | None = None

    @property
    def positions(self) -> int:
        """Examples of an image; a linear layer has images of one."""
        return 1 if self.conv is None else self.out[0, 0].numel()

    @property
    def examples(self) -> int:
        """Rows of x, or positions of all images."""
        return self.out.numel() // self.outputs

    def run(self, kernel: Any, tiles: Tiles, weights: Mapping[str, object], tensor_cores: bool = True) -> Tensor:
        """Launch the kernel on its weights, and what has to come before or after it; returns the output."""
        if self.out.numel() == 0:
            return self.out
        with on_device_of(self.x):
            if self.height < self.outputs:  # where the row is gone, a sum of nothing is finished
                self._finish(None, splits=0, rows=None, height=self.outputs)
            if self.height > 0:
                self._multiply(kernel, tiles[self.x.element_size()], weights, tensor_cores)
        return self.out

    def _multiply(
        self, kernel: Any, tiles: tuple[Tile, ...], weights: Mapping[str, object], tensor_cores: bool
    ) -> None:
        each = depth_of_part(self.examples, self.height, self.depth, processors(self.x.device))
        splits = max(1, parts_of(self.depth, each))
        target = self.out
        if splits > 1:
            compute = torch.float64 if self.x.dtype == torch.float64 else torch.float32
            target = self.x.new_empty(splits * self.examples * self.height, dtype=compute)

        def grid(chosen: Mapping[str, int]) -> tuple[int, int]:
            return parts_of(self.examples, chosen["EXAMPLES"]) * parts_of(self.height, chosen["ROWS"]), splits

        _tuned(kernel, candidates(tiles, self.examples)).launch(
            grid,
            x=self.x.contiguous(),
            out=target,
            rows=contiguous(self.rows),
            bias=contiguous(self.bias),
            residual=contiguous(self.residual),
            examples=self.examples,
            height=self.height,
            outputs=self.outputs,
            depth=self.depth,
            positions=self.positions,
            each=each,
            size_class=size_class(self.examples, self.height, self.depth),
            SPLIT=splits > 1,
            RELU=self.relu,
            PRECISION=precision(self.x.dtype, on_nvidia(self.x.device)) if tensor_cores else None,
            **self._image(),
            **weights,
        )
        if splits > 1:
            self._finish(target, splits, self.rows, self.height)

    def _image(self) -> dict[str, object]:
        """What a convolution reads from: an image of one dimension has a height of one."""
        if self.conv is None:
            return {"inputs": self.x.shape[-1], "image_height": 1, "image_width": 1, "out_width": 1, "CONV": None}
        height, width = (1, *self.x.shape[2:])[-2:]
        return {
            "inputs": self.x.shape[1],
            "image_height": height,
            "image_width": width,
            "out_width": self.out.shape[-1],
            "CONV": conv_constant(self.conv),
        }

    def _finish(self, parts: Tensor | None, splits: int, rows: Tensor | None, height: int) -> None:
        count = self.examples * height
        finish_kernel[(parts_of(count, FINISH_BLOCK),)](
            parts,
            self.out,
            contiguous(rows),
            contiguous(self.bias),
            contiguous(self.residual),
            count,
            height,
            self.outputs,
            self.positions,
            splits,
            RELU=self.relu,
            WIDE=count > 2**31 - FINISH_BLOCK,
            BLOCK=FINISH_BLOCK,
            **FINISH_OPTIONS,
        )


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """The tensor in memory order, if there is one."""
    return None if tensor is None else tensor.contiguous()


def conv_constant(conv: Convolution) -> tuple[int, ...]:
    """Places and width of the kernel, then stride, padding and dilation along height and width."""
    kernel, *rest = ((least, *numbers)[-2:] for least, numbers in zip((1, 1, 0, 1), conv, strict=True))
    return conv.taps, kernel[1], *(number for pair in rest for number in pair)


def processors(device: torch.device) -> int:
    """Multiprocessors of the device."""
    if device.type != "cuda":
        return NO_PROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def depth_of_part(examples: int, height: int, depth: int, processors: int) -> int:
    """How deep each part of the depth is: as deep as still leaves no multiprocessor without a tile."""
    tiles = parts_of(examples, TYPICAL_TILE) * parts_of(height, TYPICAL_TILE)
    splits = max(1, min(processors // tiles, depth // PART_DEPTH))
    return max(1, parts_of(parts_of(depth, splits), PART_DEPTH)) * PART_DEPTH


def on_nvidia(device: torch.device) -> bool:
    """Whether NVIDIA's tensor cores multiply there."""
    return device.type == "cuda" and torch.version.hip is None


def precision(dtype: torch.dtype, nvidia: bool) -> str:
    """How fp32 is multiplied: on NVIDIA's tensor cores as three products of TF32 parts, or as one with ``LPS_TF32=1``.

    AMD's matrix cores multiply fp32 as it is, and so does the interpreter. Other dtypes are always taken as they are.
    """
    if dtype != torch.float32 or not nvidia:
        return "ieee"
    return "tf32" if tf32_allowed() else "tf32x3"


def ahead_of_time(
    op: str,
    kernel: Any,
    tiles: Tiles,
    arguments: Mapping[str, object],
    conv: tuple[int, ...] | None = None,
    without_tensor_cores: torch.dtype | None = None,
) -> list[Ahead]:
    """The kernel in every dtype and tile, as the op launches it with bias, rows and columns; and the first tile without
    any of them, as one of several parts.

    An argument is a type in Triton's words or a constant; unless ``arguments`` says otherwise, tensors of floats have
    the op's dtype and numbers are of 32 bits.
    """
    listed = []
    for dtype, name in TYPES.items():
        floats = dict.fromkeys({"x", "weight", "values", "out", "bias", "residual"} & {*kernel.arg_names}, f"*{name}")
        sizes = dict.fromkeys((argument for argument in kernel.arg_names if argument.islower()), "i32")
        image = dict.fromkeys(("image_height", "image_width", "out_width", "positions"), 1) if conv is None else {}
        given: dict[str, object] = {**sizes, **image, **floats, **arguments}
        signature = {key: kind for key, kind in given.items() if isinstance(kind, str)}
        constants = {key: kind for key, kind in given.items() if not isinstance(kind, str)}
        constants |= {"CONV": conv, "SPLIT": False, "RELU": True}
        constants["PRECISION"] = None if dtype == without_tensor_cores else precision(dtype, nvidia=True)
        for tile in tiles[dtype.itemsize]:
            title = f"{op}[{name}, {tile.examples}x{tile.rows}x{tile.depth}]"
            listed.append(Ahead(title, kernel, signature, constants | tile.constants, tile.options))
        first = tiles[dtype.itemsize][0]
        absent = {*kernel.arg_names} & {"columns", "rows", "bias", "residual"}
        constants |= {**first.constants, "SPLIT": True, "RELU": False, **dict.fromkeys(absent)}
        present = {key: kind for key, kind in signature.items() if key not in absent}
        listed.append(Ahead(f"{op}[{name}, split]", kernel, present | {"out": _parts(dtype)}, constants, first.options))
    return listed


def finish_ahead_of_time() -> list[Ahead]:
    """The kernel that adds up parts, in every dtype, for linear layers and for convolutions."""
    listed = []
    constants: dict[str, object] = {"RELU": True, "WIDE": False, "BLOCK": FINISH_BLOCK}
    sizes = dict.fromkeys(("count", "height", "outputs", "splits"), "i32")
    for dtype, name in TYPES.items():
        types = {"parts": _parts(dtype), "out": f"*{name}", "rows": "*i32", "bias": f"*{name}", **sizes}
        linear: dict[str, object] = {**constants, "positions": 1, "residual": None}
        listed.append(Ahead(f"finish[{name}, linear]", finish_kernel, types, linear, FINISH_OPTIONS))
        more = {**types, "positions": "i32", "residual": f"*{name}"}
        listed.append(Ahead(f"finish[{name}, convolution]", finish_kernel, more, constants, FINISH_OPTIONS))
    bare = {**constants, "positions": 1, "residual": None, "RELU": False, "rows": None, "bias": None}
    present = {"parts": "*fp32", "out": "*fp32", **sizes}
    wide, nothing = {**bare, "WIDE": True}, {**bare, "parts": None, "splits": 0}
    listed.append(Ahead("finish[fp32, wide]", finish_kernel, {**present, "count": "i64"}, wide, FINISH_OPTIONS))
    of_nothing = {key: kind for key, kind in present.items() if key not in nothing}
    listed.append(Ahead("finish[fp32, nothing]", finish_kernel, of_nothing, nothing, FINISH_OPTIONS))
    return listed


def _parts(dtype: torch.dtype) -> str:
    """A pointer to parts of a product, in Triton's words."""
    return "*fp64" if dtype == torch.float64 else "*fp32"
