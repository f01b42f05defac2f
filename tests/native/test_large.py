"""Calls larger than the caches, whose stores go past them: the same bits, whatever the arrays are aligned to."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from lps_kernels._registry import REGISTRY, Args, Op
from lps_kernels._samples import Draw
from lps_kernels.ops.bits import pack_reference
from tests.helpers import CorrectSqrt, assert_same_bits, copy_of, counts_of, each_op_and_dtype, map_tensors, results_of
from tests.native.adaptors import ADAPTORS, Native

pytestmark = pytest.mark.native

# Kernels stream from 16 MiB per call on: three arrays of 3 M 16-bit weights. Neither size is a multiple of a block.
SHAPES = [(3001, 1001), (3,)]


def check(op: Op, args: Args, bridge: ModuleType, what: str) -> None:
    """Both instruction sets, with arrays at cache lines and between them."""
    with CorrectSqrt():
        want = results_of(op, op.reference, copy_of(args))
    for isa in bridge.isas():
        for shifted in (False, True):
            got = ADAPTORS[op.name](Native(bridge, isa, threads=2, grain=1, shifted=shifted), *args)
            assert_same_bits(got, want, f"{what} on {isa}{', shifted' if shifted else ''}")


def streams(op: Op, dtype: torch.dtype) -> bool:
    """Ops in which each float of the result depends on one place of the arguments, and the straight-through step."""
    elementwise = op.sums is None and not counts_of(op)
    return (elementwise or "thresholds" in op.mutates) and dtype.is_floating_point


@each_op_and_dtype(streams)
def test_streamed_results_have_the_bits_of_the_reference(op: Op, dtype: torch.dtype, bridge: ModuleType) -> None:
    for index, call in enumerate(op.workload(SHAPES)):
        args = map_tensors(call, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
        check(op, args, bridge, f"{op.name}, layer {index}")


@pytest.mark.parametrize("dtype", REGISTRY["compose"].dtypes, ids=str)
def test_streamed_composition_takes_every_kind_of_mask(dtype: torch.dtype, bridge: ModuleType) -> None:
    draw = Draw()
    w, mask = draw.normal(SHAPES[0], dtype), draw.boolean(SHAPES[0])
    for kind, given in (("bool", mask), ("bits", pack_reference(mask))):
        check(REGISTRY["compose"], (w, given, w.flip(0)), bridge, f"{kind} mask")
