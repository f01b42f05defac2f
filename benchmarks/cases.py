"""One operator on one network: its runners, the bytes it moves and the flops it computes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.devices import Device
from benchmarks.peers import PEERS
from benchmarks.shapes import NETWORKS
from benchmarks.timing import Thunk
from lps_kernels._registry import REGISTRY, Args, Op
from lps_kernels._selftest import tensors_in

CPU = Device()


def runners(op: str, device: Device = CPU) -> list[str]:
    """What can run the operator's work on this device: our own backends, then its peers."""
    # numpy does not reach a GPU's memory.
    peers = [peer for peer in PEERS.get(op, {}) if not (device.on_gpu and peer.startswith("np."))]
    return [*device.backends(REGISTRY[op]), *peers]


@dataclass(frozen=True)
class Traffic:
    """Bytes of one pass over a workload: the least that must move, those touched at all, and those written.

    ``flops`` are the least that must be computed.
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
    device: Device = CPU

    def thunk(self, runner: str) -> Thunk:
        """The callable to be timed."""
        backends = self.device.backends(self.op)
        if runner not in backends:
            return PEERS[self.op.name][runner](self.calls)
        function = backends[runner]

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
def case(op: str, network: str, device: Device = CPU) -> Case:
    """The operator's own workload at the network's shapes."""
    calls = REGISTRY[op].workload(NETWORKS[network])
    return Case(REGISTRY[op], device.place(calls) if device != CPU else calls, device)
