"""Which channels of every tensor in a graph carry something, which are constants, and which must stay.

A channel is an index of dimension 1, or of the last one behind a Linear on tensors of more than two dimensions. It is
*live*, or a constant whose value is known before any input is. First constants are followed forwards; then a channel
is *kept* if a later operation reads it: a live channel on which a layer has a weight, a constant that a convolution
pads with zeros, every channel that an unknown operation reads, and every channel that is added to a kept one. Flags are
set until nothing changes, and never cleared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, fx, nn

from lps.deploy.extraction.ops import (
    Convs,
    Kind,
    Norms,
    elementwise,
    kind_of,
    mixes_in_zeros,
    ranks_of,
    scale_and_shift,
    why_other,
)
from lps.deploy.extraction.trace import modules_of, shape_of

Note = Callable[[str, str], None]  # of a place in the graph: why it keeps its shape


@dataclass
class Channels:
    """The channels of one tensor: flags and, where it is not live, the constant."""

    axis: int  # 1, or -1 for the last of more dimensions than two
    live: Tensor
    value: Tensor  # float64
    kept: Tensor

    @classmethod
    def of(cls, axis: int, live: Tensor, value: Tensor) -> Channels:
        """Channels before any is marked as kept."""
        return cls(axis, live, torch.where(live, 0.0, value), torch.zeros_like(live))


@dataclass
class FoldedLayer:
    """What a Linear or a convolution becomes when constants among its inputs are moved into its bias."""

    module: nn.Linear | Convs
    seen: Tensor  # [inputs] flags: whose weights stay, the others' contribution is in the bias
    reads: Tensor  # [outputs, inputs] flags: a weight that is not 0 on an input that is seen
    bias: Tensor  # [outputs] float64


class Analysis:
    """Channels of every node of a graph that has them, and its layers, by node."""

    def __init__(self, traced: fx.GraphModule, fixed: dict[str, str], note: Note) -> None:
        """``fixed`` says of some modules why they must keep their shape."""
        self.modules = modules_of(traced)
        self.graph = traced.graph
        self.note = note
        self.fixed = fixed
        self.ranks = ranks_of(traced.graph, self.modules)
        self.channels: dict[fx.Node, Channels] = {}
        self.layers: dict[fx.Node, FoldedLayer] = {}
        self.kinds: dict[fx.Node, Kind] = {}
        for node in traced.graph.nodes:
            self._follow(node)
        self._keep()

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """The module that the node calls."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def kept_inputs(self, node: fx.Node) -> Tensor | None:
        """Indices of the channels that a layer finds in its input; None for all."""
        channels = self.channels.get(node.all_input_nodes[0])
        return None if channels is None or bool(channels.kept.all()) else channels.kept.nonzero().flatten()

    def _follow(self, node: fx.Node) -> None:
        """Find out what is constant behind this node."""
        module = self.module_of(node)
        kind = kind_of(node, module)
        reason, found = why_other(node, module), None
        if kind in (Kind.LAYER, Kind.NORM) and node.target in self.fixed:
            reason = self.fixed[str(node.target)]
        elif kind is Kind.LAYER:
            found, reason = self._layer(node), "it does not read the channels of the layer before it"
        elif all(source in self.channels for source in node.all_input_nodes):
            inputs = [self.channels[source] for source in node.all_input_nodes]
            if kind in (Kind.ELEMENTWISE, Kind.NORM, Kind.POOL):
                found = self._channel_by_channel(node, kind, inputs[0])
            elif kind is Kind.FLATTEN:
                found = self._flatten(node, inputs[0])
            elif kind is Kind.ADD:
                found = self._add(node, inputs)
            elif kind is Kind.CAT:
                found = self._cat(node)
        if found is not None:
            self.channels[node], self.kinds[node] = found, kind
            return
        self.kinds[node] = Kind.OTHER
        reads_channels = any(source in self.channels for source in node.all_input_nodes)
        if kind is Kind.LAYER or (reads_channels and node.op != "output"):
            self.note(node.name if module is None else str(node.target), reason)

    def _layer(self, node: fx.Node) -> Channels | None:
        module, source = self.module_of(node), node.all_input_nodes[0]
        assert isinstance(module, nn.Linear | Convs)
        is_linear = isinstance(module, nn.Linear)
        axis = 1 if not is_linear or self.ranks.get(source) == 2 else -1
        inputs = self.channels.get(source)
        if inputs is not None and inputs.axis != axis:
            return None
        weight = module.weight.detach().flatten(2) if not is_linear else module.weight.detach()[:, :, None]
        bias = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
        if module.bias is not None:
            bias += module.bias.detach()
        reads = (weight != 0).any(2)
        if inputs is None:
            seen = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
        else:
            pads = isinstance(module, Convs) and any(
                module.padding
            )  # a window at the border then reads 0 instead of the constant
            seen = inputs.live | ((inputs.value != 0) if pads else False)
            moved = (~seen & (inputs.value != 0)).nonzero().flatten()
            bias += weight[:, moved].sum(2, dtype=torch.float64) @ inputs.value[moved]
            reads &= seen
        self.layers[node] = FoldedLayer(module, seen, reads, bias)
        return Channels.of(axis, reads.any(1), bias)

    def _channel_by_channel(self, node: fx.Node, kind: Kind, inputs: Channels) -> Channels | None:
        module = self.module_of(node)
        if kind is Kind.ELEMENTWISE:
            return Channels.of(inputs.axis, inputs.live, elementwise(node, module, inputs.value))
        if inputs.axis != 1:
            return None
        if kind is Kind.NORM:
            assert isinstance(module, Norms)
            scale, shift = scale_and_shift(module)
            return Channels.of(1, inputs.live, scale * inputs.value + shift)
        live = inputs.live | (inputs.value != 0) if mixes_in_zeros(node, module) else inputs.live
        return Channels.of(1, live, inputs.value)

    def _flatten(self, node: fx.Node, inputs: Channels) -> Channels | None:
        pixels = self.pixels(node, len(inputs.live))
        if inputs.axis != 1 or pixels is None:
            return None
        return Channels.of(1, inputs.live.repeat_interleave(pixels), inputs.value.repeat_interleave(pixels))

    def pixels(self, node: fx.Node, channels: int) -> int | None:
        """How many features a flattening makes of each channel: from shapes, else from the next layer's width."""
        shape = shape_of(node.all_input_nodes[0])
        if shape is not None:
            return prod(shape[2:])
        readers = list(node.users)
        for reader in readers:  # grows while it is walked
            module = self.module_of(reader)
            width = module.in_features if isinstance(module, nn.Linear) else getattr(module, "num_features", None)
            if isinstance(width, int) and width % channels == 0:
                return width // channels
            if kind_of(reader, module) is Kind.ELEMENTWISE:
                readers += reader.users
        return None

    def _add(self, node: fx.Node, inputs: list[Channels]) -> Channels | None:
        first, second = inputs
        ranks = {self.ranks.get(source) for source in node.all_input_nodes}
        aligned = first.axis == second.axis and (first.axis == -1 or (len(ranks) == 1 and None not in ranks))
        if not aligned or len(first.live) != len(second.live):
            return None
        return Channels.of(first.axis, first.live | second.live, first.value + second.value)

    def _cat(self, node: fx.Node) -> Channels | None:
        parts = [self.channels[part] for part in node.args[0]]  # type: ignore[union-attr, index]
        if any(part.axis != 1 for part in parts):
            return None
        return Channels.of(1, torch.cat([part.live for part in parts]), torch.cat([part.value for part in parts]))

    def _keep(self) -> None:
        """Set `kept` on channels that a later operation reads or that belong to a kept one, until nothing changes."""
        before = -1
        while before != (count := sum(int(channels.kept.sum()) for channels in self.channels.values())):
            before = count
            for node in reversed(self.graph.nodes):
                self._tie(node)
                if node in self.channels and not self.channels[node].kept.any():
                    self.channels[node].kept[0] = True  # a layer needs at least one channel

    def _tie(self, node: fx.Node) -> None:
        kind = self.kinds[node]
        inputs = [self.channels[source] for source in node.all_input_nodes if source in self.channels]
        if kind is Kind.OTHER:
            for channels in inputs:
                channels.kept[:] = True
            return
        output = self.channels[node]
        if kind is Kind.LAYER:
            for channels in inputs:
                channels.kept |= self.layers[node].reads[output.kept].any(0)
        elif kind is Kind.FLATTEN:
            pixels = len(output.kept) // len(inputs[0].kept)
            inputs[0].kept |= output.kept.view(-1, pixels).any(1)
            output.kept |= inputs[0].kept.repeat_interleave(pixels)
        elif kind is Kind.CAT:
            parts = [self.channels[part] for part in node.args[0]]  # type: ignore[union-attr, index]
            for part, kept in zip(parts, torch.split(output.kept, [len(part.kept) for part in parts]), strict=True):
                part.kept |= kept
            output.kept |= torch.cat([part.kept for part in parts])
        else:
            for channels in inputs:
                output.kept |= channels.kept
            for channels in inputs:
                channels.kept |= output.kept
