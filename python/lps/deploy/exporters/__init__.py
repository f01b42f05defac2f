"""One task for use elsewhere: an exporter per format.

A new format is one file with an ``EXPORTER`` and one line in :data:`EXPORTERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lps.errors import LPSError
from lps.table import Table

if TYPE_CHECKING:
    from lps.deploy.exporters.base import Exporter

EXPORTERS: Table[Exporter] = Table(
    {
        "torch": "lps.deploy.exporters.torch_program:EXPORTER",
        "onnx": "lps.deploy.exporters.onnx_model:EXPORTER",
        "lps": "lps.deploy.exporters.lps_file:EXPORTER",
    }
)


def default_output(file: Path, task: int, format: str) -> Path:
    """Where a task is written unless the user says otherwise: ``model-task3.onnx`` beside ``model.lps``."""
    return file.with_name(f"{file.stem}-task{task}{EXPORTERS[format].suffix}")


def export_file(file: Path, task: int, format: str, output: Path, input_shape: str | None = None) -> str:
    """Write one task of a file in this format; says what was checked before it was written.

    ``input_shape`` is needed if the file does not tell it, as in ``3,32,32``.
    """
    from lps.artifact.read import load
    from lps.deploy.trial import use_input_shape

    exporter = EXPORTERS[format]
    missing = exporter.missing()
    if missing is not None:
        raise LPSError(f"--format {format}: {missing}")
    net = load(file)
    net.check_task(task)
    if exporter.needs_input_shape or input_shape is not None:
        use_input_shape(net, task, file, input_shape)
    return exporter.write(net, task, output)
