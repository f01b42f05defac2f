"""Deep Generative Replay (Shin et al., NeurIPS 2017): a generator dreams up inputs of earlier tasks.

The solver, which is the network, and a generator of inputs are trained together. From task 2 on, every batch comes with
as many inputs x' from the generator that the task before left, each with the answers y' of the network that it left;
the loss is r L(x, y) + (1 - r) L(x', y') (section 3). With a head per task, y' is the class by each earlier task's
own head, and L(x', y') the mean over these heads. The generator learns from both kinds of inputs in the same ratio.

The paper's generator is a WGAN-GP. Here it is a small variational autoencoder, as in later comparisons (van de Ven and
Tolias, 2018): fully connected, with a Gaussian around its outputs whose variance is that of its errors (Rybkin et al.,
ICML 2021), so that inputs may have any scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from math import prod
from typing import Annotated, Any, TypeVar, cast

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lps.errors import ConfigError, FileFormatError
from lps.methods.dense import Dense, DenseLearner, fitting_all
from lps.methods.options import READS
from lps.options import shown
from lps.sources import batches
from lps_kernels.calls import Inputs

LEAST_VARIANCE = 1e-6  # of outputs, so that inputs which are all the same have a loss
GENERATOR, SHAPE = "generator", "shape"  # of the memory: the generator's parameters, the shape of an input

Module = TypeVar("Module", bound=nn.Module)
Width = Annotated[int, Meta(ge=1, le=1 << 20)]


class Generator(nn.Module):
    """A variational autoencoder of inputs of one shape."""

    def __init__(self, shape: Sequence[int], hidden: int, latent: int) -> None:
        super().__init__()
        self.shape, self.latent = tuple(shape), latent
        size = prod(shape)
        self.encoder = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def loss(self, inputs: Tensor) -> Tensor:
        """The mean over inputs of the bound on their log-likelihood, negated, up to a constant.

        The variance of the outputs is the one with the largest bound: that of the batch's errors.
        """
        flat = inputs.flatten(1)
        mean, log_variance = self.encoder(flat).float().chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        variance = (self.decoder(latent.to(flat.dtype)).float() - flat.float()).square().mean()
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        bound: Tensor = (flat.shape[1] * (variance + LEAST_VARIANCE).log() + divergence) / 2
        return bound

    def sample(self, count: int) -> Tensor:
        """New inputs."""
        like = cast("Tensor", self.decoder[0].weight)
        latent = torch.randn(count, self.latent, dtype=like.dtype, device=like.device)
        flat: Tensor = self.decoder(latent)
        return flat.view(count, *self.shape)


class DGRLearner(DenseLearner):
    """Trains the network and the generator, both on the task and on replay."""

    def begin_task(self) -> None:
        """Keep the network and the generator that the task before left, to replay from."""
        shape = self._input_shape()
        like, earlier = self.net.like, self.net.heads[: self.number - 1]
        self.generator = Generator(shape, self.own.hidden, self.own.latent).to(like.device, like.dtype)
        self.importance = 1.0
        if self.number == 1:
            return
        if shape != self.memory[SHAPE]:
            raise ConfigError(
                f"dgr: task {self.task.name}: expected inputs of the shape {self.memory[SHAPE]}, as in earlier tasks, "
                f"got {shape}"
            )
        self.importance = self.own.importance or 1 / self.number
        self.generator.load_state_dict(self.memory[GENERATOR])
        self.earlier = earlier.requires_grad_(True)
        self.dreamer = _frozen_copy(self.generator)
        self.teacher, self.teachers = _frozen_copy(self.net.backbone), _frozen_copy(earlier)

    def _input_shape(self) -> list[int]:
        inputs, _ = next(iter(batches(self.task.train, 1, loader=self.task.loader)))
        assert isinstance(inputs, Tensor)  # by takes_one_tensor
        if not inputs.is_floating_point():
            raise ConfigError(f"dgr: task {self.task.name}: expected inputs of floats, got {inputs.dtype}")
        return list(inputs.shape[1:])

    def trained_beside(self) -> list[nn.Parameter]:
        """All heads, and the generator."""
        return [*self.net.heads.parameters(), *self.generator.parameters()]

    def objective(self, loss: Tensor, inputs: Inputs) -> Tensor:
        """The losses of network and generator, which share no parameters, on the task and on replay."""
        assert isinstance(inputs, Tensor)
        both = loss + self.generator.loss(inputs)
        if self.number == 1:
            return both
        dreamt, answers = self.replay(len(inputs))
        features = self.net.backbone(dreamt)
        losses = [cross_entropy(head(features), labels) for head, labels in zip(self.earlier, answers, strict=True)]
        replayed = torch.stack(losses).mean() + self.generator.loss(dreamt)
        return self.importance * both + (1 - self.importance) * replayed

    @torch.no_grad()
    def replay(self, count: int) -> tuple[Tensor, list[Tensor]]:
        """Inputs from the earlier generator, with a class of each earlier task for every one of them."""
        dreamt = self.dreamer.sample(count).to(self.net.like.dtype)
        features = self.teacher(dreamt)
        return dreamt, [head(features).argmax(1) for head in self.teachers]

    def finish(self) -> None:
        """Remember the generator."""
        values = {name: tensor.detach().clone() for name, tensor in self.generator.state_dict().items()}
        self.memory.update({GENERATOR: values, SHAPE: list(self.generator.shape)})

    def _state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from super()._state_tensors()
        yield from self.generator.state_dict(prefix="generator.", keep_vars=True).items()


def _frozen_copy(module: Module) -> Module:
    return deepcopy(module).eval().requires_grad_(False)


class DGR(Dense):
    """Replays what a generator makes."""

    name = "dgr"
    reads = READS[name]
    task_learner = DGRLearner
    takes_one_tensor = True

    def load_memory(self, memory: dict[str, Any]) -> None:
        """A generator with the sizes of the options."""
        try:
            shape = msgspec.convert(memory.get(SHAPE), list[Annotated[int, Meta(ge=1)]])
        except msgspec.ValidationError:
            raise FileFormatError(
                f"{SHAPE}: expected the sizes of an input, got {shown(memory.get(SHAPE, 'none'))}"
            ) from None
        values, like = memory.get(GENERATOR), self.net.like
        # Compared before memory is taken for a generator of this size.
        first = values.get("encoder.0.weight") if isinstance(values, dict) else None
        if not isinstance(first, Tensor) or list(first.shape) != [self.own.hidden, prod(shape)]:
            raise FileFormatError(f"{GENERATOR}: expected one of inputs of the shape {shape}")
        generator = Generator(shape, self.own.hidden, self.own.latent).to(like.device, like.dtype)
        self.memory = {GENERATOR: fitting_all(GENERATOR, values, generator.state_dict()), SHAPE: shape}
