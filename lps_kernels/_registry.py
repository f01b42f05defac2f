"""The registry of operators: one declaration carries everything that is known about an operator.

A file in ``lps_kernels/ops`` calls :func:`declare` once per operator. The schema, the readable reference (which is
also the default kernel on every device), the shape function for tracing, autograd, sample inputs, refused inputs,
tolerance and cost stand side by side there. Tests, benchmarks and the self-test walk :data:`REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Sample:
    """One valid call; ``name`` says what is special about it."""

    name: str
    args: Args


@dataclass(frozen=True)
class BadInput:
    """One call that must be refused with exactly this ``message``, leaving every argument as it was.

    ``reads_values`` is True where only the values of tensors tell: kernels on a GPU do not wait for those and take
    them on trust.
    """

    name: str
    args: Args
    message: str
    reads_values: bool = False


@dataclass(frozen=True)
class Cost:
    """What one call must move and compute at the least: the roofline's two axes."""

    bytes: int
    flops: int


@dataclass(frozen=True)
class Tolerance:
    """Largest relative error against the reference in fp64, per dtype, and why that much is needed."""

    relative: dict[torch.dtype, float]
    reason: str


@dataclass(frozen=True)
class Op:
    """Everything known about one operator. ``name`` is without the ``lps::`` namespace."""

    name: str
    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    mutates: tuple[str, ...]
    differentiable: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    samples: Callable[[torch.dtype], Iterator[Sample]]
    bad_inputs: Callable[[], Iterator[BadInput]]
    tolerance: Tolerance
    cost: Callable[..., Cost]
    workload: Callable[[Sequence[tuple[int, ...]]], list[Args]]
    """Benchmark calls that together process layers of the given shapes once."""

    @property
    def overload(self) -> Any:
        """The registered operator, dispatched to the best backend for its arguments."""
        return getattr(torch.ops.lps, self.name).default


REGISTRY: dict[str, Op] = {}


def declare(
    name: str,
    *,
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    dtypes: tuple[torch.dtype, ...],
    samples: Callable[[torch.dtype], Iterator[Sample]],
    bad_inputs: Callable[[], Iterator[BadInput]],
    tolerance: Tolerance,
    cost: Callable[..., Cost],
    workload: Callable[[Sequence[tuple[int, ...]]], list[Args]],
    mutates: tuple[str, ...] = (),
    differentiable: tuple[str, ...] = (),
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Register ``lps::name`` with torch and in :data:`REGISTRY`; returns the callable operator."""
    if mutates or backward is not None:
        # custom_op alone keeps version counters of mutated arguments right and takes a gradient formula.
        definition = torch.library.custom_op(f"lps::{name}", reference, mutates_args=mutates, schema=schema)
        definition.register_fake(fake)
        if backward is not None:
            definition.register_autograd(backward, setup_context=setup_context)
    else:
        # Needing neither, the operator is spared custom_op's detour through Python: 8 instead of 22 us a call.
        torch.library.define(f"lps::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
        # Without a gradient on every backend: torch's warning on backward then means the same everywhere.
        torch.library.impl(f"lps::{name}", "default", torch.no_grad()(reference))
        torch.library.register_fake(f"lps::{name}", fake)
    op = Op(
        name=name,
        schema=schema,
        reference=reference,
        fake=fake,
        mutates=mutates,
        differentiable=differentiable,
        dtypes=dtypes,
        samples=samples,
        bad_inputs=bad_inputs,
        tolerance=tolerance,
        cost=cost,
        workload=workload,
    )
    REGISTRY[name] = op
    overload: Callable[..., Any] = op.overload
    return overload
