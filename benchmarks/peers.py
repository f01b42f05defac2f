"""What people would use instead: each peer does the whole job of its operator, allocations included.

A peer is built from the operator's workload and returns the callable to be timed. Preparation that a user would do
once (flattening, parameters of an optimiser, compilation) stays out of the timed part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from benchmarks.timing import Thunk
from lps_kernels._registry import Args

Peer = Callable[[list[Args]], Thunk]


class UnavailableError(Exception):
    """This machine cannot run the peer; the message says why."""


def eager_compose(w: Tensor, mask: Tensor, w_bar: Tensor) -> Tensor:
    """Equation (4) as one writes it."""
    return w + mask * w_bar


def eager_compose_out(w: Tensor, mask: Tensor, w_bar: Tensor, out: Tensor, product: Tensor) -> Tensor:
    """The same into memory that is already there."""
    torch.mul(mask, w_bar, out=product)
    return torch.add(w, product, out=out)


def topk_project(x: Tensor, keep: int) -> Tensor:
    """The ``keep`` largest magnitudes of a flat tensor, exactly."""
    kept = torch.topk(x.abs(), keep).indices
    out = torch.zeros_like(x)
    out[kept] = x[kept]
    return out


def partition_project(x: NDArray[np.float32], keep: int) -> NDArray[np.float32]:
    """Everything at least as large as the ``keep``-th magnitude; where values tie, more than ``keep`` survive."""
    magnitude = np.abs(x)
    threshold = np.partition(magnitude, x.size - keep)[x.size - keep]
    return np.where(magnitude >= threshold, x, np.float32(0))


def percentile_project(x: NDArray[np.float32], keep: int) -> NDArray[np.float32]:
    """The original implementation's way; it zeroes by boolean index, which is slower than ``where``."""
    magnitude = np.abs(x)
    threshold = np.percentile(magnitude, 100 * (1 - keep / x.size))
    return np.where(magnitude < threshold, np.float32(0), x)


def fused_adam(weights: list[Tensor], gradients: list[Tensor]) -> Thunk:
    """The step of torch's own fused Adam over copies of these weights."""
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return torch.optim.Adam(parameters, lr=1e-3, fused=True).step


def _calls(function: Callable[..., object]) -> Peer:
    """One call of the function for each call of the workload."""

    def build(calls: list[Args]) -> Thunk:
        def run() -> None:
            for args in calls:
                function(*args)

        return run

    return build


def _compiled(function: Callable[..., object]) -> Peer:
    """As above through torch.compile, on flat tensors so that one compiled function serves every shape."""

    def build(calls: list[Args]) -> Thunk:
        flat: list[Args] = [tuple(tensor.view(-1) for tensor in args) for args in calls]
        run = _calls(torch.compile(function, dynamic=True))(flat)
        try:
            run()
        except TorchDynamoException as error:
            raise UnavailableError(str(error).splitlines()[0]) from error
        return run

    return build


def _eager_out(calls: list[Args]) -> Thunk:
    return _calls(eager_compose_out)([(*args, torch.empty_like(args[0])) for args in calls])


def _eager_owned(v: Tensor, w_bar: Tensor, owner: Tensor) -> Tensor:
    return torch.where((owner & 0x7F) == 0, v, v * w_bar)


def _column_norms(calls: list[Args]) -> Thunk:
    columns = [layer.view(layer.shape[0], -1) for layers, *_ in calls for layer in layers]
    return lambda: [torch.linalg.vector_norm(layer, dim=0) for layer in columns]


def _topk(calls: list[Args]) -> Thunk:
    jobs = [(x.view(-1), k) for layers, _, keep, *_ in calls for x, k in zip(layers, keep, strict=True)]
    return lambda: [topk_project(x, k) for x, k in jobs]


def _numpy(function: Callable[[NDArray[np.float32], int], NDArray[np.float32]]) -> Peer:
    def build(calls: list[Args]) -> Thunk:
        jobs = [(x.view(-1).numpy(), k) for layers, _, keep, *_ in calls for x, k in zip(layers, keep, strict=True)]
        return lambda: [function(x, k) for x, k in jobs]

    return build


def _fused_adam(calls: list[Args]) -> Thunk:
    ((_, gradients, weights, *_),) = calls
    return fused_adam(weights, gradients)


def _packbits(x: Tensor) -> NDArray[np.uint8]:
    return np.packbits(x.numpy(), axis=None, bitorder="little")


def _unpackbits(bits: Tensor, shape: list[int]) -> NDArray[np.bool_]:
    flat = np.unpackbits(bits.numpy(), count=int(np.prod(shape)), bitorder="little")
    return flat.view(np.bool_).reshape(shape)


# By operator; one that has no entry (admm_update_, proximal_grad_) has no counterpart but its own reference.
PEERS: dict[str, dict[str, Peer]] = {
    "compose": {
        "eager": _calls(eager_compose),
        "addcmul": _calls(torch.addcmul),
        "torch.compile": _compiled(eager_compose),
    },
    "compose_out": {
        "eager": _eager_out,
        "addcmul": _calls(lambda w, mask, w_bar, out: torch.addcmul(w, mask, w_bar, out=out)),
        "torch.compile": _compiled(lambda w, mask, w_bar, out: out.copy_(w + mask * w_bar)),
    },
    "compose_owned": {"eager": _calls(_eager_owned), "torch.compile": _compiled(_eager_owned)},
    "compose_owned_out": {
        "torch.compile": _compiled(lambda v, w_bar, owner, out: out.copy_(_eager_owned(v, w_bar, owner))),
    },
    "group_scores": {"vector_norm": _column_norms},
    "project": {
        "torch.topk": _topk,
        "np.percentile": _numpy(percentile_project),
        "np.partition": _numpy(partition_project),
    },
    "proximal_adam_": {"fused Adam": _fused_adam},
    "pack_bits": {"np.packbits": _calls(_packbits)},
    "unpack_bits": {"np.unpackbits": _calls(_unpackbits)},
}
