"""One task, cut out of a lifelong network: a plain module with a table of its layers' formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from lps_kernels.calls import Inputs, call, vectors
from lps_kernels.costs import Work


@dataclass(frozen=True)
class LayerSummary:
    """Format, shape and cost of one layer of a cut-out."""

    name: str
    format: (
        str  # dense, packed (dense in our kernel's order), gather (behind a selection of inputs), structured, sparse
    )
    before: tuple[int, ...]  # shape of the weight
    after: tuple[int, ...]
    nonzeros: int
    held_bytes: int  # values and indices
    dense_bytes: int  # of the layer as it was
    seconds: float  # expected, at the batch size that the formats were chosen for
    dense_seconds: float  # of the layer as it was
    work: Work  # one call at that batch size, as it is held; and of the layer as it was
    dense_work: Work

    @property
    def kept_dense(self) -> bool:
        """Whether every weight that the layer had is held, zeros too."""
        return self.format in ("dense", "packed") and self.before == self.after

    @property
    def weights(self) -> int:
        """How many weights the layer had."""
        return prod(self.before)


class TaskNetwork(nn.Module):
    """A backbone with a task's head behind it."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.head(vectors(self.backbone(*inputs, **named)))
        return logits


class Cutout(nn.Module):
    """Maps inputs to the logits of one task; made by ``lps.Lifelong.extract``.

    ``layers`` describes each layer, ``notes`` say which places kept their shape and why.
    """

    def __init__(self, network: nn.Module, layers: Sequence[LayerSummary], notes: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.layers = list(layers)
        self.notes = list(notes)
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Inputs) -> Tensor:
        """Logits of a batch: a tensor, or several in a tuple or by name, as the network takes them."""
        logits: Tensor = call(self.network, x)
        return logits

    def weight_bytes(self) -> tuple[int, int]:
        """Bytes held by the layers that are not kept dense, and bytes those layers held before."""
        changed = [layer for layer in self.layers if not layer.kept_dense]
        return sum(layer.held_bytes for layer in changed), sum(layer.dense_bytes for layer in changed)

    def summary(self) -> str:
        """A table of the layers: format, shapes, density, bytes and expected speed-up, with totals and notes."""
        header = ("layer", "format", "shape", "density", "bytes", "dense bytes", "speed-up")
        rows = [header, *(_row(layer) for layer in self.layers), _totals(self.layers)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = []
        for row in rows:
            cells = [
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.notes])


def _row(layer: LayerSummary) -> tuple[str, ...]:
    before, after = ("x".join(map(str, shape)) for shape in (layer.before, layer.after))
    return (layer.name, layer.format, before if before == after else f"{before} -> {after}", *_figures([layer]))


def _totals(layers: Sequence[LayerSummary]) -> tuple[str, ...]:
    return ("all", "", "", *_figures(layers))


def _figures(layers: Sequence[LayerSummary]) -> tuple[str, ...]:
    density = sum(layer.nonzeros for layer in layers) / max(1, sum(layer.weights for layer in layers))
    held, dense = sum(layer.held_bytes for layer in layers), sum(layer.dense_bytes for layer in layers)
    seconds, dense_seconds = sum(layer.seconds for layer in layers), sum(layer.dense_seconds for layer in layers)
    speedup = f"{dense_seconds / seconds:.1f}x" if seconds > 0 else "-"
    return (f"{100 * density:.1f} %", f"{held:,}", f"{dense:,}", speedup)
