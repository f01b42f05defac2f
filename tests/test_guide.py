"""The code of the guide runs unchanged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lps
import pytest
import torch
from torch import nn

GUIDE = Path(__file__).parent.parent / "docs" / "guide.md"


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def block_with(words: str) -> str:
    """The one block of code with these words in it."""
    (found,) = [block for block in code_blocks() if words in block]
    return found


def my_tasks() -> list[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for name in ("first", "second"):
        centres = torch.randn(10, 784, generator=generator)
        labels = torch.arange(200) % 10
        x = centres[labels] + torch.randn(200, 784, generator=generator)
        tasks.append((name, x[:150], labels[:150], x[150:], labels[150:]))
    return tasks


def test_twenty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    block = code_blocks()[0]
    assert len(block.splitlines()) <= 20
    names: dict[str, Any] = {"my_tasks": my_tasks()}
    exec(block, names)
    accuracies = re.findall(r"(\w+) ([\d.]+)", capsys.readouterr().out)
    assert [name for name, _ in accuracies] == ["first", "second"]
    assert all(float(accuracy) > 0.5 for _, accuracy in accuracies)  # chance is 0.1
    assert names["logits"].shape == (50, 10)


def test_a_registered_network_is_made_by_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lps.models, "_BUILDERS", dict(lps.models._BUILDERS))  # other tests list what is registered
    names: dict[str, Any] = {"lps": lps, "nn": nn}
    exec(block_with("models.register"), names)
    name, x, y, x_test, y_test = my_tasks()[0]
    net = names["net"]
    task = lps.Task(name, 10, train=lps.Arrays(x, y), test=lps.Arrays(x_test, y_test))
    net.learn(task, lps.LPSConfig(epochs=(1, 1, 1)))
    second, config = replace(task, name="second"), lps.LPSConfig(epochs=(1, 1, 1))
    exec(block_with("torch.optim.SGD"), {"net": net, "task": second, "config": config, "torch": torch})
    net.save(tmp_path / "model.lps")
    loaded = lps.load(tmp_path / "model.lps")
    assert torch.equal(loaded.eval()(x_test, task=2), net.eval()(x_test, task=2))


def test_a_transformer_reads_inputs_by_name() -> None:
    class Transformer(nn.Module):
        config = SimpleNamespace(hidden_size=16)

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.mix = nn.Embedding(30, 16), nn.Linear(16, 16)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return SimpleNamespace(last_hidden_state=torch.relu(self.mix(self.tokens(input_ids))))

    def collator(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
        labels = torch.tensor([row["label"] for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    reviews = [{"input_ids": [1 + i % 2, *[3] * (i % 5)], "label": i % 2} for i in range(40)]
    ids, mask = torch.tensor([[1, 3, 3], [2, 3, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    names: dict[str, Any] = {"lps": lps, "nn": nn, "transformer": Transformer(), "reviews": reviews}
    names |= {"collator": collator, "ids": ids, "mask": mask}
    exec(block_with("class Pooled"), names)
    assert names["logits"].shape == (2, 2)
