"""What a layer costs in each format: the measured model by which a format is chosen.

The constants were measured with ``python -m benchmarks costs``, two threads; only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal["dense", "structured", "sparse"]


@dataclass(frozen=True)
class Work:
    """One call of a layer: its matrix [outputs, inputs], what is left of it, and how many positions it is applied to.

    ``positions`` are examples of a linear layer, or examples times output positions of a convolution, whose kernel has
    ``taps`` places.
    """

    outputs: int
    inputs: int
    rows: int
    columns: int
    nonzeros: int
    positions: int
    taps: int


# Multiply-adds a second: dense in torch, dense in our tile, irregular.
DENSE_RATE, STRUCTURED_RATE, SPARSE_RATE = 150e9, 160e9, 85e9
# Floats a second that are packed or written.
MOVE_RATE = 4e9
# A call's fixed cost.
CALL = 8e-6


def seconds(format: Format, work: Work) -> float:
    """Expected time of one call."""
    written = work.outputs * work.positions
    if format == "dense":
        return CALL + work.outputs * work.inputs * work.positions / DENSE_RATE + written / MOVE_RATE
    if format == "structured":
        packed = work.columns * work.positions
        return CALL + work.rows * work.columns * work.positions / STRUCTURED_RATE + (packed + written) / MOVE_RATE
    packed = work.inputs * work.positions
    return CALL + work.nonzeros * work.positions / SPARSE_RATE + (packed + 2 * written) / MOVE_RATE
