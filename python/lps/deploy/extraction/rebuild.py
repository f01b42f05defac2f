"""Puts smaller layers into a graph in place of the old ones."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, fx, nn

from lps.deploy.extraction.channels import Analysis
from lps.deploy.extraction.formats import KERNEL_FORMATS, Shrunk, Target, build, choose, summarise
from lps.deploy.extraction.fuse import fuse
from lps.deploy.extraction.ops import Convs, Kind, Norms, kind_of
from lps.deploy.extraction.trace import shape_of
from lps_kernels.cutout import LayerSummary
from lps_kernels.layers import MaxPool2d

UNKNOWN_POSITIONS = 64  # of a convolution per example, where no shape is known


def rebuild(traced: fx.GraphModule, analysis: Analysis, untouched: set[str], target: Target) -> list[LayerSummary]:
    """Shrink, choose formats, fuse and replace, in this order; says what became of each layer."""
    shrunk: dict[fx.Node, Shrunk] = {}
    ours_pools = not target.portable and not target.on_gpu  # ours is for the memory order that a CPU's layers leave
    for node in traced.graph.nodes:
        module = analysis.module_of(node)
        if kind_of(node, module) is Kind.LAYER and node.target not in untouched:
            shrunk[node] = _shrink_layer(node, analysis, target.batch_size)
        elif analysis.kinds[node] is Kind.NORM:
            assert isinstance(module, Norms)
            _put(traced, str(node.target), _shrink_norm(module, analysis.channels[node].kept))
        elif analysis.kinds[node] is Kind.POOL and type(module) is nn.MaxPool2d and ours_pools and _is_plain(module):
            _put(traced, str(node.target), MaxPool2d(_pair(module.kernel_size), _pair(module.stride)))
    formats = {node: choose(layer, target) for node, layer in shrunk.items()}
    # A layer that is called at several places must do the same at each.
    ours = {n for n, format in formats.items() if format in KERNEL_FORMATS and n.target not in analysis.fixed}
    with_relu = fuse(traced.graph, ours, analysis)
    built: dict[int, nn.Module] = {}  # by the module they stand for, which may be called at several places
    summaries = []
    for node, layer in shrunk.items():
        module = layer.template
        if id(module) not in built:
            built[id(module)] = build(layer, formats[node], relu=node in with_relu)
            summaries.append(summarise(plain_name(str(node.target)), layer, formats[node], built[id(module)]))
        _put(traced, str(node.target), built[id(module)])
        if formats[node] == "gather":
            _select_inputs(traced.graph, node)
    return summaries


def plain_name(target: str) -> str:
    """The name of a module as the user's backbone has it."""
    return target.removeprefix("backbone.")


def _put(traced: fx.GraphModule, target: str, module: nn.Module) -> None:
    parent, _, name = target.rpartition(".")
    setattr(traced.get_submodule(parent), name, module)


def _shrink_layer(node: fx.Node, analysis: Analysis, batch_size: int) -> Shrunk:
    """The layer on the channels that are kept, with constants moved into its bias."""
    module = analysis.module_of(node)
    assert isinstance(module, nn.Linear | Convs)
    positions = batch_size * _positions(node, module)
    layer = analysis.layers.get(node)
    if layer is None:  # it must keep its shape
        bias = None if module.bias is None else module.bias.detach()
        return Shrunk(module, module.weight.detach(), bias, positions)
    weight, bias = module.weight.detach(), layer.bias
    outputs, inputs = analysis.channels[node].kept, analysis.kept_inputs(node)
    if not layer.seen.all():
        weight = weight * layer.seen.view(1, -1, *[1] * (weight.dim() - 2))
    weight = weight if inputs is None else weight[:, inputs]
    weight = weight if outputs.all() else weight[outputs]
    bias = bias[outputs].to(weight.dtype)
    return Shrunk(module, weight, bias if bias.any() else None, positions)


def _positions(node: fx.Node, module: nn.Linear | Convs) -> int:
    """How often the weight is applied per example."""
    shape = shape_of(node)
    if isinstance(module, nn.Linear):
        return 1 if shape is None else prod(shape[1:-1])
    return UNKNOWN_POSITIONS if shape is None else prod(shape[2:])


def _shrink_norm(norm: Norms, kept: Tensor) -> nn.Module:
    """A norm of the channels that are kept."""
    make: type[nn.Module] = type(norm)
    small = make(int(kept.sum()), eps=norm.eps, affine=norm.affine, device="meta")
    for name, parameter in norm.named_parameters():
        setattr(small, name, nn.Parameter(parameter.detach()[kept], requires_grad=False))
    for name, buffer in norm.named_buffers():
        setattr(small, name, buffer[kept] if buffer.dim() else buffer.clone())
    return small.eval()


def _is_plain(pool: nn.MaxPool2d) -> bool:
    whole = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return whole and not pool.ceil_mode and not pool.return_indices


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes * 2 if len(sizes) == 1 else sizes


def _select_inputs(graph: fx.Graph, node: fx.Node) -> None:
    """Let a layer read the columns that its buffer lists."""
    source = node.all_input_nodes[0]
    with graph.inserting_before(node):
        columns = graph.get_attr(f"{node.target}.columns")
        selected = graph.call_function(torch.index_select, (source, -1, columns))
    node.args = (selected,)
