"""``lps``: a file like the original one, with one task in it; the weights that the task does not use are free."""

from __future__ import annotations

from pathlib import Path

from lps.artifact.one_task import one_task
from lps.deploy.exporters.base import Exporter
from lps.lifelong import Lifelong


def _write(net: Lifelong, task: int, output: Path) -> str:
    one_task(net, task).save(output)  # which checks the digest
    return "the digest is unchanged"


EXPORTER = Exporter(".lps", _write, needs_input_shape=False)
