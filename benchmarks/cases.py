"""One operator on one network: who runs it, how many bytes that moves and what it computes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache

import lps_kernels
from benchmarks.peers import PEERS
from benchmarks.shapes import NETWORKS
from benchmarks.timing import Thunk
from lps_kernels._registry import REGISTRY, Args, Op
from lps_kernels._selftest import tensors_in

BACKENDS = ("native", "reference")


def why_not_native() -> str | None:
    """Why the native kernels do not run in this process; None where they do."""
    (native,) = [backend for backend in lps_kernels.backends() if backend.name == "native"]
    return None if native.active else native.reason


def runners(op: str) -> list[str]:
    """Everyone who can do the operator's work: its two backends, then its peers."""
    return [*BACKENDS, *PEERS.get(op, {})]


@dataclass(frozen=True)
class Traffic:
    """Bytes of one pass over a workload: the least that must move, those touched at all, and those written.

    ``flops`` are those that have to be computed.
    """

    moved: int
    working_set: int
    written: int
    flops: int


@dataclass(frozen=True)
class Case:
    """An operator with the calls that process a network once. Mutating operators go on from their own results."""

    op: Op
    calls: list[Args]

    def thunk(self, runner: str) -> Thunk:
        """The callable to be timed."""
        if runner not in BACKENDS:
            return PEERS[self.op.name][runner](self.calls)
        function = self.op.overload if runner == "native" else self.op.reference

        def run() -> None:
            for args in self.calls:
                function(*args)

        return run

    def traffic(self) -> Traffic:
        """Runs every call once, to see the results' sizes."""
        names = list(inspect.signature(self.op.reference).parameters)
        mutated = [args[names.index(name)] for args in self.calls for name in self.op.mutates]
        results = sum(tensor.nbytes for args in self.calls for tensor in tensors_in(self.op.overload(*args)))
        costs = [self.op.cost(*args) for args in self.calls]
        return Traffic(
            moved=sum(cost.bytes for cost in costs),
            working_set=results + sum(tensor.nbytes for tensor in tensors_in(self.calls)),
            written=results + sum(tensor.nbytes for tensor in tensors_in(mutated)),
            flops=sum(cost.flops for cost in costs),
        )


# One at a time: the state of the optimiser step for 64 M weights is 2 GB.
@lru_cache(maxsize=1)
def case(op: str, network: str) -> Case:
    """The operator's own workload at the network's shapes."""
    return Case(REGISTRY[op], REGISTRY[op].workload(NETWORKS[network]))
