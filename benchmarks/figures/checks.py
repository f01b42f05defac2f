"""No callable is timed that answers otherwise than the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.figures.figure import UnmeasurableError

# Largest difference as a share of the largest value, in steps of the dtype: sums of some thousand products in dozens of
# layers, in another order, differ by some tens of steps; a wrong weight by far more than a thousand (1.2e-4).
STEPS = 1000


def check_answers(what: str, answers: Mapping[str, Tensor], expected: Tensor) -> None:
    """Refuse to go on if one of these differs from what is expected by more than rounding explains."""
    largest = float(expected.abs().max())
    for name, answer in answers.items():
        fits = answer.shape == expected.shape
        difference = float((answer - expected).abs().max()) / largest if fits and largest > 0 else float("nan")
        if not difference <= STEPS * torch.finfo(expected.dtype).eps:
            raise UnmeasurableError(f"{what}: {name} answers otherwise, by {difference:.1e} of the largest value")
