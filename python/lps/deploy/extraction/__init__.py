"""Cuts one task out of a lifelong network as a plain and smaller module.

`trace` makes a graph of the network, `fuse` folds normalisations, `channels` finds what can go, `formats` chooses how
each layer's weights are held, `rebuild` puts it together. What is returned holds no class of this package.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from lps.batch import mapped
from lps.deploy.extraction.channels import Analysis
from lps.deploy.extraction.fallback import replace_layers
from lps.deploy.extraction.formats import Target
from lps.deploy.extraction.fuse import fold_norms
from lps.deploy.extraction.rebuild import plain_name, rebuild
from lps.deploy.extraction.trace import (
    UntraceableError,
    answers_alike,
    first_line,
    modules_of,
    trace,
    trial_input,
)
from lps.observed import dtype_name
from lps.signature import Signature
from lps_kernels.calls import call
from lps_kernels.cutout import Cutout, LayerSummary, TaskNetwork

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

LOG = logging.getLogger("lps.extract")


def extract(net: Lifelong, task: int, target: Target) -> Cutout:
    """The network of one task; see :meth:`lps.Lifelong.extract`."""
    with torch.no_grad():
        network = _network_of(net, task)
        notes = target.notes
        signature = net.metadata.signature(task, dtype_name(net.like))
        try:
            traced, unknown = trace(network, signature)
        except UntraceableError as why:
            notes.append(f"every layer keeps its shape: {why}")
            LOG.warning(notes[-1])
            return _without_graph(network, signature, notes, target)
        if unknown:
            LOG.info("without shapes no residual is fused and work is guessed: %s", unknown)
        layers = _shrink(traced, notes, target)
        for note in notes:
            LOG.info(note)
        return Cutout(_tidy(traced), layers, notes)


def _without_graph(network: nn.Module, signature: Signature | None, notes: list[str], target: Target) -> Cutout:
    """Replace layers one by one, if a trial shows that the code around them still gives the same answers."""
    replaced = copy.deepcopy(network)
    layers = replace_layers(replaced, target)
    try:
        example = trial_input(network, signature)
        expected = call(network, mapped(example, Tensor.clone))
    except Exception as error:  # whatever the user's own code raises, also where no shape is known
        why = f"no trial could show whether others answer alike: {type(error).__name__}: {first_line(error)}"
    else:
        why = "a trial with other layers in their places did not give the same answers"
        try:
            if answers_alike(expected, call(replaced, mapped(example, Tensor.clone))):
                return Cutout(replaced, layers, notes)
        except Exception as error:  # of code that reads what a replaced layer does not have
            why = f"a trial with other layers in their places failed: {type(error).__name__}: {first_line(error)}"
    notes.append(f"every layer is kept as it is: {why}")
    LOG.warning(notes[-1])
    return Cutout(network, replace_layers(network, replace(target, portable=True)), notes)


def _network_of(net: Lifelong, task: int) -> nn.Module:
    """A copy of the backbone with the task's weights and its head behind it, in eval mode."""
    backbone, head = copy.deepcopy(net.backbone), copy.deepcopy(net.heads[task - 1])
    vars(backbone).pop("architecture", None)  # of lps.models: how to make a whole backbone
    for partition, _ in net.prunable():
        partition.compose(task, out=backbone.get_parameter(partition.name))
    own = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    for name, tensor in net.tensors_of(task):
        own[name].copy_(tensor)
    return TaskNetwork(backbone, head).eval()


def _shrink(traced: fx.GraphModule, notes: list[str], target: Target) -> list[LayerSummary]:
    def note(place: str, reason: str) -> None:
        text = f"{plain_name(place)} keeps its shape: {reason}"
        if text not in notes:
            notes.append(text)

    fixed, untouched = _fixed_layers(traced)
    fold_norms(traced, fixed)
    analysis = Analysis(traced, fixed, note)
    return rebuild(traced, analysis, untouched, target)


def _fixed_layers(traced: fx.GraphModule) -> tuple[dict[str, str], set[str]]:
    """Modules that must keep their shape, with the reason; and the names of modules that must not be replaced."""
    modules = modules_of(traced)
    calls = Counter(id(modules[node.target]) for node in traced.graph.nodes if node.op == "call_module")
    places = Counter(id(p) for module in set(modules.values()) for p in module._parameters.values() if p is not None)
    read = {node.target for node in traced.graph.nodes if node.op == "get_attr"}
    fixed, untouched = {}, set()
    for name, module in modules.items():
        parameters = [(key, p) for key, p in module._parameters.items() if p is not None]
        if any(f"{name}.{key}" in read for key, _ in parameters):
            fixed[name] = "its weights are read elsewhere too"
            untouched.add(name)
        elif any(places[id(parameter)] > 1 for _, parameter in parameters):
            fixed[name] = "it shares its weights with another layer"
        elif calls[id(module)] > 1:
            fixed[name] = "it is called more than once"
    return fixed, untouched


def _tidy(traced: fx.GraphModule) -> fx.GraphModule:
    for node in traced.graph.nodes:
        node.meta.clear()  # it names the classes that the graph was traced from
    traced.graph.eliminate_dead_code()
    traced.graph.lint()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced
