"""One task for use elsewhere: an exporter per format.

A new format is one file with an ``EXPORTER`` and one line in :data:`EXPORTERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lps.errors import ConfigError, LPSError
from lps.options import shown
from lps.table import Table

if TYPE_CHECKING:
    from lps.deploy.exporters.base import Exporter
    from lps.lifelong import Lifelong

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


def check_available(format: str) -> None:
    """Refuse a format that cannot be written here."""
    missing = EXPORTERS[format].missing()
    if missing is not None:
        raise LPSError(f"--format {format}: {missing}")


def export_task(
    net: Lifelong,
    task: int | str,
    output: Path,
    format: str | None = None,
    *,
    source: str | Path = "export",
    input_shape: str | None = None,
) -> str:
    """Write one task in this format, by default that of the path's ending; says what was checked before.

    ``input_shape`` is needed if the network does not tell it, as in ``3,32,32``; ``source`` is what a refusal calls the
    network.
    """
    if format is None:
        format = next((name for name, known in EXPORTERS.items() if output.suffix == known.suffix), "")
    if format not in EXPORTERS:
        endings = ", ".join(f"{name} ({known.suffix})" for name, known in EXPORTERS.items())
        raise ConfigError(f"export: format: expected one of {endings}, got {shown(format or output.name)}")
    check_available(format)
    exporter, number = EXPORTERS[format], net.check_task(task)
    if exporter.needs_input_shape or input_shape is not None:
        from lps.deploy.trial import use_signature

        net.require_backbone()
        use_signature(net, number, source, input_shape)
    return exporter.write(net, number, output)
