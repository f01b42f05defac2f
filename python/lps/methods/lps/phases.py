"""How one task is learnt: warm-up, ADMM, final."""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import isfinite, sqrt
from time import perf_counter
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lps.errors import ConfigError, DataError, DivergedError
from lps.methods.lps.config import LPSConfig, TaskConfig
from lps.methods.lps.plan import LayerPlan, plan_task
from lps.methods.lps.schedule import learning_rate, penalties
from lps.methods.lps.steppers import ComposedStepper, FusedStepper, OptimizerFactory, Stepper, Weight
from lps.methods.lps.undo import CommonTensors, undo_on_failure
from lps.partition import Partition, is_kept, parts
from lps.runs.events import PHASES, Listener, Row, TaskReport
from lps.task import Arrays, Learnt, Task, batches, steps_per_epoch
from lps_kernels import admm_update_
from lps_kernels.ops.compose import free_coordinates

if TYPE_CHECKING:
    from lps.lifelong import Lifelong

# The loss is looked at this often, so that a device need not wait for every step.
LOSS_CHECK_STEPS = 50


def learn_task(
    net: Lifelong, task: Task, config: LPSConfig, optimizer: OptimizerFactory | None, listener: Listener
) -> TaskReport:
    """Learn one more task, or leave the network as it was."""
    if net._learning:
        raise ConfigError(f"Lifelong: learn: task {net._active} is being learnt; wait until it is done")
    number = len(net.learnt) + 1
    own = config.of_task(number)
    plans = plan_task(net, own)
    _check_examples(task)
    with _all_generators_kept(), net.keep_modes(), undo_on_failure(net) as common:
        # A seed of its own for each task: a run that is resumed goes on as if it had not stopped.
        torch.manual_seed(int(np.random.SeedSequence([own.seed, number]).generate_state(1)[0]))
        report = Learner(net, task, own, plans, common, optimizer, listener).run()
    net.activate(number)
    return report


def _all_generators_kept() -> AbstractContextManager[None]:
    """Seeding touches the generators of all devices."""
    devices = range(torch.cuda.device_count())
    kept: AbstractContextManager[None] = torch.random.fork_rng(devices)
    return kept


def _check_examples(task: Task) -> None:
    """Refuse empty data sets and labels without an output, where they can be seen before training."""
    for name, examples in (("train", task.train), ("validation", task.validation), ("test", task.test)):
        if examples is None:
            continue
        if not hasattr(examples, "__len__") or len(examples) == 0:
            raise DataError(f"task {task.name}: {name}: expected a data set that has a length above 0, got {examples}")
        if isinstance(examples, Arrays):
            _check_labels(task, name, examples.labels)


def _check_labels(task: Task, name: str, labels: Tensor) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= task.classes:
        raise DataError(
            f"task {task.name}: {name} labels: expected 0 to {task.classes - 1} (a head of {task.classes} classes), "
            f"got {low if low < 0 else high}"
        )


class Learner:
    """The state of learning one task."""

    def __init__(
        self,
        net: Lifelong,
        task: Task,
        config: TaskConfig,
        plans: list[LayerPlan],
        common: CommonTensors,
        optimizer: OptimizerFactory | None,
        listener: Listener,
    ) -> None:
        self.net, self.task, self.config, self.plans, self.listener = net, task, config, plans, listener
        self.common = common
        self.number = len(net.learnt) + 1
        self.report = TaskReport(self.number, task.name)
        self.device = next(net.parameters()).device
        self.shuffle = torch.Generator().manual_seed(torch.initial_seed())
        self.steps_per_epoch = steps_per_epoch(len(task.train), config.batch_size)  # type: ignore[arg-type]
        self.start = perf_counter()
        self.total_steps = 0
        self.rho = self.lr = 0.0
        self.input_shape: list[int] = []
        net._active = self.number
        others = self._make_trainable()
        self.weights = [self._begin(*layer, plan) for layer, plan in zip(net.prunable(), plans, strict=True)]
        self.stepper: Stepper = (
            FusedStepper(self.weights, others, config.lr)
            if optimizer is None
            else ComposedStepper(net.backbone, self.weights, others, optimizer)
        )

    def _make_trainable(self) -> list[nn.Parameter]:
        """Add the head; returns the parameters that are trained beside the prunable weights."""
        head = nn.Linear(self.net.features, self.task.classes).to(self.device, next(self.net.prunable())[1].dtype)
        self.net.heads.append(head)
        for parameter in self.net.parameters():
            parameter.grad = None  # of a user's own backward pass
        for partition, weight in self.net.prunable():
            weight.requires_grad_(True)
            for tensor in (weight, partition.owner, partition.w_bar):
                tensor.data = tensor.data.contiguous()  # a user's channels-last layers; the operators write in place
        common = [] if self.net.learnt else [p for p in self.net.common_parameters() if p.requires_grad]
        return [*head.parameters(), *common]

    @torch.no_grad()
    def _begin(self, partition: Partition, weight: nn.Parameter, plan: LayerPlan) -> Weight:
        """The backbone's own weights for task 1, fresh ones later; masks of 1, or of 0 where nothing may be reused."""
        if self.number == 1:
            return Weight(partition, weight, weight.detach().clone())
        masks = 0.0 if plan.beta == 0 else 1.0
        return Weight(partition, weight, torch.where(partition.free(), partition.fresh_weights(), masks))

    def run(self) -> TaskReport:
        """All three phases, then the commit."""
        try:
            self.listener.start(self.number, self.task.name, sum(self.config.epochs) * self.steps_per_epoch)
            for phase, epochs in zip(PHASES, self.config.epochs, strict=True):
                begin = perf_counter()
                self.begin_phase(phase)
                self._train(phase, epochs)
                self.report.seconds[phase] = perf_counter() - begin
            if self.net.learnt:
                # Normalisation layers are kept from updating their statistics; a module of the user's might do so.
                self.common.restore()
            self.report.accuracy = self._validate()
        finally:
            self.stepper.close()
        self._commit()
        return self.report

    def begin_phase(self, phase: str) -> None:
        """Prepare what the phase needs and say which coordinates it moves."""
        self.rho = 0.0
        if phase == "warm-up":
            moves = ["free"] * len(self.plans)
        elif phase == "admm":
            for weight in self.weights:
                weight.centre = torch.empty_like(weight.v)
            # Masks that must be all 0 or all 1 are fixed from the start.
            moves = ["all" if self.number > 1 and 0 < plan.beta < 1 else "free" for plan in self.plans]
        else:
            self._prune()
            moves = ["kept"] * len(self.plans)
        self.stepper.start_phase(moves)

    def _train(self, phase: str, epochs: int) -> None:
        """The epochs of a phase; in ADMM with projections in between."""
        config, steps = self.config, epochs * self.steps_per_epoch
        projections = penalties(config.rho, config.rho_levels, steps, self.steps_per_epoch) if phase == "admm" else {}
        step = 0
        for epoch in range(1, epochs + 1):
            self.net.train()
            epoch_begin, losses, seen = perf_counter(), torch.zeros((), device=self.device), 0
            for inputs, labels in batches(self.task.train, config.batch_size, self.shuffle):
                if step in projections:
                    self.rho, fresh = projections[step]
                    self.project(epoch, fresh=fresh)
                if not isinstance(self.task.train, Arrays):
                    _check_labels(self.task, "train", labels)
                loss = self.step(inputs, labels, learning_rate(config.schedule, step / steps))
                losses += loss * len(labels)
                seen += len(labels)
                step += 1
                self.total_steps += 1
                if step % LOSS_CHECK_STEPS == 0:
                    self._check_loss(losses, phase, epoch)
                self.listener.step(phase, len(labels))
            self._check_loss(losses, phase, epoch)
            rate = seen / (perf_counter() - epoch_begin)
            values = {"loss": losses.item() / seen, "accuracy": self._validate(), "samples_per_second": rate}
            self._log(phase, "epoch", epoch, **values)

    def step(self, inputs: Tensor, labels: Tensor, lr_factor: float) -> Tensor:
        """One step on one batch; returns its loss."""
        self.input_shape = list(inputs.shape[1:])
        loss = cross_entropy(self._logits(inputs), labels.to(self.device, torch.long))
        loss.backward()  # type: ignore[no-untyped-call]
        self.lr = self.stepper.step(lr_factor, self.rho)
        return loss.detach()

    def _logits(self, inputs: Tensor) -> Tensor:
        torch.clear_autocast_cache()  # else an autocast context around learn() goes on with the first step's weights
        features = self.net.backbone(inputs.to(self.device))
        if features.shape != (len(inputs), self.net.features):
            raise ConfigError(
                f"Lifelong: features: expected a backbone that gives [{len(inputs)}, {self.net.features}], "
                f"got {list(features.shape)}"
            )
        logits: Tensor = self.net._classify(features)
        return logits

    def _check_loss(self, losses: Tensor, phase: str, epoch: int) -> None:
        if not isfinite(losses.item()):
            raise DivergedError(self._diverged(f"the loss became {losses.item()}", phase, epoch))

    def _diverged(self, what: str, phase: str, epoch: int) -> str:
        return (
            f"task {self.number}: {what} in phase {phase}, epoch {epoch}; the task is dropped and earlier ones are as "
            f"they were; try a smaller learning rate (now {self.lr:g}) or rho"
        )

    def _validate(self) -> float:
        torch.clear_autocast_cache()
        validation = self.task.validation
        return float("nan") if validation is None else self.net.accuracy(self.number, validation)

    @torch.no_grad()
    def project(self, epoch: int, *, fresh: bool) -> None:
        """One ADMM update of targets and duals, with its residuals."""
        old = [weight.v if fresh else _targets(weight) for weight in self.weights]  # a fresh level has no old target
        self._update(fresh)
        primal = dual = 0.0
        for weight, before in zip(self.weights, old, strict=True):
            for v, centre, owner, z in parts(weight.v, cast("Tensor", weight.centre), weight.partition.owner, before):
                target = _target(centre, owner)
                primal += float((v - target).square().sum())
                dual += float((target - z).square().sum())
        primal, dual = sqrt(primal), float("nan") if fresh else self.rho * sqrt(dual)
        self.report.residuals.append((self.rho, primal, dual))
        self._log("admm", "projection", epoch, primal=primal, dual=dual, density=self._density())

    def _update(self, fresh: bool) -> None:
        admm_update_(
            [weight.v for weight in self.weights],
            [cast("Tensor", weight.centre) for weight in self.weights],
            [weight.partition.owner for weight in self.weights],
            [plan.keep_free for plan in self.plans],
            [plan.keep_owned for plan in self.plans],
            [plan.view for plan in self.plans],
            [plan.sharing_view for plan in self.plans],
            fresh=fresh,
        )

    @torch.no_grad()
    def _prune(self) -> None:
        """The final projection: exactly the planned weights survive and the masks become binary."""
        self.report.accuracy_before_projection = self._validate()
        self._update(fresh=True)
        for weight in self.weights:
            weight.centre = None
            for v, owner in parts(weight.v, weight.partition.owner):
                kept = is_kept(owner)
                v.copy_(torch.where(free_coordinates(owner), torch.where(kept, v, 0), kept.to(v.dtype)))
        self.stepper.refresh()
        self.report.accuracy_after_projection = self._validate()
        self._log("final", "pruned", 0, accuracy=self.report.accuracy_after_projection, density=self._density())

    def _commit(self) -> None:
        """Make what was learnt permanent; the last line is the one that counts."""
        self._check_weights()
        with torch.no_grad():
            for weight, plan in zip(self.weights, self.plans, strict=True):
                weight.partition.commit(weight.v)
                weight.partition.spent = plan.spent
        for parameter in self.net.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        self.net._active = 0
        if not self.net.learnt:  # for those who use the file without the data, as lps.export and lps.infer do
            self.net.metadata.input_shape = self.input_shape
        self.net.learnt.append(Learnt(self.task.name, self.task.classes, self.net.digest(self.number)))

    def _check_weights(self) -> None:
        """The loss tells of a step only after it was taken: look at what the last one left."""
        tensors = [*(weight.v for weight in self.weights), *self.net.heads[-1].parameters()]
        tensors += [tensor for _, tensor in self.net.common_tensors() if tensor.is_floating_point()]
        if not all(part.isfinite().all() for tensor in tensors for (part,) in parts(tensor.detach().contiguous())):
            raise DivergedError(self._diverged("a weight became infinite or NaN", "final", self.config.epochs[2]))

    def _density(self) -> float:
        kept = sum(int(is_kept(owner).sum()) for weight in self.weights for (owner,) in parts(weight.partition.owner))
        return kept / sum(weight.v.numel() for weight in self.weights)

    def _log(self, phase: str, event: str, epoch: int, **values: float) -> None:
        seconds = perf_counter() - self.start
        row = Row(self.number, phase, event, epoch, self.total_steps, seconds, self.lr, self.rho, **values)
        self.listener.row(row)


def _targets(weight: Weight) -> Tensor:
    """The latest projection of the whole weight."""
    targets = torch.empty_like(weight.v)
    for target, centre, owner in parts(targets, cast("Tensor", weight.centre), weight.partition.owner):
        target.copy_(_target(centre, owner))
    return targets


def _target(centre: Tensor, owner: Tensor) -> Tensor:
    """The projection that ``centre`` and ``kept`` stand for: Z where free, Y where owned."""
    kept = is_kept(owner)
    return torch.where(free_coordinates(owner), torch.where(kept, centre, 0), kept.to(centre.dtype))
