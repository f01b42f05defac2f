"""Every operator x network x runner for pytest-benchmark: ``pytest benchmarks --benchmark-only``.

The groups of the printed result are one operator on one network, with both backends and all peers in it. An operator
that fails its correctness check is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.cases import case, runners
from benchmarks.devices import why_not_active
from benchmarks.peers import UnavailableError
from benchmarks.roofline import roofline
from benchmarks.shapes import NETWORKS
from benchmarks.timing import measure, time_call, use_two_threads
from lps_kernels._registry import REGISTRY
from lps_kernels._selftest import failure

SECONDS = 1.0
ROOFLINE_SECONDS = 0.2
# A call that takes longer is timed once: the stable sorts of the references take 20 to 30 s on the largest layer.
SLOW_SECONDS = 5.0


def _parameters() -> Iterator[object]:
    for op in REGISTRY:
        for network in NETWORKS:
            for runner in runners(op):
                yield pytest.param(op, network, runner, id=f"{op}-{network}-{runner}")


@pytest.fixture(autouse=True, scope="module")
def _threads() -> None:
    use_two_threads()


@pytest.mark.parametrize(("op", "network", "runner"), list(_parameters()))
def test_kernel(benchmark: Any, op: str, network: str, runner: str) -> None:  # the fixture's class is not typed
    """Times repeated calls on the same state."""
    reason = why_not_active("native")
    if runner == "native" and reason is not None:
        pytest.skip(f"the native kernels are not active: {reason}")
    wrong = failure(op)
    assert wrong is None, f"not timed: {wrong}"
    benchmark.group = f"{op} {network}"
    here = case(op, network)
    try:
        run = here.thunk(runner)
    except UnavailableError as error:
        pytest.skip(f"{runner} does not run here: {error}")
    if time_call(run) > SLOW_SECONDS:
        benchmark.pedantic(run, rounds=1)
        return
    rounds = max(3, min(200, int(SECONDS / time_call(run))))
    benchmark.pedantic(run, rounds=rounds)
    if runner == "native" and not benchmark.disabled:
        traffic = here.traffic()
        median = benchmark.stats.stats.median
        speed = traffic.moved / median
        limit = roofline(traffic.working_set, traffic.written / traffic.moved)
        bandwidth = limit.bandwidth(measure(limit.thunks, ROOFLINE_SECONDS))
        benchmark.extra_info |= {"bytes_per_second": speed, "roofline_share": speed / bandwidth}
        benchmark.extra_info["flops_per_second"] = traffic.flops / median
