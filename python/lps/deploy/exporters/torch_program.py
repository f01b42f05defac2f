"""``torch``: the cut-out network as a program of ``torch.export`` (.pt2), which needs torch alone."""

from __future__ import annotations

import io
from functools import partial

import torch
from torch import Tensor, nn

from lps.deploy.exporters.base import Exporter, Labels, Run, to_program, write_portable


def _convert(model: nn.Module, inputs: Tensor, labels: Labels) -> tuple[bytes, Run]:
    """The content of the file, and what it answers once it is loaded again."""
    file = io.BytesIO()
    torch.export.save(to_program(model, inputs), file, extra_files=dict(labels))
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


EXPORTER = Exporter(".pt2", partial(write_portable, convert=_convert), needs_input_shape=True)
