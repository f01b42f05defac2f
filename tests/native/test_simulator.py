"""The CUDA simulator itself: small kernels give the right results in every order, and every seeded fault is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.native.build import load
from tests.native.sanitizers import run_sanitized
from tests.native.simulator.run_demo import NUMBERS, right

pytestmark = pytest.mark.simulator

SOURCE = (Path(__file__).parent / "simulator" / "demo.cu").read_text(encoding="utf-8").splitlines()
Build = Callable[[str], Path]


def runner(demo: ModuleType, order: int = 0) -> object:
    return demo.Runner(order, processors=4, tf32=False)


@pytest.mark.parametrize("kernel", ["sum", "reverse_tiles"])
def test_right_kernels_are_right_in_every_order(kernel: str, demo: ModuleType) -> None:
    assert all(right(demo, kernel, "none", order) for order in demo.orders())


def test_threads_and_blocks_take_turns_in_four_orders(demo: ModuleType) -> None:
    ascending = list(range(3 * 64))
    before, after = zip(*(demo.turns(runner(demo, order), 3) for order in demo.orders()), strict=True)
    assert len(before) == 4
    for turns in (before, after):
        assert turns[0] == ascending
        assert turns[1] == ascending[::-1]
        for shuffled in turns[2:]:
            assert sorted(shuffled) == ascending
            # Blocks one after another, but not in order; nor are the threads of any of them.
            blocks = [{number // 64 for number in shuffled[i : i + 64]} for i in (0, 64, 128)]
            assert all(len(block) == 1 for block in blocks)
            assert all(shuffled[i : i + 64] != sorted(shuffled[i : i + 64]) for i in (0, 64, 128))
        assert turns[2] != turns[3]
    assert before[2] != after[2], "a barrier shuffles the threads anew"


def test_collectives_give_what_cuda_says(demo: ModuleType) -> None:
    lanes = range(32)
    x = [(7 * lane + lane // 5) % 23 for lane in lanes]
    odd = [value % 2 for value in x]

    def ballot(votes: list[int], over: range = lanes) -> int:
        return sum(votes[lane] << lane for lane in over)

    def at(lane: int, other: int, width: int) -> int:
        """The other lane's number where it is in the same segment, else one's own."""
        inside = lane // width * width <= other < lane // width * width + width
        return x[other if inside else lane]

    halves = [ballot(odd, range(16))] * 16 + [ballot([1 - o for o in odd], range(16, 32))] * 16
    want = [
        [x[31 - lane] for lane in lanes],
        [x[lane // 8 * 8 + 1] for lane in lanes],
        [at(lane, lane - 3, 32) for lane in lanes],
        [at(lane, lane - 3, 16) for lane in lanes],
        [at(lane, lane + 5, 32) for lane in lanes],
        [at(lane, lane + 5, 8) for lane in lanes],
        [x[lane ^ 6] for lane in lanes],
        [x[lane ^ 6] for lane in lanes],
        [ballot(odd)] * 32,
        [1] * 32,
        [0] * 32,
        [ballot([int(other % 5 == value % 5) for other in x]) for value in x],
        [sum(x)] * 32,
        [max(x)] * 32,
        [sum(odd)] * 32,
        [1] * 32,
        [0] * 32,
        halves,
    ]
    for order in demo.orders():
        got = demo.collectives(runner(demo, order), x)
        assert [got[32 * i : 32 * i + 32] for i in range(len(want))] == want


# Depths of one and of several instructions; TF32 takes 8 at a time, the others 16.
@pytest.mark.parametrize("depth", [16, 48])
@pytest.mark.parametrize(("factor", "dtype"), [(0, torch.float16), (1, torch.bfloat16), (2, torch.float32)])
def test_tensor_cores_multiply_as_matrices_do(factor: int, dtype: torch.dtype, depth: int, demo: ModuleType) -> None:
    torch.manual_seed(depth)
    a, b, d = torch.randn(16, depth), torch.randn(8, depth), torch.randn(16, 8)
    got = torch.tensor(demo.product(runner(demo), factor, *(t.flatten().tolist() for t in (a, b, d)))).view(16, 8)
    if dtype == torch.float32:  # TF32 has 10 bits of mantissa; the other 13 are cut off
        a, b = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b))
    want = d.double() + a.to(dtype).double() @ b.to(dtype).double().T
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [0, 1, 2])
def test_tensor_cores_cut_off_what_does_not_fit(factor: int, demo: ModuleType) -> None:
    a, b, depth = [0.0] * 16 * 16, [0.0] * 8 * 16, 16
    a[::depth], b[::depth] = [2.0**-12] * 16, [1.875 * 2.0**-12] * 8
    for sign in (1.0, -1.0):
        # The nearest float to 1 + 1.875 * 2^-24 is 1 + 2^-23.
        got = demo.product(runner(demo), factor, [sign * value for value in a], b, [sign] * 16 * 8)
        assert got == [sign] * 16 * 8


@pytest.mark.parametrize(
    ("fault", "at", "message"),
    [
        ("divergent_barrier", "__syncthreads();", r"divergent barrier, thread \(\d+, 0, 0\) has left the kernel"),
        ("two_barriers", "__syncthreads();", r"divergent barrier, thread \(\d+, 0, 0\) waits in __syncthreads"),
        ("early_exit", "__syncthreads();", r"divergent barrier, thread \(40, 0, 0\) has left the kernel"),
        ("early_exit_of_lane", "__shfl_xor_sync", r"divergent collective, thread \(\d+, 0, 0\) has left the kernel"),
        ("divergent_collective", "__shfl", r"divergent collective, thread \(\d+, 0, 0\) waits in __shfl"),
        ("two_collectives", "__shfl_xor_sync", r"divergent collective, thread \(\d+, 0, 0\) waits in __shfl_xor_sync"),
        ("wrong_mask", "__shfl_xor_sync(0xfffffffeu", "the mask lacks|which the mask lacks"),
        (
            "read_outside_mask",
            "__shfl_xor_sync(0x0000ffffu",
            r"a lane reads lane (1[6-9]|[23]\d), which the mask lacks",
        ),
    ],
)
def test_divergence_is_reported_in_every_order_with_its_place(
    fault: str, at: str, message: str, demo: ModuleType
) -> None:
    for order in demo.orders():
        with pytest.raises(RuntimeError, match=message) as raised:
            right(demo, "sum", fault, order)
        place = re.match(
            r"sum_kernel, block \(\d, 0, 0\), thread \(\d+, 0, 0\), demo.cu:(\d+): __\w+: ", str(raised.value)
        )
        assert place is not None, raised.value
        assert at in SOURCE[int(place[1]) - 1]
        assert right(demo, "sum", "none", order), "the next launch is none the worse"


def test_shared_memory_that_nobody_wrote_is_not_zero(demo: ModuleType) -> None:
    assert not any(right(demo, "sum", "uninitialised_shared", order) for order in demo.orders())


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (0, 32, 0, "the grid is empty"),
        (1, 0, 0, "the block is empty"),
        (1, 1025, 0, "more than 1024 threads in a block"),
        (1, 32, 48 * 1024 + 1, "more than 48 KiB of shared memory"),
    ],
)
def test_launches_that_hardware_refuses_are_refused(
    grid: int, block: int, shared: int, message: str, demo: ModuleType
) -> None:
    with pytest.raises(RuntimeError, match=f"nothing_kernel: invalid launch: {message}"):
        demo.nothing(runner(demo), grid, block, shared)
    demo.clear()
    demo.nothing(runner(demo), 3, 1024, 48 * 1024)
    assert demo.launches() == ["nothing_kernel"]


@pytest.mark.parametrize("build", ["address", "thread"])
@pytest.mark.parametrize("kernel", ["sum", "reverse_tiles"])
def test_sanitizers_have_nothing_to_say_of_right_kernels(build: str, kernel: str, simulator: Build) -> None:
    done = run_sanitized(build, "tests.native.simulator.run_demo", str(simulator(f"demo_{build}")), kernel, "none")
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 4), done.stderr


@pytest.mark.parametrize(
    ("build", "kernel", "fault", "report", "line"),
    [
        ("address", "sum", "read_outside", "heap-buffer-overflow", "mine += x["),
        ("address", "sum", "write_outside_shared", "heap-buffer-overflow", "sums["),
        ("thread", "sum", "missing_barrier", "data race", "sums["),
        ("thread", "reverse_tiles", "early_overwrite", "data race", "tile["),
        ("thread", "sum", "lost_atomic", "data race", "*out += mine"),
    ],
)
def test_sanitizers_name_the_line_of_a_fault(
    build: str, kernel: str, fault: str, report: str, line: str, simulator: Build
) -> None:
    done = run_sanitized(build, "tests.native.simulator.run_demo", str(simulator(f"demo_{build}")), kernel, fault)
    assert done.returncode != 0
    assert report in done.stderr
    place = re.search(rf"#0 .*{kernel.split('_', maxsplit=1)[0]}_kernel .*demo\.cu:(\d+)", done.stderr)
    assert place is not None, done.stderr
    assert line in SOURCE[int(place[1]) - 1]


def test_traffic_is_counted_to_the_byte(simulator: Build, demo: ModuleType) -> None:
    counting, count = load(simulator("demo_counting"), "simulator_demo"), 4 * 100
    for order in counting.orders():
        counting.clear()
        x = NUMBERS[:count]
        assert counting.traffic(runner(counting, order), x) == [2 * value for value in x] + x
        threads = count // 4
        assert counting.traffic_counts() == {
            "traffic_kernel": {
                "x": (4 * count, 0),
                "out": (0, 8 * count),
                "counter": (4 * threads, 4 * threads),
                "table": (4 * threads, 0),
            }
        }
    demo.clear()
    demo.traffic(runner(demo), NUMBERS[:count])
    assert demo.traffic_counts() == {}, "only the counting build counts"
