"""The table of ratios: every operator on every network against its peers, and the comparison with a stored run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

import lps_kernels
from benchmarks.cases import CPU, case, runners
from benchmarks.devices import Device
from benchmarks.peers import UnavailableError
from benchmarks.roofline import roofline
from benchmarks.timing import measure
from lps_kernels._registry import REGISTRY
from lps_kernels._selftest import failure

FORMAT = "lps benchmark table 2"
SECONDS = 1.0
HEADER = (
    f"{'op':<18}{'network':<13}{'p50 ms':>10}  {'p10..p90':<20}{'GB/s':>7}{'roofline':>10}{'GFLOP/s':>9}  faster than"
)


@dataclass(frozen=True)
class OperatorTiming:
    """One operator on one network. Times are in seconds; a ratio is a peer's p50 over that of our first backend."""

    op: str
    network: str
    p50: float
    p10: float
    p90: float
    bytes_per_second: float
    roofline_share: float
    flops_per_second: float  # 0 where nothing is computed
    ratios: dict[str, float]

    def __str__(self) -> str:
        """One line under :data:`HEADER`."""
        spread = f"{1e3 * self.p10:.3f}..{1e3 * self.p90:.3f}"
        flops = f"{self.flops_per_second / 1e9:.1f}" if self.flops_per_second else "-"
        ratios = "  ".join(f"{peer} {ratio:.2f}x" for peer, ratio in self.ratios.items())
        return (
            f"{self.op:<18}{self.network:<13}{1e3 * self.p50:>10.3f}  {spread:<20}{self.bytes_per_second / 1e9:>7.1f}"
            f"{100 * self.roofline_share:>8.0f} %{flops:>9}  {ratios}"
        )


def measure_row(op: str, network: str, device: Device = CPU) -> OperatorTiming:
    """Time our backends, the reference, the peers and the roofline in turns."""
    here = case(op, network, device)
    traffic = here.traffic()
    ours, *others = runners(op, device)
    functions = {ours: here.thunk(ours)}
    device.warm_up(functions[ours])
    for runner in others:
        try:
            thunk = here.thunk(runner)
            device.warm_up(thunk)
        except (UnavailableError, RuntimeError) as error:  # a device may lack what a peer needs
            print(f"{op:<18}{network:<13}without {runner}: {str(error).splitlines()[0]}", flush=True)
        else:
            functions[runner] = thunk
    limit = roofline(traffic.working_set, traffic.written / traffic.moved, device.name)
    timings = measure({**functions, **limit.thunks}, SECONDS, timer=device.time)
    best = timings[ours]
    speed = traffic.moved / best.p50
    share = speed / limit.bandwidth(timings)
    ratios = {runner: timings[runner].p50 / best.p50 for runner in functions if runner != ours}
    return OperatorTiming(op, network, best.p50, best.p10, best.p90, speed, share, traffic.flops / best.p50, ratios)


def print_table(
    ops: Iterable[str],
    networks: Iterable[str],
    stored: dict[tuple[str, str], OperatorTiming] | None,
    device: Device = CPU,
) -> list[OperatorTiming]:
    """Print each row as soon as it is measured; an operator that fails its check gets its failure instead."""
    print(HEADER)
    rows = []
    for op in ops:
        checks = [
            f"{backend}: {wrong}"
            for backend, function in device.backends(REGISTRY[op]).items()
            if backend != "reference" and (wrong := failure(op, device.name, function)) is not None
        ]
        if checks:
            print(f"{op:<18}not timed: {'; '.join(checks)}", flush=True)
            continue
        for network in networks:
            row = measure_row(op, network, device)
            rows.append(row)
            print(row, flush=True)
            if stored is not None:
                print(f"{'':<18}{change(stored.get((op, network)), row)}", flush=True)
    return rows


def change(before: OperatorTiming | None, now: OperatorTiming) -> str:
    """How shares and ratios moved; times of two runs are not compared, the machine may have changed between them."""
    if before is None:
        return "not in the stored run"
    parts = [f"roofline {100 * before.roofline_share:.0f} -> {100 * now.roofline_share:.0f} %"]
    for peer, ratio in now.ratios.items():
        was = before.ratios.get(peer)
        if was is not None:
            parts.append(f"{peer} {was:.2f} -> {ratio:.2f}x ({100 * (ratio / was - 1):+.0f} %)")
    return "stored: " + "  ".join(parts)


def save(path: Path, rows: list[OperatorTiming], threads: int, device: Device = CPU) -> None:
    """Write the rows and what they were measured with as JSON."""
    versions = {"torch": torch.__version__, "lps_kernels": lps_kernels.__version__}
    versions["device"] = torch.cuda.get_device_name() if device.on_gpu else "cpu"
    versions["dtype"] = str(device.dtype)
    content = {"format": FORMAT, **versions, "threads": threads, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> dict[tuple[str, str], OperatorTiming]:
    """The rows of a stored run; raises ValueError, in one sentence, on anything that is not one."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a stored table: expected an object with format '{FORMAT}'")
    entries = content.get("rows")
    if not isinstance(entries, list) or not all(map(_is_row, entries)):
        raise ValueError(f"{path} is damaged: a row lacks a field or has one of the wrong type")
    rows = [OperatorTiming(**entry) for entry in entries]
    return {(row.op, row.network): row for row in rows}


def _is_row(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {field.name for field in fields(OperatorTiming)}:
        return False
    numbers = [value for key, value in entry.items() if key not in ("op", "network", "flops_per_second", "ratios")]
    if not isinstance(entry["ratios"], dict) or not isinstance(entry["flops_per_second"], int | float):
        return False
    positive = all(isinstance(value, int | float) and value > 0 for value in (*numbers, *entry["ratios"].values()))
    return (
        positive
        and entry["flops_per_second"] >= 0
        and isinstance(entry["op"], str)
        and isinstance(entry["network"], str)
    )
