"""One prunable weight, split among the tasks; and how prunable weights are found."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from lps.errors import ConfigError
from lps.skeleton import Skeleton
from lps_kernels import View, pack_bits, task_weight
from lps_kernels.owner import KEPT_BIT, TASK_BITS, free_coordinates, is_kept

# Module types, each with the names of its parameters that are GEMM matrices.
PRUNABLE: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight",),
    nn.Conv1d: ("weight",),
    nn.Conv2d: ("weight",),
    nn.Conv3d: ("weight",),
    nn.MultiheadAttention: ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}

# Elementwise work on a weight is done in parts of this many coordinates, so that its temporaries stay small.
PART = 1 << 20

MOST_EXCLUDED = 1000  # patterns, and characters of one: each is compared with the name of every layer


def parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same part of each of these contiguous tensors of one shape, part after part, as flat views."""
    return zip(*(torch.split(tensor.view(-1), PART) for tensor in tensors), strict=True)


def is_sound(tensor: Tensor, *, infinite: bool = False) -> bool:
    """Whether a contiguous tensor holds no NaN and, unless ``infinite``, no infinity."""
    if not tensor.is_floating_point():
        return True
    return not any((part.isnan() if infinite else ~part.isfinite()).any() for (part,) in parts(tensor))


def rounded(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The nearest values that this dtype has, in the tensor's own; refuses finite values too large for it."""
    if dtype is None or not tensor.is_floating_point():
        return tensor
    near = tensor.to(dtype).to(tensor.dtype)
    if not is_sound(near.contiguous()) and is_sound(tensor.contiguous()):
        largest = torch.finfo(dtype).max
        raise ConfigError(
            f"store: expected weights of at most {largest:g}, got {float(tensor.abs().max()):g}; use bf16"
        )
    return near


class PartitionState(NamedTuple):
    """The state of a partition before a task: references, not copies."""

    w_bar: Tensor
    owner: Tensor
    tasks: int
    spent: float


class Partition(nn.Module):
    """Which task owns each coordinate of one weight, the committed values and the mask of each task.

    ``w_bar`` holds the weights of all committed tasks and 0 where free; the mask of task t, one bit per coordinate,
    says which weights of tasks 1 to t - 1 it reuses.
    """

    owner: Tensor
    w_bar: Tensor

    def __init__(self, name: str, places: Sequence[tuple[str, str]], weight: Tensor) -> None:
        super().__init__()
        self.name = name
        self.places = tuple(places)  # (module, attribute) wherever the weight is used: more than one if it is tied
        self.spent = 0.0  # sum of the tasks' alpha, for cumulative rounding
        # Fresh weights are drawn with the standard deviation of the backbone's own initialisation.
        known = weight.numel() and not weight.is_meta and 0 not in weight.stride()  # not a skeleton's
        self.init_std = float(weight.detach().double().std(correction=0)) if known else 0.0
        self.tasks = 0
        self.register_buffer("owner", torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device))
        self.register_buffer("w_bar", torch.zeros_like(weight, memory_format=torch.contiguous_format))
        self.w_bar.requires_grad_(False)

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight."""
        return self.w_bar.shape

    def mask(self, task: int) -> Tensor:
        """Packed bits of the task's mask."""
        return self.get_buffer(f"mask{task}")

    def add_task(self, mask: Tensor) -> None:
        """Append a task with this packed mask; ``owner`` already says which weights it owns."""
        self.tasks += 1
        self.register_buffer(f"mask{self.tasks}", mask)

    def free(self) -> Tensor:
        """True where no task owns the weight."""
        return free_coordinates(self.owner)

    def compose(self, task: int, out: Tensor) -> None:
        """Write the weight that the task runs with, Eq. (4), into ``out``."""
        if out.is_contiguous():
            task_weight(self.w_bar, self.owner, self.mask(task), task, out)
        else:  # a user's channels-last weight
            out.copy_(task_weight(self.w_bar, self.owner, self.mask(task), task))

    def fresh_weights(self) -> Tensor:
        """New values for all coordinates, with the standard deviation of the weight's initialisation."""
        bound = 3**0.5 * self.init_std  # a uniform distribution on (-b, b) has the standard deviation b / sqrt(3)
        return torch.empty_like(self.w_bar).uniform_(-bound, bound)

    def set_kept(self, kept: Tensor) -> None:
        """Say which coordinates the task being learnt keeps: true in a tensor of the weight's shape."""
        self.owner.copy_((self.owner & TASK_BITS) | kept.to(torch.uint8) * KEPT_BIT)

    def commit(self, v: Tensor, rounding: torch.dtype | None = None) -> None:
        """Add a task: it owns the kept free coordinates, with their values, and its mask is the kept owned ones.

        With ``rounding`` the values are rounded to those that this dtype has.

        The old tensors are replaced, not changed: :meth:`go_back` needs them.
        """
        mask = pack_bits(is_kept(self.owner) & ~self.free())
        new_w_bar, new_owner = torch.empty_like(self.w_bar), torch.empty_like(self.owner)
        tensors = (v, self.w_bar, self.owner, new_w_bar, new_owner)
        for value, w_bar, owner, to_w_bar, to_owner in parts(*tensors):
            kept, free = is_kept(owner), free_coordinates(owner)
            to_w_bar.copy_(torch.where(free, rounded(torch.where(free & kept, value, 0), rounding), w_bar))
            to_owner.copy_(torch.where(free & kept, self.tasks + 1, owner & TASK_BITS))
        self.w_bar, self.owner = new_w_bar, new_owner
        self.add_task(mask)

    def take_all(self, weight: Tensor) -> None:
        """Add a task to a weight that all tasks share: they run with these values from here on.

        Task 1 owns all coordinates, and later ones reuse them. The old tensors are replaced, as by :meth:`commit`.
        """
        self.w_bar = weight.detach().clone(memory_format=torch.contiguous_format)
        self.owner = torch.ones_like(self.owner)
        self.add_task(pack_bits(torch.full(self.shape, self.tasks > 0, device=weight.device)))
        self.spent = 1.0

    def state(self) -> PartitionState:
        """What :meth:`go_back` needs; nothing is copied."""
        return PartitionState(self.w_bar, self.owner, self.tasks, self.spent)

    def go_back(self, state: PartitionState) -> None:
        """Undo a complete or interrupted commit, and clear the ``kept`` bits of the latest projection."""
        for task in range(state.tasks + 1, self.tasks + 2):  # an interrupted commit may not have counted its mask
            self._buffers.pop(f"mask{task}", None)
        self.w_bar, self.owner, self.tasks, self.spent = state.w_bar, state.owner, state.tasks, state.spent
        self.owner.bitwise_and_(TASK_BITS)

    def before_last(self) -> PartitionState:
        """The state without the last task, whose weights are free in it; for :meth:`go_back`."""
        own = self.owner & TASK_BITS == self.tasks
        w_bar, owner = self.w_bar.masked_fill(own, 0), self.owner.masked_fill(own, 0)
        # What each task spent is not known: shares of tasks to come are rounded from what the others own.
        others = int((~free_coordinates(owner)).count_nonzero()) / max(1, owner.numel())
        return PartitionState(w_bar, owner, self.tasks - 1, min(self.spent, others))

    def owned_by(self, task: int) -> int:
        """How many weights are the task's own."""
        return int((self.owner & TASK_BITS == task).sum())


def groups_with(members: Tensor, view: View) -> Tensor:
    """True for each group with at least one true coordinate."""
    return members.reshape(view).any(dim=2).any(dim=0)


def count_groups(members: Tensor, view: View) -> int:
    """How many groups have at least one true coordinate."""
    return int(groups_with(members, view).sum())


def check_dtype(name: str, weight: Tensor) -> None:
    """Refuse weights that the operators cannot train."""
    if weight.dtype not in (torch.float32, torch.float64):
        raise ConfigError(
            f"Lifelong: {name}: expected float32 or float64, got {weight.dtype}; for fewer bits use autocast"
        )


def parameter_of(backbone: nn.Module, name: str) -> nn.Parameter:
    """The parameter of this name; while another optimiser learns, it stands behind a parametrization."""
    module_name, _, attribute = name.rpartition(".")
    module = backbone.get_submodule(module_name)
    if parametrize.is_parametrized(module, attribute):
        return module.parametrizations.get_submodule(attribute).get_parameter("original")  # type: ignore[union-attr]
    return backbone.get_parameter(name)


def prunable_names(module: nn.Module) -> list[str]:
    """The names of a module's own parameters that can be split, if it has them."""
    return [name for kind, names in PRUNABLE.items() if isinstance(module, kind) for name in names]


def find_partitions(backbone: nn.Module, exclude: Sequence[str], frozen: Container[str] = ()) -> Iterator[Partition]:
    """A partition for every prunable weight that is not frozen and that no shell pattern of ``exclude`` matches."""
    if isinstance(backbone, Skeleton):
        for name in backbone.layers:
            weight = backbone.get_parameter(name)
            check_dtype(name, weight)
            yield Partition(name, (), weight)
        return
    names = {id(parameter): name for name, parameter in backbone.named_parameters()}
    places: dict[str, list[tuple[str, str]]] = {name: [] for name in names.values()}
    prunable = set()
    for module_name, module in backbone.named_modules():
        attributes = prunable_names(module)
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                places[names[id(parameter)]].append((module_name, attribute))
                if attribute in attributes:
                    prunable.add(names[id(parameter)])
    places = {name: uses for name, uses in places.items() if name in prunable}
    if len(exclude) > MOST_EXCLUDED or any(len(pattern) > MOST_EXCLUDED for pattern in exclude):
        raise ConfigError(f"Lifelong: exclude: expected at most {MOST_EXCLUDED} patterns of as many characters")
    for pattern in exclude:
        if not any(fnmatchcase(name, pattern) for name in places):
            raise ConfigError(
                f"Lifelong: exclude: expected patterns of prunable weights ({', '.join(places)}), got {pattern}"
            )
    for name, uses in places.items():
        if name in frozen or any(fnmatchcase(name, pattern) for pattern in exclude):
            continue
        weight = backbone.get_parameter(name)
        if is_lazy(weight):
            raise ConfigError(f"Lifelong: {name}: expected initialised weights, got a lazy layer; run one batch first")
        check_dtype(name, weight)
        yield Partition(name, uses, weight)
