"""``python -m benchmarks costs``: what layers take in each format, beside what :mod:`lps_kernels.costs` expects.

The model only has to choose well: the last lines say how often it does, and what its mistakes cost. The constants in it
are fitted to the times printed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from lps.deploy.extraction.formats import FORMATS, Shrunk, build
from torch import Tensor, nn

from benchmarks.timing import Thunk, measure
from lps_kernels import group_view, masked_linear, task_weight
from lps_kernels.costs import Format, Work, masked_seconds, seconds

# For each of the ten callables of a place: together about two minutes.
SECONDS = 0.25
DENSITIES = (0.1, 0.2, 0.5, 0.9)
PATTERNS = ("column", "irregular")


@dataclass(frozen=True)
class Place:
    """A layer and the shape of what it reads."""

    layer: nn.Linear | nn.Conv1d | nn.Conv2d
    inputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """Kind and shape of the weight, and the shape of the inputs."""
        kind, shape = type(self.layer).__name__, "x".join(map(str, self.layer.weight.shape))
        return f"{kind} {shape} on {'x'.join(map(str, self.inputs))}"


@dataclass(frozen=True)
class FormatTiming:
    """Seconds of one layer with one mask in each format, as measured and as expected."""

    place: str
    pattern: str
    density: float
    work: Work
    measured: dict[Format, float]
    expected: dict[Format, float]

    @property
    def choice(self) -> Format:
        """What the model takes."""
        return min(FORMATS, key=lambda format: self.expected[format])

    @property
    def fastest(self) -> Format:
        """What it should have taken."""
        return min(FORMATS, key=lambda format: self.measured[format])

    @property
    def loss(self) -> float:
        """How much longer its choice takes than the fastest, as a share."""
        return self.measured[self.choice] / self.measured[self.fastest] - 1

    def __str__(self) -> str:
        """One line: each format's time with the expected one in brackets, the choice, and what it loses if wrong."""
        times = "  ".join(
            f"{format} {1e3 * self.measured[format]:>8.3f} ({1e3 * self.expected[format]:>8.3f})" for format in FORMATS
        )
        verdict = self.choice if self.choice == self.fastest else f"{self.choice}, {100 * self.loss:.0f} % lost"
        return f"{self.place:<42}{self.pattern:<10}{100 * self.density:>3.0f} %  {times}  {verdict}"


def places() -> Iterator[Place]:
    """Linear layers and convolutions of the paper's networks, at small and at large batches."""
    for outputs, inputs in ((2000, 2000), (512, 2048)):
        for batch in (1, 16, 128, 1024):
            yield Place(nn.Linear(inputs, outputs), (batch, inputs))
    for batch in (1, 128):
        # One of each stage of ResNet50-1D on 288 values, and one with a stride.
        for outputs, channels, kernel, stride, length in (
            (256, 64, 1, 1, 72),
            (64, 64, 3, 1, 72),
            (128, 128, 3, 1, 36),
            (256, 256, 3, 2, 36),
            (256, 1024, 1, 1, 18),
            (512, 512, 3, 1, 9),
        ):
            yield Place(nn.Conv1d(channels, outputs, kernel, stride, kernel // 2), (batch, channels, length))
        for outputs, channels, side in ((32, 3, 32), (32, 32, 30), (64, 64, 12)):
            yield Place(nn.Conv2d(channels, outputs, 3), (batch, channels, side, side))


def print_costs() -> list[FormatTiming]:
    """Print every row as soon as its place is measured, then what the model's choices are worth."""
    print("ms in each format: measured (expected); then what the model takes")
    rows: list[FormatTiming] = []
    for place in places():
        for row in measure_place(place, SECONDS):
            print(row, flush=True)
            rows.append(row)
    print(summary(rows))
    for place in places():
        if isinstance(place.layer, nn.Linear):
            print(masked_line(place, SECONDS), flush=True)
    return rows


@torch.inference_mode()
def masked_line(place: Place, budget: float) -> str:
    """A linear layer run from the weights of all tasks, and its weight composed: measured (expected)."""
    assert isinstance(place.layer, nn.Linear)
    weight, generator = place.layer.weight.detach(), torch.Generator().manual_seed(0)
    owner = torch.randint(0, 6, weight.shape, generator=generator, dtype=torch.uint8)
    bits = torch.randint(0, 256, (-(-weight.numel() // 8),), generator=generator, dtype=torch.uint8)
    x, out = torch.randn(place.inputs, generator=generator), torch.empty_like(weight)
    functions: dict[str, Thunk] = {
        "masked": partial(masked_linear, x, weight, owner, bits, 4, place.layer.bias.detach(), False),
        "composed": partial(task_weight, weight, owner, bits, 4, out),
    }
    times = {name: timing.best for name, timing in measure(functions, budget).items()}
    outputs, inputs = weight.shape
    work = Work(outputs, inputs, outputs, inputs, weight.numel(), len(x), 1)
    expected = {
        "masked": masked_seconds(work, linear=True),
        "composed": masked_seconds(work, linear=False) - seconds("dense", work),
    }
    shown = "  ".join(f"{name} {1e3 * times[name]:>8.3f} ({1e3 * expected[name]:>8.3f})" for name in functions)
    return f"{place.name:<42}{shown}"


@torch.inference_mode()
def measure_place(place: Place, budget: float) -> list[FormatTiming]:
    """All densities and patterns of one layer, its callables in turns for about ``budget`` seconds each.

    A format's time depends on what it holds only, so ten callables serve eight rows: dense and, for irregular weights,
    structured hold the same at every density; sparse is measured on irregular weights and stands for columns too.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(place.inputs, generator=generator)
    positions = place.layer(x).numel() // place.layer.weight.shape[0]
    shrunk = {(p, d): _shrunk(place, p, d, positions, generator) for d in DENSITIES for p in PATTERNS}
    whole = _shrunk(place, "column", 1.0, positions, generator)

    def run(layer: Shrunk, format: Format) -> Thunk:
        return partial(build(layer, format, relu=False), x)

    functions: dict[str, Thunk] = {"dense": run(whole, "dense"), "structured": run(whole, "structured")}
    for density in DENSITIES:
        functions[f"structured {density}"] = run(shrunk["column", density], "structured")
        functions[f"sparse {density}"] = run(shrunk["irregular", density], "sparse")
    times = {name: timing.best for name, timing in measure(functions, budget).items()}
    rows = []
    for (pattern, density), layer in shrunk.items():
        structured = f"structured {density}" if pattern == "column" else "structured"
        measured: dict[Format, float] = {
            "dense": times["dense"],
            "structured": times[structured],
            "sparse": times[f"sparse {density}"],
        }
        expected: dict[Format, float] = {format: seconds(format, layer.work) for format in FORMATS}
        rows.append(FormatTiming(place.name, pattern, density, layer.work, measured, expected))
    return rows


def _shrunk(place: Place, pattern: str, density: float, positions: int, generator: torch.Generator) -> Shrunk:
    weight, bias = place.layer.weight.detach(), place.layer.bias
    assert bias is not None
    kept = _flags(weight, pattern, density, generator)
    return Shrunk(place.layer, torch.where(kept, weight, 0), bias.detach(), positions)


def _flags(weight: Tensor, pattern: str, share: float, generator: torch.Generator) -> Tensor:
    """True for exactly this share of the pattern's groups, or one at least."""
    view = group_view(weight.shape, pattern)
    flags = torch.zeros(view[1], dtype=torch.bool)
    flags[torch.randperm(view[1], generator=generator)[: max(1, round(share * view[1]))]] = True
    return flags.view(1, -1, 1).expand(view).reshape(weight.shape)


def summary(rows: Sequence[FormatTiming]) -> str:
    """How often the model takes the fastest format and how much time it loses against always taking that."""
    right = sum(row.choice == row.fastest for row in rows)
    taken = sum(row.measured[row.choice] for row in rows)
    best = sum(row.measured[row.fastest] for row in rows)
    worst = max(rows, key=lambda row: row.loss)
    mean = sum(row.loss for row in rows) / len(rows)
    return (
        f"the model takes the fastest format in {right} of {len(rows)} cases\n"
        f"its choices take {100 * (taken / best - 1):.1f} % longer than the fastest in all, {100 * mean:.1f} % in the "
        f"mean of the cases, {100 * worst.loss:.0f} % at worst ({worst.place}, {worst.pattern}, "
        f"{100 * worst.density:.0f} %)"
    )


def save(path: Path, rows: Sequence[FormatTiming]) -> None:
    """Write the rows as JSON, for fitting."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
