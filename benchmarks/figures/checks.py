"""Nothing is timed that is not ours, fails its self-test or answers otherwise than the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.devices import why_not_active
from benchmarks.figures.figure import UnmeasurableError
from lps_kernels._selftest import failure

# Largest difference as a share of the largest value, in steps of the dtype: sums of some thousand products in dozens of
# layers, in another order, differ by some tens of steps; a wrong weight by far more than a thousand (1.2e-4).
STEPS = 1000


def check_operators(*ops: str) -> None:
    """Refuse to go on unless the native kernels run, and these operators pass their self-test."""
    reason = why_not_active("native")
    if reason is not None:
        raise UnmeasurableError(f"the native kernels are not active: {reason}")
    for op in ops:
        wrong = failure(op)
        if wrong is not None:
            raise UnmeasurableError(wrong)


def check_answers(what: str, answers: Mapping[str, Tensor], expected: Tensor) -> None:
    """Refuse to go on if one of these differs from what is expected by more than rounding explains."""
    largest = float(expected.abs().max())
    for name, answer in answers.items():
        fits = answer.shape == expected.shape
        difference = float((answer - expected).abs().max()) / largest if fits and largest > 0 else float("nan")
        if not difference <= STEPS * torch.finfo(expected.dtype).eps:
            raise UnmeasurableError(f"{what}: {name} answers otherwise, by {difference:.1e} of the largest value")
