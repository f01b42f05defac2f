"""Each op of the registry as a call of the bridge: the op's arguments in, the tensors that it returns or writes out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lps_kernels.ops._matrix import Convolution
from lps_kernels.ops.bits import packed_size
from lps_kernels.ops.scores import views_of
from lps_kernels.packing import SPARSE_SLACK


@dataclass
class Block:
    """Memory of exactly one tensor's size, outside torch."""

    buffer: Any
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def address(self) -> int:
        return int(self.buffer.address)

    def tensor(self) -> Tensor:
        """A copy of what the memory holds now."""
        result = torch.empty(self.shape, dtype=self.dtype)
        ctypes.memmove(result.data_ptr(), self.address, result.nbytes)
        return result


class Device:
    """What runs the kernels of a bridge, and the memory that they work on.

    Arrays begin at a cache line or, ``shifted``, at an address that is aligned to an element and to nothing more.
    """

    bridge: ModuleType
    shifted: bool
    runner: Any

    def room(self, shape: Sequence[int], dtype: torch.dtype) -> Block:
        """Memory that the kernel is to fill; until then it holds the byte 0xCB."""
        offset = dtype.itemsize if self.shifted else 0
        return Block(self.bridge.Buffer(prod(shape) * dtype.itemsize, offset), tuple(shape), dtype)

    def load(self, tensor: Tensor) -> Block:
        """A copy of the tensor, in memory order."""
        block, dense = self.room(tensor.shape, tensor.dtype), tensor.contiguous()
        ctypes.memmove(block.address, dense.data_ptr(), dense.nbytes)
        return block

    def load_all(self, tensors: Sequence[Tensor]) -> list[Block]:
        return [self.load(tensor) for tensor in tensors]

    def dtype(self, tensor: Tensor) -> Any:
        return getattr(self.bridge.DType, str(tensor.dtype).removeprefix("torch."))

    def score(self, name: str) -> Any:
        return self.bridge.Score.l2 if name in ("magnitude", "l2") else self.bridge.Score.half


@dataclass
class Native(Device):
    """The kernels of one instruction set with one way to cut the work."""

    bridge: ModuleType
    isa: str
    threads: int = 1
    grain: int = 1 << 40
    reversed: bool = False
    shifted: bool = False
    runner: Any = field(init=False)

    def __post_init__(self) -> None:
        partition = self.bridge.Partition(self.threads, self.grain, self.reversed)
        self.runner = self.bridge.Runner(self.isa, partition)


@dataclass
class Simulated(Device):
    """The CUDA kernels on the simulator, with one order of threads and blocks."""

    bridge: ModuleType
    order: int = 0
    processors: int = 4
    tf32: bool = False
    shifted: bool = False
    runner: Any = field(init=False)

    def __post_init__(self) -> None:
        self.runner = self.bridge.Runner(self.order, self.processors, self.tf32)


class ShortfallError(Exception):
    """A kernel was asked for more groups than there are; ``untouched`` says whether it wrote nothing."""

    def __init__(self, shortfall: tuple[int, str, int], untouched: bool) -> None:
        self.layer, self.region, self.available = shortfall
        self.untouched = untouched
        super().__init__(f"layer {self.layer} has {self.available} groups in region {self.region}")


def addresses(blocks: Sequence[Block], count: int) -> list[int]:
    """Null where the op was given no tensors."""
    return [block.address for block in blocks] if blocks else [0] * count


def values(*lists: Sequence[Block]) -> list[Tensor]:
    return [block.tensor() for blocks in lists for block in blocks]


def pack_bits(native: Device, x: Tensor) -> list[Tensor]:
    source, bits = native.load(x), native.room((packed_size(x.numel()),), torch.uint8)
    native.bridge.pack_bits(native.runner, source.address, bits.address, x.numel())
    return [bits.tensor()]


def unpack_bits(native: Device, bits: Tensor, shape: Sequence[int]) -> list[Tensor]:
    source, bools = native.load(bits), native.room(shape, torch.bool)
    native.bridge.unpack_bits(native.runner, source.address, bools.address, prod(shape))
    return [bools.tensor()]


def compose(native: Device, w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor | None = None) -> list[Tensor]:
    kinds = native.bridge.MaskKind
    kind = {torch.bool: kinds.boolean, torch.uint8: kinds.bits}.get(mask.dtype, kinds.values)
    blocks, result = native.load_all((w, mask, w_bar)), native.room(w.shape, w.dtype)
    native.bridge.compose(native.runner, native.dtype(w), kind, *addresses(blocks, 3), result.address, w.numel())
    return [result.tensor()]


def compose_owned(native: Device, v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor | None = None) -> list[Tensor]:
    blocks, result = native.load_all((v, w_bar, owner)), native.room(v.shape, v.dtype)
    native.bridge.compose_owned(native.runner, native.dtype(v), *addresses(blocks, 3), result.address, v.numel())
    return [result.tensor()]


def task_weight(native: Device, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor) -> list[Tensor]:
    blocks, result = native.load_all((w_bar, owner, bits)), native.room(out.shape, out.dtype)
    native.bridge.task_weight(
        native.runner, native.dtype(w_bar), *addresses(blocks, 3), task, result.address, w_bar.numel()
    )
    return [result.tensor()]


def group_scores(
    native: Device, x: Sequence[Tensor], owner: Sequence[Tensor], views: Sequence[int], score: str, region: str
) -> list[Tensor]:
    xs, owners, shapes = native.load_all(x), native.load_all(owner), views_of(views)
    scores = [native.room((view[1],), torch.float64) for view in shapes]
    layers = zip(addresses(xs, 0), addresses(owners, len(xs)), shapes, addresses(scores, 0), strict=True)
    where = getattr(native.bridge.Region, region)
    native.bridge.group_scores(native.runner, native.dtype(x[0]), native.score(score), where, list(layers))
    return values(scores)


def project(
    native: Device,
    x: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep: Sequence[int],
    views: Sequence[int],
    score: str,
    region: str,
    output: str,
) -> list[Tensor]:
    xs, owners = native.load_all(x), native.load_all(owner)
    out = [native.room(tensor.shape, tensor.dtype) for tensor in x]
    kept = [native.room((packed_size(tensor.numel()),), torch.uint8) for tensor in x]
    arrays = addresses(xs, 0), addresses(owners, len(xs)), views_of(views), keep, addresses(out, 0), addresses(kept, 0)
    shortfall = native.bridge.project(
        native.runner,
        native.dtype(x[0]),
        native.score(score),
        getattr(native.bridge.Region, region),
        getattr(native.bridge.Output, output),
        list(zip(*arrays, strict=True)),
    )
    if shortfall is not None:
        raise ShortfallError(shortfall, all(bool((t.view(torch.uint8) == 0xCB).all()) for t in values(out, kept)))
    return values(out, kept)


def admm_update_(
    native: Device,
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    keep_free: Sequence[int],
    keep_owned: Sequence[int],
    views: Sequence[int],
    sharing_views: Sequence[int],
    emerging: bool,
    fresh: bool,
) -> list[Tensor]:
    vs, centres, owners = (native.load_all(tensors) for tensors in (v, centre, owner))
    arrays = addresses(vs, 0), addresses(centres, len(vs)), addresses(owners, 0)
    counts = views_of(views), views_of(sharing_views), keep_free, keep_owned
    layers = list(zip(*arrays, *counts, strict=True))
    shortfall = native.bridge.admm_update(native.runner, native.dtype(v[0]), emerging, fresh, layers)
    if shortfall is not None:
        pairs = zip(values(centres, owners), [*centre, *owner], strict=True)
        raise ShortfallError(shortfall, all(torch.equal(now, before) for now, before in pairs))
    return values(centres, owners)


def adam_scalars(
    native: Device,
    step: int,
    rates: tuple[float, float],
    betas: tuple[float, float],
    eps: float,
    pulls: tuple[float, float],
    number: Block | None,
) -> Any:
    """Kernels of a GPU read the step's number themselves; those of the CPU are given what follows from it."""
    if number is not None:
        step = int(number.tensor())
    sizes = [rate / (1 - betas[0] ** step) for rate in rates]
    inverse_root = 1 / sqrt(1 - betas[1] ** step)
    return native.bridge.AdamScalars(*betas, eps, *pulls, *sizes, inverse_root, address_of(number), *rates)


def proximal_adam_(native: Device, *args: Any) -> list[Tensor]:
    lists, (moves, pull, step, lr, mask_lr, beta1, beta2, eps, rho, tau, device_step) = args[:8], args[8:]
    blocks = [native.load_all(tensors) for tensors in lists]
    sizes = [tensor.numel() for tensor in lists[2]]
    layers = list(zip(*(addresses(some, len(sizes)) for some in blocks), sizes, strict=True))
    number = maybe(native, device_step)
    scalars = adam_scalars(native, step, (lr, mask_lr), (beta1, beta2), eps, (rho, tau), number)
    how = getattr(native.bridge.Moves, moves), getattr(native.bridge.Pull, pull)
    native.bridge.proximal_adam(native.runner, native.dtype(lists[2][0]), *how, scalars, layers)
    effective, _, v, _, _, _, mean, square = blocks
    return values(effective, v, mean, square)


def straight_through_adam_(native: Device, *args: Any) -> list[Tensor]:
    lists, thresholds, (keep_free, keep_owned, views, sharing_views) = args[:7], args[7], args[8:12]
    emerging, moves, step, lr, mask_lr, beta1, beta2, eps, share_cost, *learning, device_step = args[12:]
    blocks, hints = [native.load_all(tensors) for tensors in lists], native.load(thresholds)
    weight_blocks = [native.load_all(tensors) for tensors in learning]
    effective, grad, v, w_bar, owner, mean, square = (addresses(some, 0) for some in blocks)
    nothing, sizes = [0] * len(v), [tensor.numel() for tensor in lists[2]]
    steps = zip(effective, grad, v, w_bar, nothing, owner, mean, square, sizes, strict=True)
    counts = (views_of(views), views_of(sharing_views), keep_free, keep_owned)
    layers = list(zip(steps, *counts, *(addresses(some, len(v)) for some in weight_blocks), strict=True))
    number = maybe(native, device_step)
    scalars = adam_scalars(native, step, (lr, mask_lr), (beta1, beta2), eps, (0.0, 0.0), number)
    moving, dtype = getattr(native.bridge.Moves, moves), native.dtype(lists[2][0])
    native.bridge.straight_through_adam(
        native.runner, dtype, moving, emerging, scalars, share_cost, hints.address, layers
    )
    return [*values(*(blocks[i] for i in (0, 2, 3, 5, 6))), hints.tensor(), *values(*weight_blocks)]


def proximal_grad_(
    native: Device,
    grad: Sequence[Tensor],
    v: Sequence[Tensor],
    centre: Sequence[Tensor],
    owner: Sequence[Tensor],
    moves: str,
    rho: float,
    tau: float,
) -> list[Tensor]:
    blocks = [native.load_all(tensors) for tensors in (grad, v, centre, owner)]
    sizes = [tensor.numel() for tensor in v]
    layers = list(zip(*(addresses(some, len(sizes)) for some in blocks), sizes, strict=True))
    moving = getattr(native.bridge.Moves, moves)
    native.bridge.proximal_grad(native.runner, native.dtype(v[0]), moving, rho, tau, layers)
    return values(blocks[0])


def inference(native: Device, name: str, x: Tensor) -> Callable[..., None]:
    """The bridge's function for the dtype of x, its runner given."""
    function = getattr(native.bridge, f"{name}_{str(x.dtype).removeprefix('torch.')}")
    return lambda *args: function(native.runner, *args)


def maybe(native: Device, tensor: Tensor | None) -> Block | None:
    return None if tensor is None else native.load(tensor)


def address_of(block: Block | None) -> int:
    return 0 if block is None else block.address


def chosen(block: Block | None, limit: int) -> tuple[int, int]:
    """Address and number of the indices that pick some of ``limit``."""
    return (0, limit) if block is None else (block.address, block.shape[0])


def structured_linear(
    native: Device,
    x: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    rows: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    relu: bool,
) -> list[Tensor]:
    source, packed, y = native.load(x), native.load(weight), native.room((*x.shape[:-1], outputs), x.dtype)
    read, written, shift = (maybe(native, tensor) for tensor in (columns, rows, bias))
    inputs = x.shape[-1]
    picked = packed.address, chosen(read, inputs), chosen(written, outputs), outputs
    call = inference(native, "structured_linear", x)
    call(source.address, prod(x.shape[:-1]), inputs, *picked, (address_of(shift), 0, relu), y.address)
    return [y.tensor()]


def masked_linear(
    native: Device, x: Tensor, w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, bias: Tensor | None, relu: bool
) -> list[Tensor]:
    blocks, shift, (outputs, inputs) = native.load_all((w_bar, owner, bits)), maybe(native, bias), w_bar.shape
    source, y = native.load(x), native.room((*x.shape[:-1], outputs), x.dtype)
    weight = *addresses(blocks, 3), task, inputs, outputs
    call = inference(native, "masked_linear", x)
    call(source.address, prod(x.shape[:-1]), *weight, (address_of(shift), 0, relu), y.address)
    return [y.tensor()]


def packed_weight(packed: Sequence[Block]) -> tuple[int, ...]:
    """Addresses of ``pack_sparse``'s tensors, and how many values there are."""
    return *addresses(packed, 4), packed[0].shape[0] - SPARSE_SLACK


def sparse_linear(native: Device, x: Tensor, *rest: Any) -> list[Tensor]:
    packed, (bias, outputs, relu) = native.load_all(rest[:4]), rest[4:]
    source, shift, y = native.load(x), maybe(native, bias), native.room((*x.shape[:-1], outputs), x.dtype)
    weight = x.shape[-1], packed_weight(packed), outputs
    call = inference(native, "sparse_linear", x)
    call(source.address, prod(x.shape[:-1]), *weight, (address_of(shift), 0, relu), y.address)
    return [y.tensor()]


def conv_shape(x: Tensor, conv: Convolution) -> list[int]:
    """The numbers of lps::ConvShape; one dimension is a single row."""
    size, out = list(x.shape[2:]), conv.output_size(x.shape[2:])
    if x.dim() == 3:
        size, out = [1, *size], [1, *out]
        conv = Convolution(*([first, *rest] for first, rest in zip((1, 1, 0, 1), conv, strict=True)))
    return [*x.shape[:2], *size, *conv.kernel, *conv.stride, *conv.padding, *conv.dilation, *out]


def structured_conv(native: Device, x: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    columns, rows, bias, residual, outputs, *sizes, _, relu = rest
    conv = Convolution(*sizes)
    source, packed = native.load(x), native.load(weight)
    y = native.room((len(x), outputs, *conv.output_size(x.shape[2:])), x.dtype)
    read, written, shift, added = (maybe(native, tensor) for tensor in (columns, rows, bias, residual))
    picked = packed.address, chosen(read, x.shape[1] * conv.taps), chosen(written, outputs), outputs
    call = inference(native, "structured_conv", x)
    call(source.address, conv_shape(x, conv), *picked, (address_of(shift), address_of(added), relu), y.address)
    return [y.tensor()]


def sparse_conv(native: Device, x: Tensor, *rest: Any) -> list[Tensor]:
    packed, (bias, residual, outputs, *sizes, _, relu) = native.load_all(rest[:4]), rest[4:]
    conv = Convolution(*sizes)
    source, shift, added = native.load(x), maybe(native, bias), maybe(native, residual)
    y = native.room((len(x), outputs, *conv.output_size(x.shape[2:])), x.dtype)
    weight = x.shape[1] * conv.taps, packed_weight(packed), outputs
    call = inference(native, "sparse_conv", x)
    call(source.address, conv_shape(x, conv), *weight, (address_of(shift), address_of(added), relu), y.address)
    return [y.tensor()]


def upload(native: Simulated, table: Tensor) -> list[Tensor]:
    """No op, but the kernel that brings tables of layers into device memory."""
    source, copy = native.load(table), native.room(table.shape, table.dtype)
    native.bridge.upload(source.address, copy.address, table.nbytes)
    return [copy.tensor()]


ADAPTORS: dict[str, Callable[..., list[Tensor]]] = {
    "pack_bits": pack_bits,
    "unpack_bits": unpack_bits,
    "compose": compose,
    "compose_out": compose,
    "compose_owned": compose_owned,
    "compose_owned_out": compose_owned,
    "task_weight": task_weight,
    "group_scores": group_scores,
    "project": project,
    "admm_update_": admm_update_,
    "proximal_adam_": proximal_adam_,
    "straight_through_adam_": straight_through_adam_,
    "proximal_grad_": proximal_grad_,
    "structured_linear": structured_linear,
    "masked_linear": masked_linear,
    "structured_conv1d": structured_conv,
    "structured_conv2d": structured_conv,
    "sparse_linear": sparse_linear,
    "sparse_conv": sparse_conv,
}
