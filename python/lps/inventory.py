"""What becomes of each parameter of a backbone: split among the tasks, or not and why; and what each task has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from torch.nn.utils.parametrize import ParametrizationList

from lps.methods.lps.config import WHOLE
from lps.options import one_line
from lps.partition import prunable_names
from lps.private import NORM_LAYERS
from lps.runs.metrics import capacity as owned_shares
from lps.runs.metrics import density

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

# What becomes of a parameter.
SPLIT, COPIED, SHARED, FROZEN = "split among tasks", "a copy per task", "learnt with task 1, then frozen", "frozen"

# Of torch's older functions, which put other parameters in a weight's place.
_REPLACED = {"_g": "weight norm", "_v": "weight norm", "_orig": "spectral norm"}


class Entry(NamedTuple):
    """A parameter of the backbone."""

    name: str
    shape: tuple[int, ...]
    size: int
    fate: str
    why: str  # it is not split among the tasks; of a tied weight, where else it is used


@dataclass(frozen=True)
class LayerCapacity:
    """How many weights of a layer each task owns."""

    name: str
    weights: int
    owned: tuple[int, ...]

    @property
    def free(self) -> int:
        """How many no task owns."""
        return self.weights - sum(self.owned)


@dataclass(frozen=True)
class Capacity:
    """What tasks own and what is free, per layer and in all; as text, a table."""

    layers: tuple[LayerCapacity, ...]

    @property
    def total(self) -> LayerCapacity:
        """All layers together."""
        owned = zip(*(layer.owned for layer in self.layers), strict=True)
        return LayerCapacity("all", sum(layer.weights for layer in self.layers), tuple(map(sum, owned)))

    @property
    def free(self) -> float:
        """The share of all weights that is free."""
        return self.total.free / max(1, self.total.weights)

    def __str__(self) -> str:
        """A table."""
        tasks = [f"task {number}" for number in range(1, len(self.total.owned) + 1)]
        rows: list[tuple[str, ...]] = [("layer", "weights", *tasks, "free")]
        for layer in (*self.layers, self.total):
            shares = (_percent(count, layer.weights) for count in (*layer.owned, layer.free))
            rows.append((layer.name, f"{layer.weights:,}", *shares))
        return _table(rows)


@dataclass(frozen=True)
class TaskSummary:
    """A learnt task. ``accuracy`` is that on the test examples, ``validation`` that on the validation examples
    when it was learnt; None where there are none.

    ``share`` is the share of the weights that it owns, ``density`` of those it runs with, own and reused.
    """

    number: int
    name: str
    classes: int
    class_names: tuple[str, ...]
    accuracy: float | None
    validation: float | None
    share: float
    density: float


def entries(net: Lifelong) -> Iterator[Entry]:
    """Every parameter, in the order of the backbone."""
    uses = {partition.name: partition.places for partition, _ in net.prunable()}
    for name, parameter in net.backbone.named_parameters():
        if name in uses:
            others = [f"{module}.{attribute}" if module else attribute for module, attribute in uses[name][1:]]
            fate, why = SPLIT, f"tied with {', '.join(others)}" if others else ""
        elif name in net.frozen:
            fate, why = FROZEN, "requires_grad=False"
        else:
            fate, why = COPIED if name in net.private_names else SHARED, _reason(net, name)
        yield Entry(name, tuple(parameter.shape), parameter.numel(), fate, why)


def _reason(net: Lifelong, name: str) -> str:
    """Why a parameter that is not frozen is not split."""
    place, _, attribute = name.rpartition(".")
    module = net.backbone.get_submodule(place)
    if isinstance(module, ParametrizationList):
        kinds = ", ".join(type(inner).__name__.strip("_") for inner in module)
        return f"parametrized by {kinds}"
    if any(fnmatchcase(name, pattern) for pattern in net.exclude):
        return "excluded"
    if net.norms == WHOLE:
        return "weights" if attribute in prunable_names(module) else "others"
    if isinstance(module, NORM_LAYERS) or attribute.endswith("bias"):
        return "biases and norms"
    for ending, what in _REPLACED.items():
        if prunable_names(module) and attribute.endswith(ending):
            return what
    return type(module).__name__


def notice(net: Lifelong) -> str:
    """One sentence: what is split among the tasks, what is not, and why."""
    found = list(entries(net))
    total = sum(entry.size for entry in found)
    split = [entry for entry in found if entry.fate == SPLIT]
    if net.norms == WHOLE:
        parts = [f"each task has a network of its own, of {total:,} parameters"]
    else:
        layers = f"{len(split)} layer{'s' if len(split) > 1 else ''}"
        tied = sum(bool(entry.why) for entry in split)
        more = f" ({tied} of them tied)" if tied else ""
        share = _percent(sum(entry.size for entry in split), total)
        parts = [f"{share} of {total:,} parameters, in {layers}{more}, are {SPLIT}"]
    for fate in (COPIED, SHARED, FROZEN):
        counts: dict[str, int] = {}
        for entry in found:
            if entry.fate == fate:
                counts[entry.why] = counts.get(entry.why, 0) + entry.size
        if counts:
            largest_first = sorted(counts.items(), key=lambda item: -item[1])
            parts.append(f"{fate}: {', '.join(f'{why} {_percent(count, total)}' for why, count in largest_first)}")
    return f"{'; '.join(parts)} (net.summary() lists them)"


def summary(net: Lifelong) -> str:
    """A table of all parameters with what becomes of them, and how much of each is free."""
    shares = {layer.name: layer for layer in capacity(net).layers}
    rows: list[tuple[str, ...]] = [("parameter", "shape", "number", "what becomes of it", "why", "free")]
    for name, shape, count, fate, why in entries(net):
        free = _percent(shares[name].free, count) if name in shares else ""
        rows.append((name, "x".join(map(str, shape)), f"{count:,}", fate, why, free))
    return f"{_table(rows)}\n{notice(net).rpartition(' (')[0]}"


def capacity(net: Lifelong) -> Capacity:
    """What is owned and what is free."""
    tasks = range(1, len(net.learnt) + 1)
    return Capacity(
        tuple(
            LayerCapacity(partition.name, weight.numel(), tuple(partition.owned_by(task) for task in tasks))
            for partition, weight in net.prunable()
        )
    )


def task_summaries(net: Lifelong) -> list[TaskSummary]:
    """All learnt tasks."""
    figures = zip(net.learnt, owned_shares(net), density(net), strict=True)
    metadata = net.metadata
    return [
        TaskSummary(
            number,
            task.name,
            task.classes,
            task.class_names,
            _at(metadata.accuracy, number),
            _at(metadata.validation, number),
            share,
            dense,
        )
        for number, (task, share, dense) in enumerate(figures, 1)
    ]


def _at(values: list[float] | list[float | None] | None, number: int) -> float | None:
    return values[number - 1] if values is not None and number <= len(values) else None


def _percent(count: int, total: int) -> str:
    return f"{100 * count / max(1, total):.1f} %"


def _table(rows: list[tuple[str, ...]]) -> str:
    """Names on the left, numbers on the right."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    number = [all(not row[i] or row[i][0].isdigit() for row in rows[1:]) for i in range(len(widths))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, number, strict=True)
        ).rstrip()
        for row in rows
    )
