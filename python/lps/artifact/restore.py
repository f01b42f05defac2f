"""What reading a file and loading a state_dict have in common: making tasks that the network does not know yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lps.artifact.layout import METHOD, Form, Manifest, Part, TaskEntry, belongs_to, compare, form, refuse
from lps.observed import dtype_name
from lps.task import Head, Learnt
from lps_kernels.owner import MAX_TASKS

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


def only_part(manifest: Manifest) -> Part:
    """The one network of the method lps, which all tasks belong to."""
    if manifest.method != METHOD:
        refuse(f"manifest.method: expected {METHOD}, got {manifest.method!r:.60}; update the package")
    if len(manifest.tasks) > MAX_TASKS:
        refuse(f"manifest.tasks: expected at most {MAX_TASKS}, got {len(manifest.tasks)}")
    if len(manifest.parts) != 1:
        refuse(f"manifest.parts: expected one for method {METHOD}, got {len(manifest.parts)}")
    (part,) = manifest.parts
    for index, task in enumerate(manifest.tasks):
        if task.part != part.name:
            refuse(f"manifest.tasks[{index}].part: expected {part.name}, got {task.part!r:.60}")
        if len(task.class_names) not in (0, task.classes):
            got = len(task.class_names)
            refuse(f"manifest.tasks[{index}].class_names: expected none or {task.classes}, got {got}")
    return part


def check_names(part: Part, tasks: Sequence[TaskEntry]) -> None:
    """Refuse two tensors of one name."""
    lists: list[tuple[str, Sequence[Form]]] = [("layers", part.layers), ("common", part.common)]
    lists += [(f"tasks[{index}].head", task.head.tensors) for index, task in enumerate(tasks)]
    for where, entries in lists:
        names = [entry.name for entry in entries]
        if len(set(names)) < len(names):
            refuse(f"manifest.{where}: expected names that differ, got one twice")


def check_fit(net: Lifelong, part: Part) -> None:
    """Refuse a network with other layers, common or private tensors than the part, or in another order."""
    layers = [(partition.name, weight) for partition, weight in net.prunable()]
    common = list(net.common_tensors())
    for what, entries, tensors in (("layer", part.layers, layers), ("common tensor", part.common, common)):
        compare(what, {entry.name: str(entry) for entry in entries}, {name: form(tensor) for name, tensor in tensors})
        _check_order(what, [entry.name for entry in entries], [name for name, _ in tensors])
    _check_order("private tensor", part.private, [name for name, _ in common if name in net.private_names])


def _check_order(what: str, names: Sequence[str], got: Sequence[str]) -> None:
    if names != got:
        wanted, found = (", ".join(some) or "none" for some in (names, got))
        refuse(f"{what}s: expected {wanted}, in this order, got {found}")


def make_head(
    number: int, task: TaskEntry, features: int, like: Tensor, factory: Head | None, advice: str
) -> nn.Module:
    """A head of the right form, with any values, on the device and of the dtype of the weights."""
    where = f"task {number} ({task.name}): head: "
    forms = {tensor.name: str(tensor) for tensor in task.head.tensors}
    if task.head.kind == "linear":
        dtype, bias = dtype_name(like), "bias" in forms
        linear = {"weight": f"{dtype} [{task.classes}, {features}]"}
        if bias:
            linear["bias"] = f"{dtype} [{task.classes}]"
        compare("tensor", linear, forms, where)
        # By way of the meta device, so that no values are drawn.
        return nn.Linear(features, task.classes, bias, device="meta", dtype=like.dtype).to_empty(device=like.device)
    if factory is None:
        refuse(f"{where}it is not a Linear layer, so that it cannot be made from the file alone; {advice}")
    # First without memory, which the file's number of classes could be too much for; if the factory can do that.
    with suppress(RuntimeError), torch.device("meta"):
        trial = factory(features, task.classes)
        if isinstance(trial, nn.Module):
            _check_head(where, trial.to(dtype=like.dtype), forms)
    head: nn.Module = factory(features, task.classes)
    if not isinstance(head, nn.Module):
        refuse(f"{where}expected the factory to make an nn.Module, got {type(head).__name__}")
    head.to(like.device, like.dtype)
    _check_head(where, head, forms)
    return head


def _check_head(where: str, head: nn.Module, forms: Mapping[str, str]) -> None:
    compare("tensor", forms, {name: form(tensor) for name, tensor in head.state_dict().items()}, where)


def add_learnt(net: Lifelong, tasks: Sequence[TaskEntry], damaged: Sequence[str] | None = None) -> None:
    """Make these tasks known to a network that has all their tensors; refuse tasks that are not as they were learnt.

    If damage is known (``damaged``, names of tensors), such tasks are marked instead, as long as one is left.
    """
    learnt = []
    for number, task in enumerate(tasks, 1):
        damage = ""
        if net.digest(number) != task.digest:
            if damaged is None:
                refuse(f"task {number} ({task.name}) does not have the digest that was taken when it was learnt")
            damage = _damage(number, damaged)
        learnt.append(Learnt(task.name, task.classes, task.digest, tuple(task.class_names), damage))
    if all(task.damage for task in learnt) and learnt:
        refuse(f"no task is left whole: {learnt[0].damage}; copy the file again from where it was saved")
    net.learnt.extend(learnt)


def _damage(number: int, damaged: Sequence[str]) -> str:
    """Why a task does not answer as it was learnt: its own tensors, or weights that it reuses."""
    own = [name for name in damaged if belongs_to(name) == f"task {number}"]
    names = own or damaged
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {names[0]}{more} damaged" if names else "other weights than those that were learnt"
