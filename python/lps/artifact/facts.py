"""What a network holds, without running it: its tasks, how large they are, and the figures that its file knows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lps.artifact.layout import belongs_to
from lps.artifact.write import tensors_of
from lps.metadata import Source
from lps.models import Architecture
from lps.observed import dtype_name
from lps.signature import Signature, text_of

if TYPE_CHECKING:
    from lps.lifelong import Lifelong


@dataclass(frozen=True)
class TaskFacts:
    """One task. ``share`` is that of all prunable weights which it owns, ``density`` that which it runs with."""

    number: int
    name: str
    classes: int
    class_names: list[str]
    share: float
    density: float
    accuracy: float | None  # on its test examples; None if it is not known
    validation: float | None  # on its validation examples when it was learnt
    inputs: str | None  # their names, dtypes and shapes without the batch, as in "input_ids int64 [any]"
    digest: str
    bytes: int  # of its tensors in the file: own weights, mask, private tensors, head


@dataclass(frozen=True)
class NetworkFacts:
    """What all tasks have in common, and each of them."""

    architecture: str | None
    arguments: dict[str, object] | None
    features: int
    pattern: str
    sharing: str
    norms: str
    layers: int
    weights: int  # prunable ones
    free: float  # the share of them that no task owns
    input_shape: list[int] | None
    stream: Source | None
    common_bytes: int  # of tensors that belong to all tasks
    tasks: list[TaskFacts]


def facts_of(net: Lifelong) -> NetworkFacts:
    """All that is known of a network and its learnt tasks."""
    sizes: Counter[str] = Counter()
    for name, (tensor, _) in tensors_of(net):
        sizes[belongs_to(name)] += tensor.nbytes
    dtype = dtype_name(net.like)
    tasks = [
        TaskFacts(
            number=task.number,
            name=task.name,
            classes=task.classes,
            class_names=list(task.class_names),
            share=task.share,
            density=task.density,
            accuracy=task.accuracy,
            validation=task.validation,
            inputs=_text_of(net.metadata.signature(task.number, dtype)),
            digest=net.learnt[task.number - 1].digest,
            bytes=sizes.pop(f"task {task.number}", 0),
        )
        for task in net.tasks
    ]
    known = getattr(net.backbone, "architecture", None)  # a user's own attribute of that name says nothing to us
    made = known if isinstance(known, Architecture) else None
    layers = [partition for partition, _ in net.prunable()]
    return NetworkFacts(
        architecture=None if made is None else made.name,
        arguments=None if made is None else made.arguments,
        features=net.features,
        pattern=net.pattern,
        sharing=net.sharing,
        norms=net.norms,
        layers=len(layers),
        weights=sum(partition.owner.numel() for partition in layers),
        free=1 - sum(task.share for task in tasks) if layers else 0.0,
        input_shape=net.metadata.input_shape,
        stream=net.metadata.stream,
        common_bytes=sizes.total(),
        tasks=tasks,
    )


def _text_of(signature: Signature | None) -> str | None:
    return None if signature is None else text_of(signature)
