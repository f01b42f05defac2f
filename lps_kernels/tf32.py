"""Whether products of fp32 matrices on a GPU may round their factors to TF32, ours and torch's alike."""

from __future__ import annotations

import os

import torch


def tf32_allowed() -> bool:
    """Only with ``LPS_TF32=1``."""
    return os.environ.get("LPS_TF32") == "1"


def apply_to_torch() -> None:
    """Torch's own default is TF32 for convolutions and fp32 for matrices."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32_allowed()
