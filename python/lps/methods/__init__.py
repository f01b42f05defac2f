"""Methods that learn a stream of tasks, behind one interface.

A new one is a file, a line in :data:`METHODS` and a line in :data:`lps.methods.options.READS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lps.table import Table

if TYPE_CHECKING:
    from lps.methods.base import Method

__all__ = ["METHODS"]

METHODS: Table[type[Method]] = Table(
    {
        "lps": "lps.methods.lps.method:LPS",
        "packnet": "lps.methods.packnet:PackNet",
        "clnp": "lps.methods.clnp:CLNP",
        "wsn": "lps.methods.wsn:WSN",
        "supsup": "lps.methods.supsup:SupSup",
        "hat": "lps.methods.hat:HAT",
        "ewc": "lps.methods.ewc:EWC",
        "si": "lps.methods.si:SI",
        "lwf": "lps.methods.lwf:LwF",
        "gem": "lps.methods.gem:GEM",
        "dgr": "lps.methods.dgr:DGR",
        "single": "lps.methods.single:Single",
        "finetune": "lps.methods.finetune:Finetune",
        "joint": "lps.methods.joint:Joint",
    }
)
