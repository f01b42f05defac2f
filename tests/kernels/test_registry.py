"""The meta-test: fails when an op is declared without anything that the other tests need to judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import lps_kernels
from lps_kernels._registry import REGISTRY, Cost, Op, Sample, Tolerance
from tests.helpers import copy_of, counts_of, each_op, map_tensors, names_of, tensors_in
from tests.kernels.test_ops_autograd import GRADCHECKED, PLAIN
from tests.native.adaptors import ADAPTORS

# Around the 8 lanes of a block and the 32 bytes of a register.
EDGE_SIZES = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33}
SMALL_SHAPES = [(6, 4), (5, 2, 3)]


def missing(op: Op) -> list[str]:
    """Everything that the op lacks, one phrase each."""
    checks = (_samples, _refusals, _tolerance, _workload, _schema, _fake, _gradients, _kernels, _on_gpu)
    return [f"{op.name}: {phrase}" for check in checks for phrase in check(op)]


def floats(values: object) -> list[Tensor]:
    return [tensor for tensor in tensors_in(values) if tensor.is_floating_point()]


def _samples(op: Op) -> Iterator[str]:
    for dtype in op.dtypes:
        samples = list(op.samples(dtype))
        if not samples:
            yield f"no samples in {dtype}"
            continue
        if len({sample.name for sample in samples}) < len(samples):
            yield f"two samples of the same name in {dtype}"
        tensors = [tensors_in(sample.args) for sample in samples]
        # Sizes of what goes in and of what comes out: an op on packed bits has its edges there.
        sizes = {tensor.numel() for some in tensors for tensor in some}
        sizes |= {tensor.numel() for sample in samples for tensor in tensors_in(op.fake(*sample.args))}
        if EDGE_SIZES - sizes:
            yield f"no sample of sizes {sorted(EDGE_SIZES - sizes)} in {dtype}"
        if all(tensor.is_contiguous() for some in tensors for tensor in some):
            yield f"no sample that is not contiguous in {dtype}"
        if dtype.is_floating_point and not any(_has_nan_and_inf(sample) for sample in samples):
            yield f"no sample with NaN and Inf in {dtype}"
        for index in counts_of(op):
            yield from (f"{phrase} in {dtype}" for phrase in _counts(op, index, samples))


def _has_nan_and_inf(sample: Sample) -> bool:
    numbers = torch.cat([tensor.flatten() for tensor in floats(sample.args)] or [torch.empty(0)])
    return bool(numbers.isnan().any()) and bool(numbers.isinf().any())


def _counts(op: Op, index: int, samples: list[Sample]) -> Iterator[str]:
    """What the samples lack around the counts at this place of the arguments."""
    name = names_of(op)[index]
    if not any(not any(sample.args[index]) and _takes_more(op, index, sample, all) for sample in samples):
        yield f"no sample that has {name} 0 where there is something to keep"
    if not any(max(sample.args[index]) > 1 and not _takes_more(op, index, sample, any) for sample in samples):
        yield f"no sample that has {name} at its largest"
    weights = [tensor for sample in samples for tensor in floats(sample.args) if tensor.numel() > 1]
    if not any(bool((tensor == tensor.flatten()[0]).all()) for tensor in weights):
        yield "no sample with all weights equal"


def _takes_more(op: Op, index: int, sample: Sample, layers: Callable[[Iterator[bool]], bool]) -> bool:
    """Whether one more is accepted, in any or in all of the layers."""
    counts = sample.args[index]

    def accepts(layer: int) -> bool:
        args = [*copy_of(sample.args)]
        args[index] = [count + (other == layer) for other, count in enumerate(counts)]
        try:
            op.reference(*args)
        except RuntimeError:
            return False
        return True

    return layers(accepts(layer) for layer in range(len(counts)))


def _refusals(op: Op) -> Iterator[str]:
    bad = list(op.bad_inputs())
    if not bad:
        yield "no bad inputs"
    if len({one.name for one in bad}) < len(bad):
        yield "two bad inputs of the same name"


def _tolerance(op: Op) -> Iterator[str]:
    if not op.tolerance.reason:
        yield "no reason for its tolerance"
    for dtype in op.dtypes:
        if dtype not in op.tolerance.relative:
            yield f"no tolerance in {dtype}"


def _workload(op: Op) -> Iterator[str]:
    calls = op.workload(SMALL_SHAPES)
    if not calls:
        yield "no workload"
    for args in calls:
        cost = op.cost(*args)
        if cost.bytes <= 0 or cost.flops < 0:
            yield f"a cost of {cost.bytes} bytes and {cost.flops} flops"
        op.reference(*args)


def _schema(op: Op) -> Iterator[str]:
    arguments = op.overload._schema.arguments
    written = {argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write}
    if written != set(op.mutates):
        yield f"mutates {sorted(op.mutates)}, but its schema says {sorted(written)}"
    for name in (*op.mutates, *op.differentiable):
        if name not in names_of(op):
            yield f"names an argument {name} that its schema does not have"


def _fake(op: Op) -> Iterator[str]:
    for args in op.workload(SMALL_SHAPES):
        with FakeTensorMode() as mode:
            fakes = map_tensors(args, mode.from_tensor)
            traced = [(tensor.shape, tensor.dtype) for tensor in tensors_in(op.overload(*fakes))]
        if traced != [(tensor.shape, tensor.dtype) for tensor in tensors_in(op.reference(*args))]:
            yield "a shape function that disagrees with the reference"


def _gradients(op: Op) -> Iterator[str]:
    for name in op.differentiable:
        if (op.name, name) not in GRADCHECKED or op.name not in PLAIN:
            yield f"no gradient test in {name}"


def _kernels(op: Op) -> Iterator[str]:
    if op.name not in ADAPTORS:
        yield "no adaptor in tests/native, so no instruction set is tested"
    native = next(backend for backend in lps_kernels.backends() if backend.name == "native")
    if native.active and not torch._C._dispatch_has_kernel_for_dispatch_key(f"lps::{op.name}", "CPU"):
        yield "no native CPU kernel"


def _on_gpu(op: Op) -> Iterator[str]:
    if op.launches < 1:
        yield f"{op.launches} launches"
    if op.tensor_cores and op.sums != "products":
        yield "tensor cores, but no sums of products"


@each_op
def test_the_op_lacks_nothing(op: Op) -> None:
    found = missing(op)
    assert not found, "\n".join(found)


def test_every_native_kernel_and_adaptor_belongs_to_a_declared_op() -> None:
    assert ADAPTORS.keys() == REGISTRY.keys()
    registered = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "lps::" in name
    }
    assert {name for name in registered if not name.startswith("_")} == set(REGISTRY)


def _only(op: Op, wanted: Callable[[Sample], bool]) -> Callable[[torch.dtype], Iterator[Sample]]:
    return lambda dtype: filter(wanted, op.samples(dtype))


def _dense(sample: Sample) -> bool:
    return all(tensor.is_contiguous() for tensor in tensors_in(sample.args))


PROJECT = REGISTRY["project"]
FAULTS: dict[str, tuple[Op, str]] = {
    "samples": (replace(PROJECT, samples=lambda dtype: iter(())), "no samples in torch.float32"),
    "sizes": (
        replace(PROJECT, samples=_only(PROJECT, lambda sample: "size 17" not in sample.name)),
        "no sample of sizes [17] in torch.float64",
    ),
    "strides": (
        replace(PROJECT, samples=_only(PROJECT, _dense)),
        "no sample that is not contiguous in torch.bfloat16",
    ),
    "nan": (
        replace(PROJECT, samples=_only(PROJECT, lambda sample: "NaN" not in sample.name)),
        "no sample with NaN and Inf in torch.float16",
    ),
    "none": (
        replace(PROJECT, samples=_only(PROJECT, lambda sample: "keep none" not in sample.name)),
        "no sample that has keep 0 where there is something to keep in torch.float32",
    ),
    "all": (
        replace(PROJECT, samples=_only(PROJECT, lambda sample: "keep all" not in sample.name)),
        "no sample that has keep at its largest in torch.float32",
    ),
    "equal": (
        replace(PROJECT, samples=_only(PROJECT, lambda sample: "all equal" not in sample.name)),
        "no sample with all weights equal in torch.float32",
    ),
    "refusals": (replace(PROJECT, bad_inputs=lambda: iter(())), "no bad inputs"),
    "reason": (replace(PROJECT, tolerance=Tolerance(PROJECT.tolerance.relative, "")), "no reason for its tolerance"),
    "tolerance": (replace(PROJECT, tolerance=Tolerance({}, "none")), "no tolerance in torch.float32"),
    "cost": (replace(PROJECT, cost=lambda *args: Cost(0, 0)), "a cost of 0 bytes and 0 flops"),
    "workload": (replace(PROJECT, workload=lambda shapes: []), "no workload"),
    "mutates": (replace(PROJECT, mutates=("x",)), "mutates ['x'], but its schema says []"),
    "argument": (replace(PROJECT, differentiable=("z",)), "names an argument z that its schema does not have"),
    "gradients": (replace(PROJECT, differentiable=("x",)), "no gradient test in x"),
    "launches": (replace(PROJECT, launches=0), "0 launches"),
    "tensor cores": (replace(PROJECT, tensor_cores=True), "tensor cores, but no sums of products"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_op_that_lacks_something_is_found_out(fault: str) -> None:
    op, phrase = FAULTS[fault]
    assert f"project: {phrase}" in missing(op)


def test_an_op_without_kernels_or_a_right_shape_function_is_found_out() -> None:
    definition = torch.library.custom_op(
        "lps::_unfinished", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    definition.register_fake(lambda x: x.new_empty(x.numel() + 1))

    def workload(shapes: Sequence[tuple[int, ...]]) -> list[tuple[Any, ...]]:
        return [(torch.zeros(shape),) for shape in shapes]

    op = replace(
        REGISTRY["pack_bits"],
        name="_unfinished",
        reference=lambda x: x.clone(),
        fake=lambda x: x.new_empty(x.numel() + 1),
        workload=workload,
    )
    found = missing(op)
    assert "_unfinished: a shape function that disagrees with the reference" in found
    assert "_unfinished: no adaptor in tests/native, so no instruction set is tested" in found
    if lps_kernels.backends()[0].active:
        assert "_unfinished: no native CPU kernel" in found
