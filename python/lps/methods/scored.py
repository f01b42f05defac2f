"""Methods that learn a score for every weight: a task runs with the weights of the highest scores of each layer.

The scores are trained by edge-popup (Ramanujan et al., CVPR 2020): in every step the forward pass uses exactly the best
share of each layer, over all its weights, and the gradient passes the selection straight through, so that the score of
every weight gets the gradient of the effective weight times the weight. That is the straight-through step of the masks
of Learn-Prune-Share on a layer in which everything is owned, so both run the same operator.

What is in the final mask and belongs to no task becomes the task's own; what belongs to earlier tasks is its mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lps.draft import Draft
from lps.errors import ConfigError, FileFormatError
from lps.methods.base import Method
from lps.methods.dense import fitting_all
from lps.methods.fit import Fit, Phase
from lps.methods.lps.steppers import load_moments
from lps.methods.split import SplitLearner
from lps.partition import Partition
from lps.runs.checkpoint import fitting
from lps.task import Task
from lps_kernels import Selection, StraightThroughAdam, WeightState, project, unpack_bits
from lps_kernels.ops.scores import View

if TYPE_CHECKING:
    from lps.methods.lps.config import TaskConfig

WEIGHTS, SCORES = "weights", "scores"  # of the memory


class Scored(Method):
    """Learns scores; ``task_learner`` and ``remembers`` are what a subclass changes."""

    task_learner: ClassVar[type[ScoredLearner]]
    remembers: ClassVar[tuple[str, ...]]  # tensors of every layer that outlive a task beside the network

    def check(self, tasks: Sequence[Task]) -> None:
        """There is always room: a mask may consist of earlier tasks' weights alone."""
        super().check(tasks)
        self._refuse_groups()

    def learner(self, task: Task, config: TaskConfig, draft: Draft) -> ScoredLearner:
        """A learner of the method's own kind."""
        self._refuse_groups()
        return self.task_learner(self, task, config, draft)

    def _refuse_groups(self) -> None:
        for name, got, only in (
            ("pattern", self.net.pattern, "irregular"),
            ("sharing", self.net.sharing, "elementwise"),
        ):
            if got != only:
                raise ConfigError(f"{name}: {self.name} selects single weights, got {got}; leave it out")

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Tensors of the layers of this backbone."""
        if memory.keys() != set(self.remembers):
            raise FileFormatError(
                f"expected {' and '.join(self.remembers)}, got {', '.join(map(str, memory)) or 'none'}"
            )
        like = {partition.name: partition.w_bar for partition, _ in self.net.prunable()}
        self.memory = {name: fitting_all(name, memory[name], like) for name in self.remembers}


@dataclass
class ScoredWeight:
    """A prunable weight in training; the backbone's ``parameter`` holds the ``keep`` best weights and 0 elsewhere."""

    partition: Partition
    parameter: nn.Parameter
    weights: Tensor
    scores: Tensor
    keep: int

    @property
    def view(self) -> View:
        """Every weight is a group."""
        return 1, self.weights.numel(), 1


class ScoredLearner(SplitLearner):
    """Learns the scores of one task; a method says where weights start and which of them move."""

    rho = 0.0  # there is no penalty to log
    weights_learn: ClassVar[bool] = False  # whether weights move beside their scores

    def __init__(self, method: Scored, task: Task, config: TaskConfig, draft: Draft) -> None:
        super().__init__(method.net, task, config, draft)
        self.method = method
        self.phases: Sequence[Phase] = method.phases(draft.number)
        self.layers = [self._begin(partition, parameter) for partition, parameter in self.net.prunable()]
        # To the step every weight is an owned one, with a mask that learns. All layers share the bytes that say so.
        longest = max(layer.weights.numel() for layer in self.layers)
        self._owned = torch.ones(longest, dtype=torch.uint8, device=self.device)
        states = [self._state(layer) for layer in self.layers]
        self.adam = StraightThroughAdam(states, config.lr, emerging=False, weights_learn=self.weights_learn)
        self.plain = torch.optim.Adam([{"params": self.others}], config.lr, fused=True)
        self.refresh()

    def _state(self, layer: ScoredWeight) -> WeightState:
        selection = Selection(layer.view, layer.view, keep_free=0, keep_owned=layer.keep)
        return WeightState(layer.parameter, layer.scores, layer.weights, self.owners(layer), selection=selection)

    @torch.no_grad()
    def _begin(self, partition: Partition, parameter: nn.Parameter) -> ScoredWeight:
        """Owned weights as they are, free ones as the latest task left them."""
        memory, name = self.method.memory, partition.name
        if WEIGHTS in memory:
            weights = memory[WEIGHTS][name]
        else:  # of a network without tasks, or with tasks of another method
            drawn = parameter.detach() if self.number == 1 else partition.fresh_weights()
            weights = self.first_weights(drawn)
        weights = torch.where(partition.free(), weights, partition.w_bar)
        scores = memory[SCORES][name].clone() if SCORES in memory else first_scores(weights)
        keep = max(1, round(self.method.own.share * weights.numel())) if weights.numel() else 0
        return ScoredWeight(partition, parameter, weights, scores, keep)

    # What a method overrides.

    def first_weights(self, drawn: Tensor) -> Tensor:
        """The values of free weights before the first task, from randomly drawn ones."""
        return drawn

    def owners(self, layer: ScoredWeight) -> Tensor:
        """The owner bytes of a layer, for the step alone."""
        return self._owned[: layer.weights.numel()].view(layer.weights.shape)

    # What the loop calls.

    def begin_phase(self, phase: str, fit: Fit) -> None:
        """There is one phase, and all is ready."""

    def before_step(self, phase: str, step: int, fit: Fit) -> None:
        """Nothing."""

    def step(self, lr_factor: float) -> None:
        """One step of Adam for the scores with the next selection, and one for everything else."""
        self.lr = self.config.lr * lr_factor
        for adam in (self.adam, self.plain):
            adam.param_groups[0]["lr"] = self.lr
            adam.step()
            adam.zero_grad()

    @torch.no_grad()
    def refresh(self) -> None:
        """Rewrite the effective weights."""
        for layer, kept in zip(self.layers, self.kept(), strict=True):
            layer.parameter.copy_(torch.where(kept, layer.weights, 0))

    def kept(self) -> list[Tensor]:
        """True at the weights of each layer that the task runs with: exactly the best ``keep``."""
        layers = self.layers
        scores, counts = [layer.scores for layer in layers], [layer.keep for layer in layers]
        _, bits = project(scores, counts, [layer.view for layer in layers], score="signed", output="mask")
        return [unpack_bits(flags, layer.scores.shape) for flags, layer in zip(bits, layers, strict=True)]

    def close(self) -> None:
        """The parameters are the backbone's own already."""

    @torch.no_grad()
    def commit(self, task: Task, fit: Fit) -> None:
        """Own the free weights of the mask, and remember the scores and the other weights."""
        tensors = [tensor for layer in self.layers for tensor in (layer.weights, layer.scores)]
        self.check_weights(tensors, fit, self.phases[-1].name, self.phases[-1].epochs)
        spent = []
        for layer, kept in zip(self.layers, self.kept(), strict=True):
            used = kept | ~layer.partition.free()
            spent.append(int(used.count_nonzero()) / max(1, used.numel()))
            layer.partition.set_kept(kept)
        self.draft.commit(task, [layer.weights for layer in self.layers], spent, fit.signature)
        found = {WEIGHTS: lambda layer: layer.weights, SCORES: lambda layer: layer.scores}
        self.method.memory = {
            name: {layer.partition.name: found[name](layer) for layer in self.layers} for name in self.method.remembers
        }

    def state_dict(self) -> dict[str, Any]:
        """Weights, scores, head, common tensors and optimisers."""
        return {
            **self.common_state(),
            WEIGHTS: [layer.weights for layer in self.layers],
            SCORES: [layer.scores for layer in self.layers],
            "adam": self.adam.state_dict(),
            "plain": self.plain.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], phase: str | None) -> None:
        """Restore a state of this task."""
        self.load_common_state(state)
        for layer, weights, scores in zip(self.layers, state[WEIGHTS], state[SCORES], strict=True):
            name = layer.partition.name
            layer.weights.copy_(fitting(f"weights of {name}", weights, layer.weights))
            layer.scores.copy_(fitting(f"scores of {name}", scores, layer.scores))
        for adam, name in ((self.adam, "adam"), (self.plain, "plain")):
            load_moments(adam, state[name]["state"])
        self.refresh()


def fan_in(weights: Tensor) -> int:
    """How many inputs a unit of the layer has."""
    return max(1, prod(weights.shape[1:]))


def first_scores(weights: Tensor) -> Tensor:
    """The magnitudes of Kaiming-uniform numbers with a = sqrt(5), as in the code of both papers: uniform on
    (0, 1 / sqrt(fan_in)).
    """
    return torch.empty_like(weights).uniform_(0, 1 / sqrt(fan_in(weights)))
