"""``torch``: the cut-out network as a program of ``torch.export`` (.pt2), which needs torch alone."""

from __future__ import annotations

import io
from functools import partial

import torch

from lps.deploy.exporters.base import Exporter, Labels, Run, to_program, write_portable
from lps.signature import Signature
from lps_kernels.calls import Inputs, call
from lps_kernels.cutout import Cutout


def _convert(model: Cutout, inputs: Inputs, signature: Signature, labels: Labels) -> tuple[bytes, Run]:
    """The content of the file, and what it answers once it is loaded again."""
    file = io.BytesIO()
    torch.export.save(to_program(model, inputs, signature), file, extra_files=dict(labels))
    file.seek(0)
    loaded = torch.export.load(file).module()
    return file.getvalue(), partial(call, loaded)


EXPORTER = Exporter(".pt2", partial(write_portable, convert=_convert), needs_input_shape=True)
