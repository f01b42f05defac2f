"""Floats inside kernels: 16-bit floats are computed in fp32; conversions are right on a GPU and when interpreted."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, PLR0124, SIM300

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(x):
    """A 16-bit float as fp32, exactly; any other as it is."""
    if x.dtype == tl.bfloat16:
        # By its bits, because the interpreter's own conversion gets subnormal numbers wrong.
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float16:
        wide = x.to(tl.float32)
    else:
        wide = x
    return wide


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """fp32 rounded to the nearest 16-bit float, ties to even; any other as it is."""
    if DTYPE == tl.bfloat16:
        # By its bits, because the interpreter's own conversion truncates.
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x != x, 0x7FC0, rounded)
        stored = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        stored = x.to(DTYPE)
    return stored
