"""Elastic weight consolidation (Kirkpatrick et al., PNAS 2017): weights that earlier tasks depend on are held fast.

While a task is learnt, Eq. (3) adds a spring to every weight, lambda/2 F (theta - theta*)^2, with the weights theta*
that an earlier task ended with and its Fisher information F: the diagonal of E[grad log p(y|x)^2] over its training
inputs and over y as the network itself predicts it. There is one such term for each earlier task, as in the paper.
Their sum is again one spring, of strength sum(F) about the mean of all theta* weighted by F: that is all the memory,
whatever the number of tasks.

A task's own loss has no part in the Fisher information, so class weights are left out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lps.batch import examples_in, moved, pieces
from lps.methods.dense import Dense, DenseLearner, fitting_all, gradients, protected, some_examples
from lps.methods.options import READS, EWCOptions
from lps_kernels.calls import Inputs, call, vectors

# Of the memory: tensors by the names of the parameters.
FISHER = "fisher"
CENTRE = "centre"

Springs = dict[str, Tensor]  # strengths or centres

CHUNK = 256  # examples whose activations are held at once


class EWCLearner(DenseLearner):
    """Adds the springs' pull to the gradients."""

    own: EWCOptions

    def begin_task(self) -> None:
        """Look up what is held."""
        self.held = protected(self.net)
        self.weights: list[Tensor] = list(self.held.values())

    @torch.no_grad()
    def before_update(self) -> None:
        """Add lambda F (theta - centre), the gradient of Eq. (3)."""
        if self.number > 1:
            away = torch._foreach_sub(self.weights, list(self.memory[CENTRE].values()))
            fisher = list(self.memory[FISHER].values())
            torch._foreach_addcmul_(gradients(self.weights), fisher, away, value=self.own.strength)

    def finish(self) -> None:
        """Join the spring of this task with those of the earlier ones."""
        inputs, _ = some_examples(self.task, self.own.fisher_samples)
        fisher = fisher_information(self.net.backbone, self.head, moved(inputs, self.device), self.held)
        centre = {name: weight.detach().clone() for name, weight in self.held.items()}
        if self.number > 1:
            fisher, centre = joined(self.memory[FISHER], self.memory[CENTRE], fisher, centre)
        self.memory = {FISHER: fisher, CENTRE: centre}


class EWC(Dense):
    """Holds weights by their Fisher information."""

    name = "ewc"
    reads = READS[name]
    own_losses = False  # the Fisher information is that of class probabilities
    task_learner = EWCLearner

    def load_memory(self, memory: dict[str, Any]) -> None:
        """The strength and the centre of the springs, for the parameters of this backbone."""
        held = protected(self.net)
        self.memory = {kind: fitting_all(kind, memory.get(kind), held) for kind in (FISHER, CENTRE)}


def joined(fisher: Springs, centre: Springs, other: Springs, other_centre: Springs) -> tuple[Springs, Springs]:
    """Strengths and centres of the sum of two springs for every weight, which is a spring up to a constant."""
    total = {name: fisher[name] + other[name] for name in fisher}
    tiny = torch.finfo(next(iter(total.values())).dtype).tiny  # a weight that no task depends on has no strength
    share = {name: other[name] / total[name].clamp_min(tiny) for name in total}
    return total, {name: centre[name].lerp(other_centre[name], share[name]) for name in total}


class Call(NamedTuple):
    """A call of a Linear layer."""

    arguments: tuple[Any, ...]
    output: GradientEdge  # its place in the graph, which a later operation in place does not move
    shape: torch.Size


def fisher_information(
    backbone: nn.Module, head: nn.Module, inputs: Inputs, parameters: Mapping[str, nn.Parameter]
) -> Springs:
    """The diagonal of the Fisher information for parameters of the backbone: a mean over the inputs.

    It is exact: the squared gradients are those of single examples, and every class counts with its probability. A
    Linear layer that is called once with a row per example has outer products as gradients, so the squares of a whole
    batch are one product of matrices; all other parameters need the examples one by one.
    """
    fisher = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    names = {id(parameter): name for name, parameter in parameters.items()}
    with _calls_of_linears(backbone) as calls:
        for chunk in pieces(inputs, CHUNK):
            calls.clear()
            terms = _terms(head(vectors(call(backbone, chunk))))
            once = {
                layer: made[0]
                for layer, made in calls.items()
                if len(made) == 1 and _has_rows(made[0], examples_in(chunk))
            }
            for layer, (weight, bias) in _linear_squares(terms, once).items():
                for tensor, squares in ((layer.weight, weight), (layer.bias, bias)):
                    if id(tensor) in names:
                        fisher[names[id(tensor)]] += squares
            done = {id(tensor) for layer in once for tensor in (layer.weight, layer.bias)}
            rest = [name for name, parameter in parameters.items() if id(parameter) not in done]
            for example in pieces(chunk, 1) if rest else ():
                for term in _terms(head(vectors(call(backbone, example)))):
                    found = torch.autograd.grad(
                        term.sum(), [parameters[name] for name in rest], retain_graph=True, materialize_grads=True
                    )
                    torch._foreach_addcmul_([fisher[name] for name in rest], found, found)
    return {name: total / examples_in(inputs) for name, total in fisher.items()}


def _terms(logits: Tensor) -> list[Tensor]:
    """Per class the sqrt(p) log(p) of every example, p constant in the first: their squared gradients add up."""
    log_p = torch.log_softmax(logits, 1)
    return list((log_p * (log_p.detach() / 2).exp()).unbind(1))


def _linear_squares(terms: list[Tensor], calls: Mapping[nn.Linear, Call]) -> dict[nn.Linear, tuple[Tensor, Tensor]]:
    """The squared gradients of weight and bias of layers, summed over classes and examples."""
    edges = [call.output for call in calls.values()]
    squares = [terms[0].new_zeros(call.shape) for call in calls.values()]
    for term in terms if edges else ():
        found = torch.autograd.grad(term.sum(), edges, retain_graph=True)
        torch._foreach_addcmul_(squares, found, found)
    return {
        layer: (square.T @ call.arguments[0].detach().square(), square.sum(0))
        for (layer, call), square in zip(calls.items(), squares, strict=True)
    }


def _has_rows(call: Call, examples: int) -> bool:
    return len(call.arguments) == 1 and call.shape[:-1] == (examples,)


@contextmanager
def _calls_of_linears(backbone: nn.Module) -> Iterator[dict[nn.Linear, list[Call]]]:
    """The calls of all Linear layers that share no parameter with another module, as they are made."""
    calls: dict[nn.Linear, list[Call]] = {}
    users = Counter(id(tensor) for module in backbone.modules() for tensor in module.parameters(recurse=False))

    def record(layer: nn.Linear, arguments: tuple[Any, ...], output: Tensor) -> None:
        calls.setdefault(layer, []).append(Call(arguments, get_gradient_edge(output), output.shape))

    handles = [
        module.register_forward_hook(record)
        for module in backbone.modules()
        # Not of a subclass, which may compute something else; frozen layers may have no gradient.
        if type(module) is nn.Linear
        and all(users[id(tensor)] == 1 for tensor in module.parameters())
        and any(tensor.requires_grad for tensor in module.parameters())
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
