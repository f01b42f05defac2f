"""The table of export formats: one file and one line per format."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from lps.deploy import exporters
from lps.deploy.exporters import EXPORTERS, default_output
from lps.deploy.exporters.base import Exporter


def test_every_file_with_a_format_is_in_the_table() -> None:
    names = [module.name for module in pkgutil.iter_modules(exporters.__path__) if module.name != "base"]
    found = [importlib.import_module(f"{exporters.__name__}.{name}").EXPORTER for name in names]
    assert all(isinstance(exporter, Exporter) for exporter in found)
    assert {id(exporter) for exporter in found} == {id(exporter) for exporter in EXPORTERS.values()}


def test_no_two_formats_write_the_same_file_by_default() -> None:
    paths = {default_output(Path("runs/model.lps"), 3, format) for format in EXPORTERS}
    assert len(paths) == len(EXPORTERS)
    assert paths >= {Path("runs/model-task3.onnx"), Path("runs/model-task3.lps")}
