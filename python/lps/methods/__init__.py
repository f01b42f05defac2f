"""Methods that learn a stream of tasks, behind one interface; a new one is one file and one line in :data:`METHODS`."""

from __future__ import annotations

from lps.methods.base import Method
from lps.methods.ewc import EWC
from lps.methods.finetune import Finetune
from lps.methods.gem import GEM
from lps.methods.lps import LPS
from lps.methods.lwf import LwF
from lps.methods.packnet import PackNet
from lps.methods.si import SI
from lps.methods.single import Single
from lps.methods.supsup import SupSup
from lps.methods.wsn import WSN

__all__ = ["METHODS", "Method"]

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (LPS, PackNet, WSN, SupSup, Single, Finetune, EWC, SI, LwF, GEM)
}
