"""The options that benchmarks have of their own. A command's help lists them, so this file imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lps.options import option

SMALLEST_SIDE = 16  # of the images of cifar-net: one pixel is left of them after its two pairs of convolutions
LARGEST_SIDE = 512


@dataclass(frozen=True)
class NoOptions:
    """The options of a benchmark that has none."""


@dataclass(frozen=True)
class SplitOptions:
    """The options of benchmarks whose classes are split into one of several numbers of tasks."""

    split: int = option(
        10, "N", "tasks that the classes are split into: 10 or 20 for CIFAR-100, 10 or 40 for TinyImageNet"
    )


@dataclass(frozen=True)
class RadioOptions:
    """The options of radio benchmarks."""

    window: Annotated[int, Meta(ge=1, lt=2**31)] | None = option(
        None,
        "N",
        "samples to cut from the middle of each window; by default all",
        expected="1 to 2147483647 samples",
    )


@dataclass(frozen=True)
class FolderOptions:
    """The options of the user's own images."""

    image_size: Annotated[int, Meta(ge=SMALLEST_SIDE, le=LARGEST_SIDE)] = option(
        32,
        "N",
        "height and width that images are brought to",
        expected=f"{SMALLEST_SIDE} to {LARGEST_SIDE} pixels",
    )


# Settings that some preset names: their defaults hold where the preset of the benchmark does not. A test compares.
IN_PRESETS = frozenset(
    {"alpha", "batch_size", "beta", "channels_last", "dropout", "epochs", "lr", "norms", "pattern", "pull", "schedule"}
    | {"solver", "threads", "window"}
)

# Of the benchmarks that have some.
OPTIONS: dict[str, type] = {
    "split-rf": RadioOptions,
    "synthetic-rf": RadioOptions,
    "split-cifar100": SplitOptions,
    "split-tinyimagenet": SplitOptions,
    "folder": FolderOptions,
}
