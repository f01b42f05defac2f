"""The README's Python runs as printed, for any module, and with what it says comes before it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import same_bits
from tests.toy import inputs_of, toy_task

README = Path(__file__).parent.parent / "README.md"


class Own(nn.Module):
    """A network that lps.models does not know, with 512 features as in the README."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Linear(12, 16), nn.Linear(16, 512)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.wide(torch.tanh(self.stem(x))))


def test_the_block_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    tasks = [replace(toy_task(seed), name=name) for seed, name in enumerate(("birds", "fish", "faces"))]
    x = inputs_of(tasks[2])
    names = {"make_backbone": Own, "tasks": tasks, "x": x}
    exec(block, names)
    logits, net, small = (names[name] for name in ("logits", "net", "small"))
    assert isinstance(logits, Tensor)
    with torch.no_grad():
        again = net(x, task="faces")  # type: ignore[operator]
        mixed = net(x[:3], task=["faces", "birds", 2])  # type: ignore[operator]
        torch.testing.assert_close(small(x), again, rtol=1e-4, atol=1e-4)  # type: ignore[operator]
        torch.testing.assert_close(mixed[0], again[0], rtol=1e-4, atol=1e-4)
    assert same_bits(net.eval()(x, task=3), again)  # type: ignore[attr-defined]
    assert Path("faces.onnx").stat().st_size > 0
