"""A network as a graph of torch operations, in the plain form that the analysis reads.

Plain means: no operation works in place, no node is an identity (dropout in eval mode), every flattening is written as
``torch.flatten(x, 1)``. A node's shape, where it is known, is ``node.meta["shape"]``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from threading import Lock, get_ident
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from torch import Tensor, fx, nn
from torch.fx.node import Target

from lps.batch import mapped, tensors_of
from lps.observed import random_batch
from lps.signature import Signature, numbers_of, text_of
from lps_kernels.calls import Inputs, call

IDENTITIES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
MOST_NUMBERS = 2**24  # of one example of the trial input
BATCH = 3  # of the trial input; odd, so that a merged or a split batch is not taken for it


# What Python's `x += y` and the like do; torch.fx alone would write them down as `x + y`.
IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


class UntraceableError(Exception):
    """Why the network cannot be seen as a graph, as a part of a sentence."""


def trace(network: nn.Module, signature: Signature | None) -> tuple[fx.GraphModule, str | None]:
    """The graph of a network in eval mode and, if the shapes in it are unknown, why they are.

    ``signature`` is the kind of its inputs; None is one tensor of which nothing is known. The modules of the result are
    those of the network.
    """
    try:
        traced = fx.GraphModule(network, _Tracer(signature).trace(network))
    except Exception as error:  # whatever the user's own code raises when it is given a proxy
        raise UntraceableError(f"torch.fx says: {first_line(error)}") from error
    unknown = _record_shapes(traced, network, signature)
    _drop_identities(traced)
    _make_pure(traced)
    _write_flatten(traced)
    traced.graph.eliminate_dead_code()
    return traced, unknown


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Shape of the node's result for a batch of :data:`BATCH`, if it is known."""
    shape: tuple[int, ...] | None = node.meta.get("shape")
    return shape


def first_line(error: Exception) -> str:
    """What an error says first, for a part of a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class _Proxy(fx.Proxy):
    """Tells work in place from work that makes a new tensor."""

    def _in_place(self, function: Callable[..., Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__, __isub__, __imul__, __itruediv__, __ipow__ = (
        (lambda self, other, function=function: self._in_place(function, other)) for function in IN_PLACE
    )


_TRACING = Lock()


class _Tracer(fx.Tracer):
    """While it traces, torch.fx replaces methods of all modules in all threads: the others get what they had, and only
    one thread traces at a time, because the methods would otherwise be put back in the wrong order.
    """

    def __init__(self, signature: Signature | None) -> None:
        super().__init__()
        self._signature = signature

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """The network's inputs, each a placeholder: by its signature alone there is no telling how many it has."""
        names = argument_names(self._signature)
        by_name = self._signature is not None and self._signature[0].name is not None
        values = [self.create_proxy("placeholder", name, (), {}) for name in names]

        def run(root: nn.Module, *inputs: Any) -> Any:
            return root_fn(root, **dict(zip(names, inputs, strict=True))) if by_name else root_fn(root, *inputs)

        return run, [self.root, *values]

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        with _TRACING:
            self._thread = get_ident()
            return super().trace(root, concrete_args)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _ShapeRecorder(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def argument_names(signature: Signature | None) -> list[str]:
    """What the inputs of a cut-out network are called."""
    if signature is None or (len(signature) == 1 and signature[0].name is None):
        return ["input"]
    return [each.name or f"input{place}" for place, each in enumerate(signature)]


def _record_shapes(traced: fx.GraphModule, network: nn.Module, signature: Signature | None) -> str | None:
    """Run a trial batch; also a check that the graph answers as the network does.

    Code that changes its own input or draws random numbers leaves no mark in a graph.
    """
    if signature is None:
        return "the shape of the inputs is unknown (metadata.input_shape)"
    try:
        example = trial_input(network, signature)
        with torch.no_grad():
            expected = call(network, mapped(example, Tensor.clone))
            found = _ShapeRecorder(traced).run(*tensors_of(example))
    except Exception as error:  # a shape that is not the network's
        for node in traced.graph.nodes:
            node.meta.pop("shape", None)
        one = len(signature) == 1 and signature[0].is_float
        what = f"a trial input of shape {signature[0].shape}" if one else f"a trial with {text_of(signature)}"
        return f"{what} failed: {first_line(error)}"
    if not answers_alike(expected, found):
        raise UntraceableError("its graph answers otherwise than the network itself")
    return None


def trial_input(network: nn.Module, signature: Signature | None) -> Inputs:
    """Random inputs of this kind, always the same, for a batch of :data:`BATCH`."""
    if signature is None or numbers_of(signature) > MOST_NUMBERS:  # a file may claim any shape
        got = "unknown ones" if signature is None else text_of(signature)
        raise ValueError(f"expected inputs of at most {MOST_NUMBERS:,} numbers, got {got}")
    return random_batch(signature, BATCH, next(network.parameters()))


def answers_alike(expected: Tensor, found: Tensor) -> bool:
    """Whether only the order of sums may have made the difference."""
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(expected, found, rtol=1e-4, atol=1e-5 * largest, equal_nan=True)


def modules_of(traced: fx.GraphModule) -> dict[str, nn.Module]:
    """Every module by the name that nodes call it."""
    return dict(traced.named_modules(remove_duplicate=False))


def _make_pure(traced: fx.GraphModule) -> None:
    """Let no operation work in place, so that a node has one value and may be moved."""
    modules = modules_of(traced)
    for node in list(traced.graph.nodes):
        twin = _out_of_place(node, modules)
        if twin is None:
            continue
        _refuse_later_reads(node, modules)
        node.target = twin
        if "inplace" in node.kwargs:
            node.update_kwarg("inplace", False)
    for module in modules.values():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def _out_of_place(node: fx.Node, modules: dict[str, nn.Module]) -> Target | None:
    """The target that does out of place what this node does in place; None if it does nothing in place."""
    target = node.target
    twin: Target | None = None
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if node.op == "call_module" and getattr(modules[name], "inplace", False):
        return target
    if node.op not in ("call_function", "call_method"):
        return None
    if node.kwargs.get("inplace", False):
        return target
    if "out" in node.kwargs:
        pass
    elif node.op == "call_function" and target in IN_PLACE:
        twin = getattr(operator, name[1:])
    elif name.endswith("_") and not name.endswith("__"):
        twin = name[:-1] if node.op == "call_method" else getattr(torch, name[:-1], None)
        if node.op == "call_method" and not hasattr(Tensor, name[:-1]):
            twin = None
    else:
        return None
    if twin is None:
        raise UntraceableError(f"{name} changes a tensor in place")
    return twin


def _refuse_later_reads(changer: fx.Node, modules: dict[str, nn.Module]) -> None:
    """Refuse an operation in place if its old input, or a view of it, is read after it under the old name."""

    def may_alias(node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(modules[str(node.target)]) in (nn.Flatten, nn.Unflatten)
        return node.op in ("call_function", "call_method") and node.target not in (operator.add, torch.add, torch.cat)

    roots = [changer.all_input_nodes[0]]
    for root in roots:  # grows while it is walked
        if root.op == "get_attr":
            raise UntraceableError(f"{changer.name} changes {root.target} in place")
        roots += [source for source in root.all_input_nodes if may_alias(root) and source not in roots]
    aliases, order = set(roots), {node: place for place, node in enumerate(changer.graph.nodes)}
    for node in changer.graph.nodes:
        if node is not changer and may_alias(node) and aliases.intersection(node.all_input_nodes):
            aliases.add(node)
    for alias in aliases:
        if any(order[user] > order[changer] for user in alias.users):
            raise UntraceableError(f"{changer.name} changes a tensor in place that is read after it")


def _drop_identities(traced: fx.GraphModule) -> None:
    modules = modules_of(traced)
    for node in list(traced.graph.nodes):
        module = modules.get(node.target) if node.op == "call_module" else None
        at_rest = node.op == "call_function" and node.target in DROPOUTS and node.kwargs.get("training") is False
        if (at_rest or (type(module) in IDENTITIES and not has_hooks(module))) and len(node.all_input_nodes) == 1:
            node.replace_all_uses_with(node.all_input_nodes[0])
            traced.graph.erase_node(node)


def has_hooks(module: nn.Module | None) -> bool:
    """Whether a hook runs before or after the module's own code."""
    return module is not None and bool(module._forward_hooks or module._forward_pre_hooks)


def _write_flatten(traced: fx.GraphModule) -> None:
    modules = modules_of(traced)
    for node in list(traced.graph.nodes):
        if _flattens(node, modules):
            with traced.graph.inserting_after(node):
                flat = traced.graph.call_function(torch.flatten, (node.args[0], 1))
            flat.meta.update(node.meta)
            node.replace_all_uses_with(flat)
            traced.graph.erase_node(node)


def _flattens(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether all dimensions of the result but the first are made one, and nothing else."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        is_plain = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        return is_plain and not has_hooks(module)
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    arguments = node.args[1:]
    if node.target in (torch.flatten, "flatten"):
        return (*arguments, *node.kwargs.values()) == (1,) and node.kwargs.keys() <= {"start_dim"}
    if node.target not in (torch.reshape, "reshape", "view") or node.kwargs:
        return False
    dims = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else arguments
    return len(dims) == 2 and _views_flat(node, node.args[0], *dims)


def _views_flat(node: fx.Node, source: fx.Node, first: object, second: object) -> bool:
    """Whether a view of two dimensions is a flattening: by its arguments, or by shapes for a batch of any size."""
    if second == -1 and _is_batch_of(first, source):
        return True
    before, after = shape_of(source), shape_of(node)
    of_any_batch = first == -1 or isinstance(first, fx.Node)
    return of_any_batch and before is not None and after == (before[0], prod(before[1:]))


def _is_batch_of(dim: object, source: fx.Node) -> bool:
    """Whether this is ``source.size(0)`` or ``source.shape[0]``."""
    if not isinstance(dim, fx.Node):
        return False
    if dim.target == "size":
        return dim.args == (source, 0)
    if dim.target is operator.getitem and dim.args[1] == 0 and isinstance(dim.args[0], fx.Node):
        shape = dim.args[0]
        return (shape.target, shape.args) in [("size", (source,)), (getattr, (source, "shape"))]
    return False
