"""Plain fine-tuning: every task goes on training the weights of the one before, and nothing protects earlier tasks.

The lower line of every comparison.
"""

from __future__ import annotations

from lps.methods.dense import Dense
from lps.methods.options import READS


class Finetune(Dense):
    """No protection."""

    name = "finetune"
    reads = READS[name]
