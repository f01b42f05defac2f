"""The raw kernels of every instruction set: the references' bits for any cut of the work, nothing outside a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from lps_kernels import owner
from lps_kernels._registry import REGISTRY, Op, Sample
from tests.helpers import (
    CorrectSqrt,
    assert_same_bits,
    copy_of,
    each_op_and_dtype,
    each_selecting_op,
    raw_cpu_dtypes,
    results_of,
    shortfalls,
)
from tests.native.adaptors import ADAPTORS, Native, ShortfallError
from tests.native.run_samples import calls_of
from tests.native.sanitizers import run_sanitized

pytestmark = pytest.mark.native


def cuts(bridge: ModuleType) -> Iterator[Native]:
    """Every instruction set in one piece, unit by unit backwards, and on three threads."""
    for isa in bridge.isas():
        yield Native(bridge, isa)
        yield Native(bridge, isa, grain=1, reversed=True, shifted=True)
        yield Native(bridge, isa, threads=3, grain=1)


def test_the_machine_runs_every_instruction_set_that_there_is(bridge: ModuleType) -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    needs = {"scalar": (), "avx2": ("avx2", "fma", "f16c"), "avx512": ("avx512f", "avx512_vbmi2", "avx512vl")}
    assert bridge.isas() == [isa for isa, need in needs.items() if all(f" {flag} " in flags for flag in need)]


def label(sample: Sample, native: Native) -> str:
    return f"{sample.name} on {native.isa}, {native.threads} threads, grain {native.grain}"


@pytest.mark.parametrize("name", ["TASK_BITS", "KEPT_BIT", "FREE", "MAX_TASKS"])
def test_the_owner_byte_is_the_same_in_c_plus_plus_and_in_python(name: str, bridge: ModuleType) -> None:
    assert getattr(bridge, name) == getattr(owner, name)


@each_op_and_dtype(lambda op, dtype: op.sums is None)
def test_kernels_give_the_bits_of_the_reference_for_any_cut(op: Op, dtype: torch.dtype, bridge: ModuleType) -> None:
    ways = list(cuts(bridge))
    for sample in op.samples(dtype):
        with CorrectSqrt():
            want = results_of(op, op.reference, copy_of(sample.args))
        for native in ways:
            assert_same_bits(ADAPTORS[op.name](native, *sample.args), want, label(sample, native))


@each_op_and_dtype(lambda op, dtype: op.sums is not None and dtype in raw_cpu_dtypes(op))
def test_sums_have_the_same_bits_for_any_cut_and_are_those_of_the_reference(
    op: Op, dtype: torch.dtype, bridge: ModuleType
) -> None:
    ways, relative = list(cuts(bridge)), op.tolerance.relative[dtype]
    # The square of an fp64 number is not exact in fp64, and AVX2 does not round it. Nor does any set but the scalar one
    # round products of matrices, and few examples are summed lane by lane. So each set has its own bits there.
    of_its_own = op.sums == "products" or dtype == torch.float64
    for sample in op.samples(dtype):
        want: dict[str, list[Tensor]] = {}
        reference = results_of(op, op.reference, sample.args)
        for native in ways:
            got = ADAPTORS[op.name](native, *sample.args)
            first = want.setdefault(native.isa if of_its_own else "any", got)
            assert_same_bits(got, first, label(sample, native))
            torch.testing.assert_close(got, reference, rtol=relative, atol=16 * relative, equal_nan=True)


@each_selecting_op
def test_a_shortfall_is_reported_and_nothing_is_written(op: Op, bridge: ModuleType) -> None:
    refused = 0
    for bad in shortfalls(op):
        for native in cuts(bridge):
            with pytest.raises(ShortfallError) as raised:
                ADAPTORS[op.name](native, *bad.args)
            shortfall, kind = raised.value, "" if raised.value.region == "all" else f"{raised.value.region} "
            expected = f"between 0 and {shortfall.available} (the {kind}groups of layer {shortfall.layer})"
            assert f"[{shortfall.layer}]: expected {expected}" in bad.message
            assert shortfall.untouched, bad.name
        refused += 1
    assert refused >= 2


def test_no_sample_touches_memory_outside_its_buffers_or_is_undefined(
    sanitized: Callable[[str], Path], bridge: ModuleType
) -> None:
    done = run_sanitized("address", "tests.native.run_samples", str(sanitized("address")))
    assert done.returncode == 0, done.stdout + done.stderr
    calls = sum(len(list(calls_of(op, dtype))) for op in REGISTRY.values() for dtype in raw_cpu_dtypes(op))
    assert done.stdout.split() == [str(len(bridge.isas()) * calls), "calls", *bridge.isas()]


def test_no_sample_races(sanitized: Callable[[str], Path], bridge: ModuleType) -> None:
    done = run_sanitized("thread", "tests.native.run_samples", str(sanitized("thread")), "20")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = sum(len(list(calls_of(op, dtype))) // 20 for op in REGISTRY.values() for dtype in raw_cpu_dtypes(op))
    assert done.stdout.split() == [str(len(bridge.isas()) * calls), "calls", *bridge.isas()]


@pytest.mark.parametrize(
    ("sanitizer", "fault", "report"),
    [
        ("address", "short", "heap-buffer-overflow"),
        ("address", "misaligned", "misaligned address"),
        ("thread", "shared", "data race"),
    ],
)
def test_the_sanitizers_see_a_fault_that_is_put_in_on_purpose(
    sanitizer: str, fault: str, report: str, sanitized: Callable[[str], Path]
) -> None:
    done = run_sanitized(sanitizer, "tests.native.seeded_fault", str(sanitized(sanitizer)), fault)
    assert done.returncode != 0
    assert report in done.stderr
