"""The CUDA kernels on the simulator: the references' bits in every order, no fault that a sanitizer sees, few bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lps_kernels._registry import REGISTRY, Args, BadInput, Op, Sample
from lps_kernels.packing import pack_linear
from tests.helpers import (
    OPS,
    CorrectSqrt,
    assert_same_bits,
    copy_of,
    each_op_and_dtype,
    each_op_where,
    each_selecting_op,
    finite,
    names_of,
    results_of,
    shortfalls,
    small_samples,
)
from tests.native.adaptors import ADAPTORS, ShortfallError, Simulated, upload
from tests.native.build import load
from tests.native.sanitizers import run_sanitized
from tests.native.simulator.count_traffic import LAYER, count_call
from tests.native.simulator.faults import FAMILIES, FAULTS, Fault
from tests.native.simulator.mutants import SOURCES, build_mutant
from tests.native.simulator.run_samples import chosen

pytestmark = pytest.mark.simulator

Build = Callable[[str], Path]
Outcome = tuple[int, str]
PROCESSORS = (4, 1, 132, 3)  # of the devices that the four orders are simulated on


def ways(bridge: ModuleType) -> Iterator[Simulated]:
    """Every order, on a device of its own size, with arrays at cache lines and between them."""
    for order, processors in zip(bridge.orders(), PROCESSORS, strict=True):
        yield Simulated(bridge, order, processors, shifted=order % 2 == 1)


def label(sample: Sample, way: Simulated) -> str:
    return f"{sample.name}, order {way.order}, {way.processors} multiprocessors"


@each_op_and_dtype(lambda op, dtype: op.sums is None)
def test_kernels_give_the_bits_of_the_reference_in_every_order(
    op: Op, dtype: torch.dtype, simulated: ModuleType
) -> None:
    every = list(ways(simulated))
    for sample in op.samples(dtype):
        with CorrectSqrt():
            want = results_of(op, op.reference, copy_of(sample.args))
        for way in every:
            assert_same_bits(ADAPTORS[op.name](way, *sample.args), want, label(sample, way))


@each_op_and_dtype(lambda op, dtype: op.sums is not None)
def test_sums_have_the_same_bits_in_every_order_and_are_those_of_the_reference(
    op: Op, dtype: torch.dtype, simulated: ModuleType
) -> None:
    relative = op.tolerance.relative[dtype]
    # A product's depth is cut by the number of multiprocessors, so its bits are those of one device.
    every = [Simulated(simulated, order, shifted=order % 2 == 1) for order in simulated.orders()]
    for sample in op.samples(dtype):
        reference = results_of(op, op.reference, copy_of(sample.args))
        got = [ADAPTORS[op.name](way, *sample.args) for way in every]
        torch.testing.assert_close(got[0], reference, rtol=relative, atol=16 * relative, equal_nan=True)
        for way, other in zip(every[1:], got[1:], strict=True):
            assert_same_bits(other, got[0], label(sample, way))


@each_op_and_dtype(lambda op, dtype: op.sums is not None)
def test_sums_are_right_on_devices_of_any_size(op: Op, dtype: torch.dtype, simulated: ModuleType) -> None:
    relative = op.tolerance.relative[dtype]
    for sample in small_samples(op, dtype, 12, 100_000):
        reference = results_of(op, op.reference, copy_of(sample.args))
        for processors in (1, 132):
            got = ADAPTORS[op.name](Simulated(simulated, processors=processors), *sample.args)
            torch.testing.assert_close(got, reference, rtol=relative, atol=16 * relative, equal_nan=True)


@each_op_where(lambda op: op.tensor_cores)
def test_products_round_to_tf32_where_that_is_allowed_and_only_there(op: Op, simulated: ModuleType) -> None:
    samples = list(filter(finite, op.samples(torch.float32)))
    wanted = [results_of(op, op.reference, copy_of(sample.args))[0] for sample in samples]
    sample, want = max(zip(samples, wanted, strict=True), key=lambda pair: pair[1].numel())
    errors = []
    for tf32 in (False, True):
        (got,) = ADAPTORS[op.name](Simulated(simulated, tf32=tf32), *sample.args)
        errors.append(float((got - want).abs().max() / want.abs().max()))
    # TF32 has 10 bits after the leading one.
    assert errors[0] < 2.0**-18
    assert 2.0**-16 < errors[1] < 2.0**-9


def test_long_sums_do_not_drift(simulated: ModuleType) -> None:
    torch.manual_seed(0)
    x, weight = torch.rand(2, 16384), torch.rand(3, 16384)
    args: Args = x, pack_linear(weight), None, None, None, 3, False
    # One multiprocessor: the depth is cut into two parts only.
    (got,) = ADAPTORS["structured_linear"](Simulated(simulated, processors=1), *args)
    want = x.double() @ weight.double().T
    # Sums that tensor cores go on with would be 2e-5 too small here.
    assert float(((got - want) / want).abs().max()) < 1e-6


def with_keep(op: Op, bad: BadInput, keep: int | None) -> Args:
    """The call with the count that it is refused for replaced, by all the groups that there are where None is given."""
    found = re.search(r"(\w+)\[(\d+)\]: expected between 0 and (\d+)", bad.message)
    assert found is not None
    args = list(bad.args)
    counts = list(args[names_of(op).index(found[1])])
    counts[int(found[2])] = int(found[3]) if keep is None else keep
    args[names_of(op).index(found[1])] = counts
    return tuple(args)


@each_selecting_op
def test_a_shortfall_that_sizes_tell_is_reported_and_nothing_is_written(op: Op, simulated: ModuleType) -> None:
    for bad in shortfalls(op):
        for way in ways(simulated):
            for keep in (-1, 1000):
                with pytest.raises(ShortfallError) as raised:
                    ADAPTORS[op.name](way, *with_keep(op, bad, keep))
                assert f"[{raised.value.layer}]: expected between 0 and " in bad.message
                assert raised.value.untouched, bad.name


@each_selecting_op
def test_more_groups_than_a_region_has_are_all_of_them(op: Op, simulated: ModuleType) -> None:
    by_values = [bad for bad in shortfalls(op) if bad.reads_values]
    assert len(by_values) >= 2
    for bad in by_values:
        want = results_of(op, op.reference, copy_of(with_keep(op, bad, None)))
        for way in ways(simulated):
            assert_same_bits(ADAPTORS[op.name](way, *bad.args), want, bad.name)


@pytest.mark.parametrize("size", [4, 32_736, 32_740, 100_000])
def test_uploads_copy_every_byte(size: int, simulated: ModuleType) -> None:
    table = torch.randint(256, (size,), dtype=torch.uint8)
    for way in ways(simulated):
        assert_same_bits(upload(way, table), [table], label(Sample(f"{size} bytes", ()), way))


def text_of(names: Iterable[str]) -> str:
    return "\n".join((SOURCES / name).read_text(encoding="utf-8") for name in names)


def kernels_in_the_sources() -> set[str]:
    bounds = r"(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?"
    text = text_of(path.name for path in SOURCES.glob("*.cu*"))
    names = re.findall(rf"__global__\s+void\s+{bounds}(\w+)\(", text)
    assert len(names) == text.count("__global__")
    return set(names)


# The address sanitizer sees every sample in one order, the orders taking turns. The thread sanitizer keeps a record of
# every thread, so it sees every tenth of those with up to ``most`` elements.
@pytest.mark.parametrize(("build", "most", "step"), [("address", 1 << 40, 1), ("thread", 110_000, 10)])
def test_every_kernel_runs_in_every_order_without_a_fault_that_a_sanitizer_sees(
    build: str, most: int, step: int, simulator: Build
) -> None:
    module = str(simulator(f"cuda_{build}"))
    done = run_sanitized(build, "tests.native.simulator.run_samples", module, str(most), str(step))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["calls"] == sum(len(chosen(op, dtype, most, step)) for op in OPS for dtype in op.dtypes)
    assert report["kernels"] == [sorted(kernels_in_the_sources())] * 4


def admm_layers(count: int) -> Args:
    """A call over ``count`` small layers, every kind of group among them."""
    torch.manual_seed(count)
    shapes = [(3 + i % 3, 4, 2) for i in range(count)]
    v, centre = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    owner = [torch.randint(0, 3, shape, dtype=torch.uint8) for shape in shapes]
    views = [
        size for i, (a, b, c) in enumerate(shapes) for size in [(1, a * b * c, 1), (1, a, b * c), (a, b, c)][i % 3]
    ]
    return v, centre, owner, [1] * count, [1] * count, views, views, False, False


def test_an_admm_update_takes_few_launches_for_any_number_of_layers(simulated: ModuleType) -> None:
    launches = []
    for count in (53, 500):
        device, args = Simulated(simulated), admm_layers(count)
        simulated.clear()
        assert_same_bits(
            ADAPTORS["admm_update_"](device, *args),
            results_of(REGISTRY["admm_update_"], REGISTRY["admm_update_"].reference, copy_of(args)),
            f"{count} layers",
        )
        launches.append(simulated.launches())
    assert launches[0] == launches[1]
    assert len(launches[0]) <= 8


def straight_layers(count: int, grouped: bool) -> Args:
    """A straight-through step over ``count`` small layers; where ``grouped``, every kind of group among them."""
    v, _, owner, keep_free, keep_owned, views, _, _, _ = admm_layers(count)
    single = [size for layer in v for size in (1, layer.numel(), 1)]
    effective, grad, w_bar, mean = ([torch.randn_like(layer) for layer in v] for _ in range(4))
    lists = effective, grad, v, w_bar, owner, mean, [torch.rand_like(layer) for layer in v]
    scalars: Args = (True, "all", 3, 1e-3, 1e-2, 0.9, 0.999, 1e-8, 0.0, [], [], None)
    hints = torch.full((count, 2, 2), torch.nan)
    return *lists, hints, keep_free, keep_owned, views if grouped else single, single, *scalars


def test_a_straight_through_step_takes_few_launches_for_any_number_of_layers(simulated: ModuleType) -> None:
    op = REGISTRY["straight_through_adam_"]
    # Two more where there are scores of groups.
    for grouped, launches in ((False, op.launches), (True, op.launches + 2)):
        for count in (53, 500):
            device, args = Simulated(simulated), straight_layers(count, grouped)
            simulated.clear()
            want = results_of(op, op.reference, copy_of(args))
            assert_same_bits(ADAPTORS[op.name](device, *args), want, f"{count} layers, grouped {grouped}")
            assert len(simulated.launches()) == launches


@pytest.fixture(scope="module")
def counting(simulator: Build) -> ModuleType:
    return load(simulator("cuda_counting"))


def bytes_a_weight(counting: ModuleType, op: str, args: Args, weights: int) -> dict[str, tuple[float, float]]:
    """Loaded and stored, by buffer; buffers are numbered in the order in which the adaptor makes them."""
    counting.clear()
    ADAPTORS[op](Simulated(counting), *args)
    total: dict[str, tuple[float, float]] = {}
    for buffers in counting.traffic_counts().values():
        for name, (loaded, stored) in buffers.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = before[0] + loaded / weights, before[1] + stored / weights
    return total


def test_the_step_moves_at_most_45_bytes_a_weight(counting: ModuleType) -> None:
    (args,) = REGISTRY["proximal_adam_"].workload([(300, 400), (7,)])
    moved = bytes_a_weight(counting, "proximal_adam_", args, 300 * 400 + 7)
    total = sum(loaded + stored for loaded, stored in moved.values())
    # Seven arrays of fp32 of which three are read and written and one only written, and a byte of owner: 41.
    assert 41 <= total <= 45, moved


def test_the_straight_through_step_moves_37_bytes_a_weight_where_its_thresholds_are_good(counting: ModuleType) -> None:
    (args,) = REGISTRY["straight_through_adam_"].workload([(300, 400), (7,)])
    weights, place = 300 * 400 + 7, names_of(REGISTRY["straight_through_adam_"]).index("thresholds")

    def moved_with(thresholds: torch.Tensor) -> float:
        given = *args[:place], thresholds, *args[place + 1 :]
        moved = bytes_a_weight(counting, "straight_through_adam_", given, weights)
        return sum(loaded + stored for loaded, stored in moved.values())

    # Six arrays of fp32 of which three are read and written and one only written, and a byte of owner: 37. One weight
    # in a hundred lies near the threshold: its key and place are written once and read some three times.
    assert 37 <= moved_with(args[place]) <= 38
    # Without a threshold all effective weights are written twice: another 13 bytes, and what the search reads.
    assert moved_with(torch.full_like(args[place], torch.nan)) >= 37 + 13


def test_the_straight_through_step_moves_61_bytes_a_weight_where_weights_learn(counting: ModuleType) -> None:
    op = REGISTRY["straight_through_adam_"]
    (args,) = op.workload([(300, 400), (7,)])
    weights, names = 300 * 400 + 7, names_of(op)
    given = list(args)
    for name in ("weight_exp_avg", "weight_exp_avg_sq"):
        given[names.index(name)] = [torch.rand_like(layer) for layer in args[names.index("v")]]
    moved = bytes_a_weight(counting, op.name, tuple(given), weights)
    # Besides the 37 above, effective weights and two moments are read, and the weights and these moments written.
    assert op.cost(*given).bytes == 61 * weights
    assert 61 <= sum(loaded + stored for loaded, stored in moved.values()) <= 62, moved


def test_thresholds_of_one_step_are_good_for_the_next(counting: ModuleType) -> None:
    op = REGISTRY["straight_through_adam_"]
    (args,) = op.workload([(300, 400)])
    thresholds = args[names_of(op).index("thresholds")]
    thresholds.fill_(torch.nan)
    totals = []
    for _ in range(3):
        moved = bytes_a_weight(counting, op.name, args, 300 * 400)
        totals.append(sum(loaded + stored for loaded, stored in moved.values()))
        op.reference(*args)
    assert totals[0] > 50
    # The first distance is wide: an eighth of the threshold to each side, and one weight in fourteen lies inside.
    assert max(totals[1:]) < 41, totals


@pytest.mark.parametrize("groups", ["weights", "rows", "columns"])
def test_a_projection_reads_the_values_twice_and_writes_them_once(groups: str, counting: ModuleType) -> None:
    torch.manual_seed(0)
    rows, columns = 500, 800
    weights = rows * columns
    x = torch.randn(rows, columns)
    view, score = {
        "weights": ([1, weights, 1], "magnitude"),
        "rows": ([1, rows, columns], "l2"),
        "columns": ([rows, columns, 1], "l2"),
    }[groups]
    args: Args = [x], [], [view[1] // 5], view, score, "all", "values"
    moved = bytes_a_weight(counting, "project", args, weights)
    # The sample that brackets the threshold adds 4096 reads. Scratch memory: values inside the bracket, or a byte for
    # each group, which is read for each of its weights.
    assert 2 * 4 <= moved["buffer 0"][0] <= 2.05 * 4
    assert moved["buffer 0"][1] == 0
    assert moved["buffer 1"] == (0, 4)
    assert moved["buffer 2"] == (0, 1 / 8)
    assert sum(moved["scratch"]) <= 2, moved


@each_op_where(lambda op: op.sums != "products")
def test_kernels_move_the_bytes_and_take_the_launches_that_the_model_of_times_counts(
    op: Op, counting: ModuleType
) -> None:
    (args,) = op.workload([LAYER])
    moved, launches = count_call(counting, op, args)
    must = op.cost(*args).bytes
    # A sample of 4096 weights comes on top where something is selected.
    assert must <= sum(traffic.of_arguments for traffic in moved.values()) <= 1.01 * must
    # Partial sums of groups, and the keys inside a bracket, which a search reads several times.
    assert sum(traffic.own for traffic in moved.values()) <= 0.15 * must
    assert launches == op.launches


def test_every_family_has_a_fault_of_every_kind_that_it_can_have() -> None:
    with_kernels = {path.name for path in SOURCES.glob("*.cu*") if "__global__" in text_of([path.name])}
    assert with_kernels <= {file for files in FAMILIES.values() for file in files}
    for family, files in FAMILIES.items():
        text = text_of(files)
        can = {"out of bounds"}
        can |= {"missing barrier"} if "__syncthreads" in text else set()
        can |= {"lost atomic"} if "atomic" in text else set()
        can |= {"divergent collective"} if re.search(r"__\w+_sync\(|mma", text) else set()
        can |= {"uncorrected forecast"} if "Forecast" in text else set()
        assert {fault.kind for fault in FAULTS if fault.family == family} == can, family


@pytest.fixture(scope="module")
def outcomes(simulator: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[Fault, tuple[Outcome, Outcome]]:
    """Exit code and output of the sample that meets each fault, first without and then with it."""
    healthy = {build: simulator(f"cuda_{build}") for build in ("thread", "address", "plain")}
    rooms = [tmp_path_factory.mktemp("mutant") for _ in FAULTS]
    with ThreadPoolExecutor(2) as pool:
        mutants = list(pool.map(build_mutant, FAULTS, [healthy[fault.build] for fault in FAULTS], rooms))

    def run(build: str) -> dict[Fault, tuple[Outcome, Outcome]]:
        numbers = [number for number, fault in enumerate(FAULTS) if fault.build == build]
        arguments = [str(word) for n in numbers for word in (n, healthy[build], n, mutants[n])]
        done = run_sanitized(build, "tests.native.simulator.run_faults", *arguments)
        assert done.returncode == 0, done.stderr
        runs = json.loads(done.stdout)
        return {FAULTS[n]: pair for n, pair in zip(numbers, zip(runs[::2], runs[1::2], strict=True), strict=True)}

    with ThreadPoolExecutor(2) as pool:
        return {fault: pair for some in pool.map(run, healthy) for fault, pair in some.items()}


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.family}, {fault.kind}, {fault.op}" for fault in FAULTS])
def test_a_fault_in_a_kernel_is_found(fault: Fault, outcomes: dict[Fault, tuple[Outcome, Outcome]]) -> None:
    (code_without, output_without), (code, output) = outcomes[fault]
    assert code_without == 0, output_without
    assert code != 0
    assert fault.report in output
