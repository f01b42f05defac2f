"""What each method reads: its own options, settings of training, how its network must be made.

A command's help lists it, so this file imports nothing heavy; the methods find their part here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from lps.methods.lps.config import WHOLE
from lps.options import option

# Settings of training that every method reads; of the others a method says itself which it reads.
EVERY_METHOD_USES = frozenset({"epochs", "batch_size", "lr", "schedule", "seed", "precision", "channels_last"})

# Settings that a method reads unless it says otherwise; given to one that does not, they are refused.
MOST_METHODS_USE = frozenset({"clip_norm", "patience"})

# What methods read whose tasks own weights of their own, which are rounded once and never change again.
OWNERS_USE = MOST_METHODS_USE | {"store"}

Width = Annotated[int, Meta(ge=1, le=1 << 20)]


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none."""


@dataclass(frozen=True)
class Reads:
    """What a method reads.

    ``options`` are its own, ``uses`` the settings beside those that every method reads, and ``norms`` is what its
    network must have been made with, if not anything.
    """

    options: type = NoOptions
    uses: frozenset[str] = MOST_METHODS_USE
    norms: str | None = None


@dataclass(frozen=True)
class ShareOption:
    """The share of each layer that a task runs with."""

    share: Annotated[float, Meta(gt=0, le=1)] = option(
        0.5, "SHARE", "share of each layer's weights that a task runs with", expected="a number above 0, up to 1"
    )


@dataclass(frozen=True)
class CLNPOptions:
    """How sparse a task is."""

    strength: Annotated[float, Meta(ge=0, le=1e6)] = option(
        1e-3, "STRENGTH", "of the L1 penalty on weights", expected="a number from 0 to 1e6"
    )
    tolerance: Annotated[float, Meta(ge=0, le=1)] = option(
        0.01, "SHARE", "how much accuracy may fall when units are pruned", expected="a number from 0 to 1"
    )


@dataclass(frozen=True)
class HATOptions:
    """How hard gates become, and what opening one costs."""

    smax: Annotated[float, Meta(ge=1, le=1e6)] = option(
        400.0, "SLOPE", "how hard gates are at the end of an epoch", expected="a number from 1 to 1e6"
    )
    c: Annotated[float, Meta(ge=0, le=1e6)] = option(
        0.75, "COST", "cost of opening units that no task uses yet", expected="a number from 0 to 1e6"
    )


@dataclass(frozen=True)
class EWCOptions:
    """Options of EWC."""

    strength: Annotated[float, Meta(ge=0, le=1e9)] = option(
        100.0, "LAMBDA", "how strongly weights are held, lambda of Eq. (3)", expected="a number from 0 to 1e9"
    )
    fisher_samples: Annotated[int, Meta(ge=1, le=10**7)] = option(
        200, "N", "training examples that the Fisher information is taken over", expected="1 to 10,000,000"
    )


@dataclass(frozen=True)
class SIOptions:
    """Options of SI."""

    strength: Annotated[float, Meta(ge=0, le=1e9)] = option(
        1.0, "C", "how strongly weights are held, c of Eq. (4)", expected="a number from 0 to 1e9"
    )
    damping: Annotated[float, Meta(gt=0, le=1e9)] = option(
        0.001,
        "XI",
        "keeps the importance of weights that hardly moved finite, xi of Eq. (5)",
        expected="above 0, to 1e9",
    )


@dataclass(frozen=True)
class LwFOptions:
    """Options of LwF."""

    strength: Annotated[float, Meta(ge=0, le=1e9)] = option(
        1.0, "LAMBDA", "weight of every earlier head's answers in the loss", expected="a number from 0 to 1e9"
    )
    temperature: Annotated[float, Meta(gt=0, le=1e3)] = option(
        2.0, "T", "softens the answers that are compared", expected="a number above 0, up to 1,000"
    )


@dataclass(frozen=True)
class GEMOptions:
    """Options of GEM."""

    memory_size: Annotated[int, Meta(ge=1, le=10**7)] = option(
        256, "N", "examples of every task that are remembered", expected="1 to 10,000,000"
    )
    margin: Annotated[float, Meta(ge=0, le=1e3)] = option(
        0.5, "GAMMA", "favours steps that help earlier tasks, gamma of the paper", expected="a number from 0 to 1,000"
    )


@dataclass(frozen=True)
class DGROptions:
    """The generator, and how much replay counts."""

    importance: Annotated[float, Meta(gt=0, le=1)] | None = option(
        None,
        "SHARE",
        "share of the task itself in the loss, beside replay; by default 1/t for task t",
        expected="a number above 0, up to 1",
    )
    hidden: Width = option(400, "N", "hidden units of the generator's two halves", expected="1 to 1048576")
    latent: Width = option(100, "N", "latent variables of the generator", expected="1 to 1048576")


READS = {
    "lps": Reads(
        uses=frozenset(
            {"alpha", "beta", "solver", "pull", "rho", "rho_levels", "share_cost", "reserve"}
            | {"pattern", "sharing", "fill_last"}
        )
        | OWNERS_USE
    ),
    "packnet": Reads(uses=frozenset({"alpha", "reserve", "pattern", "fill_last"}) | OWNERS_USE),
    "clnp": Reads(CLNPOptions, OWNERS_USE, norms="per-task"),
    "wsn": Reads(ShareOption, OWNERS_USE),
    "supsup": Reads(ShareOption, OWNERS_USE),
    "hat": Reads(HATOptions, norms="per-task"),
    "ewc": Reads(EWCOptions),
    # A clipped gradient would not be the slope that Eq. (3) follows.
    "si": Reads(SIOptions, frozenset({"patience"})),
    "lwf": Reads(LwFOptions, norms="frozen"),  # the answers of all heads are compared in one network
    "gem": Reads(GEMOptions),
    "dgr": Reads(DGROptions),
    "single": Reads(norms=WHOLE),
    "finetune": Reads(),
    # One normalisation for all tasks, as they are trained together; there are no validation examples of all tasks.
    "joint": Reads(uses=frozenset({"clip_norm"}), norms="frozen"),
}
