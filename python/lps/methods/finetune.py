"""Plain fine-tuning: every task goes on training the weights of the one before, and nothing protects earlier tasks.

The lower line of every comparison.
"""

from __future__ import annotations

from lps.methods.dense import Dense


class Finetune(Dense):
    """No protection."""

    name = "finetune"
