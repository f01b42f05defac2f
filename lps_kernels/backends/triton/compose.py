"""The masked weight composition in Triton."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lps_kernels._registry import REGISTRY
from lps_kernels.backends.triton._launch import EXACT, FLOATS, Ahead, Kernels, on_device_of, parts_of
from lps_kernels.backends.triton._numbers import narrow, widen
from lps_kernels.ops.compose import _check_out

_BLOCK = 1024
_OPTIONS: dict[str, object] = {"num_warps": 4, **EXACT}


@triton.jit
def _compose(w, mask, w_bar, out, count, KIND: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    weight = widen(tl.load(w + index, mask=inside, other=0))
    committed = widen(tl.load(w_bar + index, mask=inside, other=0))
    if KIND == "values":
        added = widen(tl.load(mask + index, mask=inside, other=0)) * committed
    elif KIND == "boolean":
        added = tl.where(tl.load(mask + index, mask=inside, other=0) != 0, committed, 0.0)
    else:
        byte = tl.load(mask + (index >> 3), mask=inside, other=0).to(tl.int32)
        added = tl.where(((byte >> (index & 7).to(tl.int32)) & 1) != 0, committed, 0.0)
    tl.store(out + index, narrow(weight + added, DTYPE), mask=inside)


@triton.jit
def _compose_owned(v, w_bar, owner, out, count, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(v + index, mask=inside, other=0)
    committed = tl.load(w_bar + index, mask=inside, other=0)
    free = (tl.load(owner + index, mask=inside, other=0) & 0x7F) == 0
    product = narrow(widen(value) * widen(committed), DTYPE)
    tl.store(out + index, tl.where(free, value, product), mask=inside)


def _launch_compose(w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor) -> None:
    count = out.numel()
    if count == 0:
        return
    if mask.dtype == torch.bool:
        kind, mask = "boolean", mask.contiguous().view(torch.uint8)
    else:
        kind, mask = "bits" if mask.dtype == torch.uint8 else "values", mask.contiguous()
    with on_device_of(out):
        _compose[(parts_of(count, _BLOCK),)](
            w.contiguous(),
            mask,
            w_bar.contiguous(),
            out,
            count,
            KIND=kind,
            DTYPE=FLOATS[out.dtype],
            BLOCK=_BLOCK,
            **_OPTIONS,
        )


def _launch_compose_owned(v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor) -> None:
    count = out.numel()
    if count == 0:
        return
    with on_device_of(out):
        _compose_owned[(parts_of(count, _BLOCK),)](
            v.contiguous(),
            w_bar.contiguous(),
            owner.contiguous(),
            out,
            count,
            DTYPE=FLOATS[out.dtype],
            BLOCK=_BLOCK,
            **_OPTIONS,
        )


def compose(w: Tensor, mask: Tensor, w_bar: Tensor) -> Tensor:
    """``w + mask * w_bar``."""
    out: Tensor = REGISTRY["compose"].fake(w, mask, w_bar)
    _launch_compose(w, mask, w_bar, out)
    return out


def compose_out(w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor) -> None:
    """``w + mask * w_bar``, written to ``out``."""
    REGISTRY["compose_out"].fake(w, mask, w_bar, out)
    _check_out("compose_out", "w", w, out, (("w", w), ("mask", mask), ("w_bar", w_bar)))
    _launch_compose(w, mask, w_bar, out)


def compose_owned(v: Tensor, w_bar: Tensor, owner: Tensor) -> Tensor:
    """``v`` where free, ``v * w_bar`` where owned."""
    out: Tensor = REGISTRY["compose_owned"].fake(v, w_bar, owner)
    _launch_compose_owned(v, w_bar, owner, out)
    return out


def compose_owned_out(v: Tensor, w_bar: Tensor, owner: Tensor, out: Tensor) -> None:
    """``v`` where free, ``v * w_bar`` where owned, written to ``out``."""
    REGISTRY["compose_owned_out"].fake(v, w_bar, owner, out)
    _check_out("compose_owned_out", "v", v, out, (("v", v), ("w_bar", w_bar), ("owner", owner)))
    _launch_compose_owned(v, w_bar, owner, out)


def _ahead(name: str, kernel: Any, pointers: Sequence[str], bytes_in: str, **constants: object) -> list[Ahead]:
    return [
        Ahead(
            f"{name}[{', '.join(map(str, (dtype, *constants.values())))}]",
            kernel,
            {pointer: "*u8" if pointer == bytes_in else f"*{dtype}" for pointer in pointers} | {"count": "i64"},
            {**constants, "DTYPE": dtype, "BLOCK": _BLOCK},
            _OPTIONS,
        )
        for dtype in FLOATS.values()
    ]


KERNELS: Kernels = {
    "compose": compose,
    "compose_out": compose_out,
    "compose_owned": compose_owned,
    "compose_owned_out": compose_owned_out,
}
AOT = [
    *_ahead("compose", _compose, ("w", "mask", "w_bar", "out"), "", KIND="values"),
    *_ahead("compose", _compose, ("w", "mask", "w_bar", "out"), "mask", KIND="boolean"),
    *_ahead("compose", _compose, ("w", "mask", "w_bar", "out"), "mask", KIND="bits"),
    *_ahead("compose_owned", _compose_owned, ("v", "w_bar", "owner", "out"), "owner"),
]
