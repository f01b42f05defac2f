"""Takes normalisations, ReLUs and residual sums into the layers before them."""

from __future__ import annotations

from torch import Tensor, fx, nn

from lps.deploy.extraction.channels import Analysis
from lps.deploy.extraction.ops import Convs, Kind, Norms, is_relu, kind_of, ranks_of, scale_and_shift
from lps.deploy.extraction.trace import modules_of, shape_of


def fold_norms(traced: fx.GraphModule, fixed: dict[str, str]) -> None:
    """Multiply every norm that is the only reader of a layer's result into that layer, unless the layer is ``fixed``.

    Before the analysis, so that a norm's scale of 0 counts as pruned weights.
    """
    modules = modules_of(traced)
    ranks = ranks_of(traced.graph, modules)
    for node in list(traced.graph.nodes):
        norm = modules[node.target] if node.op == "call_module" else None
        if not isinstance(norm, Norms) or kind_of(node, norm) is not Kind.NORM:
            continue
        source = node.all_input_nodes[0]
        layer = modules[str(source.target)] if source.op == "call_module" else None
        is_layer = isinstance(layer, nn.Linear | Convs) and kind_of(source, layer) is Kind.LAYER
        # On more than two dimensions a norm's channels are not those of a Linear.
        in_step = not isinstance(layer, nn.Linear) or ranks.get(source) == 2
        if is_layer and in_step and len(source.users) == 1 and source.target not in fixed:
            assert isinstance(layer, nn.Linear | Convs)
            _fold(layer, *scale_and_shift(norm))
            node.replace_all_uses_with(source)
            traced.graph.erase_node(node)


def _fold(layer: nn.Linear | Convs, scale: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach()
    if layer.bias is not None:
        shift = shift + scale * layer.bias.detach()
    scaled = weight * scale.view(-1, *[1] * (weight.dim() - 1))  # rounded once: the product is in float64
    layer.weight = nn.Parameter(scaled.to(weight.dtype), requires_grad=False)
    layer.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=False)


def fuse(graph: fx.Graph, ours: set[fx.Node], analysis: Analysis) -> set[fx.Node]:
    """Give residuals to the convolutions among ``ours`` and say which of ``ours`` end with a ReLU."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if kind_of(node, analysis.module_of(node)) is Kind.ADD:
            first, second = sorted(node.all_input_nodes, key=lambda source: order[source])
            # The later one first: its inputs were computed last, so they are likely to be in the caches.
            for layer, other in ((second, first), (first, second)):
                if layer in ours and _may_add(layer, other, analysis):
                    node.prepend(layer)
                    layer.args = (layer.args[0], other)
                    _absorb(layer, node)
                    break
    with_relu = set()
    for layer in ours:
        user = next(iter(layer.users))
        if len(layer.users) == 1 and is_relu(user, analysis.module_of(user)):
            with_relu.add(layer)
            _absorb(layer, user)
    return with_relu


def _may_add(layer: fx.Node, other: fx.Node, analysis: Analysis) -> bool:
    """Whether ``other`` is a residual of the same shape that only this sum adds to the convolution."""
    is_free_conv = isinstance(analysis.module_of(layer), Convs) and len(layer.users) == len(layer.args) == 1
    return is_free_conv and shape_of(layer) is not None and shape_of(layer) == shape_of(other)


def _absorb(layer: fx.Node, node: fx.Node) -> None:
    """Let the layer stand for this node too."""
    node.replace_all_uses_with(layer)
    node.graph.erase_node(node)
