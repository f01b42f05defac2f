"""How a network is called with a batch: one tensor, several in a tuple, or several by name.

A mapping is handed over by name and a tuple by position, so that a network reads them by its own signature, as those of
Hugging Face do: ``network(input_ids=..., attention_mask=...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, fx

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]

TENSORS: Any = (Tensor, fx.Proxy)  # a proxy stands for a tensor while a graph is made
# Where an output that is an object holds one vector per example.
VECTORS = ("pooler_output", "logits")


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The inputs as arguments by position and by name."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def call(network: Callable[..., Any], inputs: Inputs) -> Any:
    """What a network answers to a batch."""
    if isinstance(inputs, Tensor):
        return network(inputs)
    by_place, by_name = arguments(inputs)
    return network(*by_place, **by_name)


def vectors(output: Any) -> Tensor:
    """One vector per example from what a backbone returns: a tensor, or an object that has one.

    An object whose only tensors are per token or pixel is refused: which of these stand for the example is the
    network's matter.
    """
    if isinstance(output, TENSORS):
        return cast("Tensor", output)
    for name in VECTORS:
        value = getattr(output, name, None)
        if isinstance(value, TENSORS):
            return cast("Tensor", value.flatten(1))
    per_token = getattr(output, "last_hidden_state", None)
    hint = ""
    if isinstance(per_token, Tensor):
        hint = (
            f" with last_hidden_state {list(per_token.shape)}, which is a vector per token: wrap the network in a "
            "module that returns one per example, as in last_hidden_state[:, 0] or a mean"
        )
    raise TypeError(f"expected a tensor, or an object with {' or '.join(VECTORS)}, got {type(output).__name__}{hint}")
