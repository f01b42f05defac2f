"""The registry of operators: one declaration carries everything that is known about an operator.

A file in ``lps_kernels/ops`` calls :func:`declare` once per operator. The schema, the readable reference (which is
also the default kernel on every device), the shape function for tracing, autograd, sample inputs, refused inputs,
tolerance, cost and how it runs on a GPU stand side by side there. Tests, benchmarks, the self-test and ``__all__`` come
from :data:`REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lps_kernels import _autocast

Args = tuple[Any, ...]
Sums = Literal["groups", "products"]


@dataclass(frozen=True)
class Sample:
    """One valid call; ``name`` says what is special about it."""

    name: str
    args: Args


@dataclass(frozen=True)
class BadInput:
    """One call that must be refused with exactly this ``message``, leaving every argument as it was.

    ``reads_values`` is True where only the values of tensors show the error: kernels on a GPU do not wait for
    those and do not check them.
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
    sums: Sums | None
    """What each backend sums in an order of its own: weights of groups, or products of matrices. Its results then agree
    with the reference within the tolerance; without sums they have the reference's bits."""
    launches: int
    """Kernels that one CUDA call launches in the steady state; a product that splits its depth takes up to two more."""
    tensor_cores: bool
    """Whether the CUDA kernels multiply fp32, fp16 and bf16 on tensor cores (compiled so; nothing has run on a GPU)."""
    public: bool
    """Whether ``lps_kernels`` has a function of this name. A form that writes into ``out`` is reached through the
    function without the suffix."""

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
    sums: Sums | None = None,
    launches: int = 1,
    tensor_cores: bool = False,
    public: bool = True,
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
        # Needing neither, the operator avoids custom_op's detour through Python: 8 instead of 22 us per call.
        torch.library.define(f"lps::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
        # Without a gradient on every backend: torch's warning on backward then means the same everywhere.
        torch.library.impl(f"lps::{name}", "default", torch.no_grad()(reference))
        torch.library.register_fake(f"lps::{name}", fake)
    _autocast.register(name, product=sums == "products", writes=bool(mutates))
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
        sums=sums,
        launches=launches,
        tensor_cores=tensor_cores,
        public=public,
    )
    REGISTRY[name] = op
    overload: Callable[..., Any] = op.overload
    return overload
