"""Methods that learn a stream of tasks, behind one interface; a new one is one file and one line in :data:`METHODS`."""

from __future__ import annotations

from lps.methods.base import Method
from lps.methods.clnp import CLNP
from lps.methods.dgr import DGR
from lps.methods.finetune import Finetune
from lps.methods.hat import HAT
from lps.methods.joint import Joint
from lps.methods.lps import LPS
from lps.methods.packnet import PackNet
from lps.methods.single import Single

__all__ = ["METHODS", "Method"]

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (LPS, PackNet, Single, Finetune, Joint, HAT, CLNP, DGR)
}
