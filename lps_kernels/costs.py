"""What a layer costs in each format: the measured model by which a format is chosen.

The constants are fitted to the times that ``python -m benchmarks costs`` prints (two cores with AVX-512); its last
lines say how well the model chooses. They are the same on every machine, so that a task is cut out the same
everywhere.
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


@dataclass(frozen=True)
class _Rates:
    """Seconds of a call, and what is done in a second: multiply-adds, weights read, floats packed, floats written."""

    call: float
    products: float
    weights: float
    packed: float
    written: float


_RATES: dict[Format, _Rates] = {
    "dense": _Rates(27e-6, 122e9, 20e9, 200e9, 10e9),
    "structured": _Rates(15e-6, 142e9, 22e9, 13e9, 7e9),
    "sparse": _Rates(17e-6, 99e9, 24e9, 9e9, 6e9),
}
# A few examples of a sparse linear layer are multiplied along its inputs: weights a second, there or not; what each
# further example adds to that; and weights a second that are there.
_FEW = 4
_SPREAD, _FURTHER, _VALUES = 39e9, 0.2, 28e9
_LANES = 16  # positions that a sparse weight meets at a time


def seconds(format: Format, work: Work) -> float:
    """Expected time of one call."""
    rates = _RATES[format]
    written = work.outputs * work.positions / rates.written
    if format == "sparse":
        return rates.call + written + _sparse_seconds(work, rates)
    rows, columns = (work.rows, work.columns) if format == "structured" else (work.outputs, work.inputs)
    # Either the arithmetic or the bytes of the weights take longer.
    product = max(rows * columns * work.positions / rates.products, rows * columns / rates.weights)
    return rates.call + written + product + columns * work.positions / rates.packed


def _sparse_seconds(work: Work, rates: _Rates) -> float:
    weights = work.outputs * work.inputs
    if work.taps == 1 and work.positions <= _FEW:
        return weights / _SPREAD * (1 + _FURTHER * (work.positions - 1)) + work.nonzeros / _VALUES
    lanes = -(-work.positions // _LANES) * _LANES
    packed = work.inputs * work.positions / rates.packed
    return work.nonzeros * lanes / rates.products + weights / rates.weights + packed
