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
    "dense": _Rates(23e-6, 145e9, 16e9, 18e9, 9.3e9),
    "structured": _Rates(14.5e-6, 159e9, 22e9, 19e9, 7.5e9),
    "sparse": _Rates(18e-6, 101e9, 22e9, 8.4e9, 6.5e9),
}
# A few examples of a sparse linear layer are multiplied along its inputs: weights per second, zeros included;
# what each further example adds to that; and nonzero weights per second.
_FEW = 4
_SPREAD, _FURTHER, _VALUES = 38e9, 0.2, 31e9
_LANES = 16  # positions that a sparse weight meets at a time


def seconds(format: Format, work: Work) -> float:
    """Expected time of one call."""
    rates, weights = _RATES[format], work.outputs * work.inputs
    written = rates.call + work.outputs * work.positions / rates.written
    if format == "sparse" and work.taps == 1 and work.positions <= _FEW:
        spread = weights / _SPREAD * (1 + _FURTHER * (work.positions - 1))
        return written + spread + work.nonzeros / _VALUES
    products, columns = weights * work.positions, work.inputs
    if format == "structured":
        weights, columns = work.rows * work.columns, work.columns
        products = weights * work.positions
    elif format == "sparse":
        products = work.nonzeros * -(-work.positions // _LANES) * _LANES
    return written + products / rates.products + weights / rates.weights + columns * work.positions / rates.packed


# A task run from the weights of all tasks: a linear layer reads value, owner and bit of every weight as it goes
# (`masked_linear`); any other layer has its weight composed first (`task_weight`), so many weights in a second.
_MASKED = _Rates(18e-6, 159e9, 9.3e9, 19e9, 7.5e9)
_COMPOSED = 18e9


def masked_seconds(work: Work, *, linear: bool) -> float:
    """Expected time of one call of a whole layer, all rows and columns, from the weights of all tasks."""
    weights = work.outputs * work.inputs
    if not linear:
        whole = Work(work.outputs, work.inputs, work.outputs, work.inputs, weights, work.positions, work.taps)
        return weights / _COMPOSED + seconds("dense", whole)
    done = weights * work.positions / _MASKED.products + weights / _MASKED.weights
    return _MASKED.call + done + work.outputs * work.positions / _MASKED.written
