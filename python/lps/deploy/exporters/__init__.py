"""One task for use elsewhere: an exporter per format.

A new format is one file with an ``EXPORTER`` and one line in :data:`EXPORTERS`.
"""

from __future__ import annotations

from pathlib import Path

from lps.artifact.read import load
from lps.deploy.exporters import lps_file, onnx_model, torch_program
from lps.deploy.exporters.base import Exporter
from lps.deploy.trial import use_signature
from lps.errors import LPSError

EXPORTERS: dict[str, Exporter] = {
    "torch": torch_program.EXPORTER,
    "onnx": onnx_model.EXPORTER,
    "lps": lps_file.EXPORTER,
}


def default_output(file: Path, task: int, format: str) -> Path:
    """Where a task is written unless the user says otherwise: ``model-task3.onnx`` beside ``model.lps``."""
    return file.with_name(f"{file.stem}-task{task}{EXPORTERS[format].suffix}")


def export_file(file: Path, task: int, format: str, output: Path, input_shape: str | None = None) -> str:
    """Write one task of a file in this format; says what was checked before it was written.

    ``input_shape`` is needed if the file does not tell it, as in ``3,32,32``.
    """
    exporter = EXPORTERS[format]
    missing = exporter.missing()
    if missing is not None:
        raise LPSError(f"--format {format}: {missing}")
    net = load(file)
    net.check_task(task)
    if exporter.needs_input_shape or input_shape is not None:
        use_signature(net, task, file, input_shape)
    return exporter.write(net, task, output)
