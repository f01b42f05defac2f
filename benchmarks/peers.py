"""What people would use instead: each peer does the whole job of its operator, allocations included.

A peer is built from the operator's workload and returns the callable to be timed. Preparation that a user would do
once (flattening, parameters of an optimiser, compilation) stays out of the timed part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.nn.functional import conv1d, conv2d, linear

from benchmarks.timing import Thunk
from lps_kernels import unpack_bits
from lps_kernels._registry import Args
from lps_kernels.owner import free_coordinates, task_of
from lps_kernels.packing import SparseWeight, unpack_conv, unpack_linear, unpack_sparse

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


def gathered_linear(x: Tensor, weight: Tensor, columns: Tensor, bias: Tensor | None = None) -> Tensor:
    """A layer that reads some of its inputs; the weight has those columns only."""
    return linear(x.index_select(-1, columns), weight, bias)


def scattered_linear(x: Tensor, weight: Tensor, rows: Tensor, outputs: int) -> Tensor:
    """A layer that has some of its filters; the others answer zero."""
    return x.new_zeros(len(x), outputs).index_copy_(1, rows, linear(x, weight))


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
    return torch.where(free_coordinates(owner), v, v * w_bar)


def _eager_task_weight(w_bar: Tensor, owner: Tensor, bits: Tensor, task: int, out: Tensor) -> Tensor:
    used = unpack_bits(bits, list(w_bar.shape)) | (task_of(owner) == task)
    return torch.where(used, w_bar, w_bar.new_zeros(()), out=out)


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


# The peers of inference do what the operators' workloads ask for: columns of all filters, a bias, no residual.


def _gathered(calls: list[Args]) -> Thunk:
    jobs = []
    for x, packed, columns, _, bias, outputs, _ in calls:
        jobs.append((x, unpack_linear(packed, outputs).contiguous(), columns.long(), bias))
    return lambda: [gathered_linear(*job).relu_() for job in jobs]


def _whole(columns: Tensor, left: Tensor, inputs: int) -> Tensor:
    """The matrix with zeros where columns were left out."""
    return left.new_zeros(left.shape[0], inputs).index_copy_(1, columns.long(), left)


def _columns_as_dense(calls: list[Args]) -> Thunk:
    jobs = []
    for x, packed, columns, _, bias, outputs, _ in calls:
        jobs.append((x, _whole(columns, unpack_linear(packed, outputs), x.shape[-1]), bias))
    return _dense_linear(jobs)


def _masked_weights(calls: list[Args]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Inputs, whole weight, the weights of the task (as flags) and bias of each call."""
    jobs = []
    for x, w_bar, owner, bits, task, bias, _ in calls:
        jobs.append((x, w_bar, unpack_bits(bits, list(w_bar.shape)) | (task_of(owner) == task), bias))
    return jobs


def _where_linear(calls: list[Args]) -> Thunk:
    jobs = _masked_weights(calls)
    return lambda: [linear(x, torch.where(mask, w_bar, 0), bias).relu_() for x, w_bar, mask, bias in jobs]


def _masked_dense(calls: list[Args]) -> Thunk:
    return _dense_linear([(x, torch.where(mask, w_bar, 0), bias) for x, w_bar, mask, bias in _masked_weights(calls)])


def _dense_linear(jobs: list[tuple[Tensor, Tensor, Tensor]]) -> Thunk:
    return lambda: [linear(*job).relu_() for job in jobs]


def _sparse_weights(calls: list[Args]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, matrix with zeros and bias of each call."""
    jobs = []
    for x, *packed, bias, outputs, _ in calls:
        jobs.append((x, unpack_sparse(SparseWeight(*packed), outputs, x.shape[-1]).contiguous(), bias))
    return jobs


def _csr(calls: list[Args]) -> Thunk:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's sparse tensors may still change
        jobs = [(x, weight.to_sparse_csr(), bias) for x, weight, bias in _sparse_weights(calls)]
    return lambda: [(weight @ x.t()).t().add(bias).relu_() for x, weight, bias in jobs]


def _dense_conv(calls: list[Args], matrices: list[Tensor]) -> Thunk:
    """Convolutions with the whole weights, of which these are the matrices."""
    jobs = []
    for args, matrix in zip(calls, matrices, strict=True):
        x, (bias, _, _, kernel, stride, padding, dilation, _, relu) = args[0], args[-9:]
        weight = matrix.reshape(-1, x.shape[1], *kernel).contiguous()
        convolve = conv1d if x.dim() == 3 else conv2d
        jobs.append((convolve, (x, weight, bias, stride, padding, dilation), relu))
    return lambda: [convolve(*job).relu_() if relu else convolve(*job) for convolve, job, relu in jobs]


def _structured_as_dense(calls: list[Args]) -> Thunk:
    matrices = []
    for x, packed, columns, _, _, _, outputs, kernel, *_ in calls:
        left = unpack_conv(packed, outputs, len(columns))
        matrices.append(_whole(columns, left, x.shape[1] * int(np.prod(kernel))))
    return _dense_conv(calls, matrices)


def _sparse_as_dense(calls: list[Args]) -> Thunk:
    matrices = []
    for x, *packed, _, _, outputs, kernel, _, _, _, _, _ in calls:
        matrices.append(unpack_sparse(SparseWeight(*packed), outputs, x.shape[1] * int(np.prod(kernel))))
    return _dense_conv(calls, matrices)


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
    "task_weight": {"where": _calls(_eager_task_weight)},
    "group_scores": {"vector_norm": _column_norms},
    "project": {
        "torch.topk": _topk,
        "np.percentile": _numpy(percentile_project),
        "np.partition": _numpy(partition_project),
    },
    "proximal_adam_": {"fused Adam": _fused_adam},
    "pack_bits": {"np.packbits": _calls(_packbits)},
    "unpack_bits": {"np.unpackbits": _calls(_unpackbits)},
    "structured_linear": {"gather + linear": _gathered, "dense linear": _columns_as_dense},
    "masked_linear": {"where + linear": _where_linear, "dense linear": _masked_dense},
    "structured_conv1d": {"dense conv": _structured_as_dense},
    "structured_conv2d": {"dense conv": _structured_as_dense},
    "sparse_linear": {"CSR": _csr, "dense linear": lambda calls: _dense_linear(_sparse_weights(calls))},
    "sparse_conv": {"dense conv": _sparse_as_dense},
}
