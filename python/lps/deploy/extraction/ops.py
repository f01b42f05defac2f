"""Which operations of a graph work channel by channel, and what they make of a channel that is constant."""

from __future__ import annotations

import operator
import re
from enum import Enum, auto

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from lps.deploy.extraction.trace import has_hooks, shape_of

Convs = nn.Conv1d | nn.Conv2d
Norms = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

ACTIVATIONS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink),
)
RELUS = (torch.relu, F.relu, "relu")
ELEMENTWISE = (
    *RELUS,
    *(F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus, F.softsign, F.logsigmoid),
    *(F.hardtanh, F.hardswish, F.hardsigmoid, F.hardshrink, F.softshrink),
    *(torch.tanh, torch.sigmoid, torch.abs, torch.clamp, "tanh", "sigmoid", "abs", "clamp", "contiguous"),
    *(operator.neg, operator.add, operator.sub, operator.mul, operator.truediv),  # these and the next with a number
    *(torch.add, torch.mul, "add", "mul"),
)
ADDS = (operator.add, torch.add, "add")
CATS = (torch.cat, torch.concat)
MAX_POOLS: tuple[type[nn.Module], ...] = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
MEAN_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
AVG_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
MAX_POOL_CALLS = (
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
)
MEAN_POOL_CALLS = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
AVG_POOL_CALLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


class Kind(Enum):
    """How a node treats the channels of what it reads."""

    LAYER = auto()  # every output channel is a sum over input channels
    ELEMENTWISE = auto()
    NORM = auto()
    POOL = auto()
    FLATTEN = auto()
    ADD = auto()
    CAT = auto()
    OTHER = auto()  # not known: reads all channels, in their places


def kind_of(node: fx.Node, module: nn.Module | None) -> Kind:
    """How this node treats channels; ``module`` is what it calls, if it calls one."""
    if module is not None:
        alone = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
        return _kind_of_module(module) if alone and not has_hooks(module) else Kind.OTHER
    if node.op not in ("call_function", "call_method"):
        return Kind.OTHER
    return _kind_of_call(node)


def _kind_of_call(node: fx.Node) -> Kind:
    """Of a function or a method."""
    sources = node.all_input_nodes
    if node.target in CATS and _cat_dim(node) == 1 and node.args and isinstance(node.args[0], list | tuple):
        return Kind.CAT
    if node.target in ADDS and node.args == tuple(sources) and len(sources) == 2 and not node.kwargs:
        return Kind.ADD
    if (
        len(sources) != 1
        or [a for a in node.args if isinstance(a, fx.Node)] != sources
        or node.args[0] is not sources[0]
    ):
        return Kind.OTHER
    if node.target in ELEMENTWISE:
        return Kind.ELEMENTWISE
    if node.target is torch.flatten and node.args[1:] == (1,):
        return Kind.FLATTEN
    is_max = node.target in MAX_POOL_CALLS and not node.kwargs.get("return_indices", False)
    is_pool = is_max or node.target in MEAN_POOL_CALLS + AVG_POOL_CALLS or _is_spatial_mean(node)
    return Kind.POOL if is_pool else Kind.OTHER


def is_layer(module: nn.Module) -> bool:
    """Whether lps_kernels has a layer that computes the same."""
    kind = type(module)  # not isinstance: a subclass may do anything
    if has_hooks(module):
        return False
    return kind is nn.Linear or (kind in (nn.Conv1d, nn.Conv2d) and isinstance(module, Convs) and _is_plain(module))


def _kind_of_module(module: nn.Module) -> Kind:
    kind = type(module)
    if is_layer(module):
        return Kind.LAYER
    if kind in ACTIVATIONS:
        return Kind.ELEMENTWISE
    if isinstance(module, Norms) and kind.__module__.startswith("torch.nn") and module.running_mean is not None:
        return Kind.NORM
    if kind in MEAN_POOLS + AVG_POOLS or (kind in MAX_POOLS and not module.return_indices):
        return Kind.POOL
    return Kind.OTHER


def _is_plain(conv: Convs) -> bool:
    return conv.groups == 1 and not isinstance(conv.padding, str) and conv.padding_mode == "zeros"


def why_other(node: fx.Node, module: nn.Module | None) -> str:
    """What to say of a node whose inputs keep all their channels."""
    if isinstance(module, nn.Conv1d | nn.Conv2d) and not _is_plain(module):
        return "a convolution in groups or with its own padding"
    if has_hooks(module):
        return f"{type(module).__name__} with a hook"
    what = node.target if module is None else type(module)
    return (
        f"{what if isinstance(what, str) else getattr(what, '__name__', what)} is not known to work channel by channel"
    )


def is_relu(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the node is a plain ReLU."""
    return type(module) is nn.ReLU if module is not None else node.target in RELUS


def _cat_dim(node: fx.Node) -> object:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)


def _is_spatial_mean(node: fx.Node) -> bool:
    """Global average pooling as ``x.mean((2, 3))``."""
    if node.target not in ("mean", torch.mean):
        return False
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = (dims,) if isinstance(dims, int) else dims
    rank = len(shape_of(node.all_input_nodes[0]) or ())  # 0 if unknown: then negative dims are refused
    if not isinstance(dims, list | tuple) or not dims:  # a mean over no dimensions is one over all
        return False
    return all(isinstance(d, int) and (d if d >= 0 else d + rank) >= 2 for d in dims)


def scale_and_shift(norm: Norms) -> tuple[Tensor, Tensor]:
    """A norm in eval mode as ``scale * x + shift`` per channel, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.detach().double()


def elementwise(node: fx.Node, module: nn.Module | None, value: Tensor) -> Tensor:
    """The node's function of these values, one per channel."""
    result: Tensor
    if module is not None:
        result = module(value)
    elif node.op == "call_method":
        result = getattr(value, str(node.target))(*node.args[1:], **node.kwargs)
    else:
        assert callable(node.target)
        result = node.target(*(value if isinstance(a, fx.Node) else a for a in node.args), **node.kwargs)
    return result


def mixes_in_zeros(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a pool averages its padding too, which changes a constant at the borders."""
    if module is None:
        if node.target not in AVG_POOL_CALLS:
            return False
        padding = node.args[3] if len(node.args) > 3 else node.kwargs.get("padding", 0)
        override = node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")
        return override is not None or padding not in (0, (0,), (0, 0), (0, 0, 0))
    if not isinstance(module, AVG_POOLS):
        return False
    override = getattr(module, "divisor_override", None)  # this changes a constant too
    padding = module.padding if isinstance(module.padding, tuple) else (module.padding,)
    return override is not None or (any(padding) and module.count_include_pad)


def ranks_of(graph: fx.Graph, modules: dict[str, nn.Module]) -> dict[fx.Node, int]:
    """How many dimensions results have, as far as shapes, layers and the output tell: logits have two."""
    ranks = {node: len(shape) for node in graph.nodes if (shape := shape_of(node)) is not None}
    ranks |= {node.all_input_nodes[0]: 2 for node in graph.nodes if node.op == "output"}
    before = -1
    while before != len(ranks):
        before = len(ranks)
        for node in graph.nodes:
            module = modules[node.target] if node.op == "call_module" else None
            kind = kind_of(node, module)
            dims = re.fullmatch(r"(?!BatchNorm1)\w+([123])d", type(module).__name__)  # BatchNorm1d takes two or three
            if dims and kind is not Kind.OTHER:
                ranks[node] = ranks[node.all_input_nodes[0]] = int(dims[1]) + 2
            elif kind is Kind.FLATTEN:
                ranks[node] = 2
            elif kind in (Kind.LAYER, Kind.ELEMENTWISE, Kind.NORM, Kind.CAT):
                same = [node, *node.all_input_nodes]
                ranks |= {n: ranks[known] for known in same if known in ranks for n in same}
            elif kind is Kind.ADD:
                first, second = (ranks.get(source) for source in node.all_input_nodes)
                if first is not None and first == second:
                    ranks[node] = first
    return ranks
