"""Files of every version of the format, kept in tests/data, still load."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lps import load
from lps.artifact.layout import CHECKSUM
from lps.artifact.version1 import checksum
from lps.metadata import Metadata, Source
from lps.methods import METHODS
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.artifact.test_damage import refusal
from tests.toy import QUICK, inputs_of, toy_task

DATA = Path(__file__).parents[1] / "data"
VERSIONS = [1, 2, 3]  # 3 has frozen parameters


def kept(version: int) -> tuple[Path, dict[str, Any]]:
    """A file of this version and what it must give."""
    return DATA / f"model-v{version}.lps", json.loads((DATA / f"model-v{version}.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_are_the_same_to_the_bit(version: int) -> None:
    path, expected = kept(version)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["manifest"])["version"] == version
    net = load(path)
    assert [task.digest for task in net.learnt] == expected["digests"]
    assert [net.digest(number) for number in (1, 2, 3)] == expected["digests"]
    assert [(task.name, task.classes) for task in net.learnt] == [("clouds-0", 3), ("clouds-1", 4), ("clouds-2", 5)]
    for number, logits in enumerate(expected["logits"], 1):
        # The weights are those of then; another processor may add in another order.
        got = net(torch.tensor(expected["inputs"]), task=number)
        torch.testing.assert_close(got, torch.tensor(logits), rtol=1e-5, atol=1e-6)
    source = Source("split-rf", 3, 3, {"window": 256})
    assert net.metadata == Metadata([12], source, [0.9, 0.8, 0.7], user={"note": "mine"})


@pytest.mark.parametrize("version", VERSIONS)
def test_learning_goes_on_and_the_next_file_is_of_the_version_it_needs(version: int, tmp_path: Path) -> None:
    path, expected = kept(version)
    net, task = load(path), toy_task(7)
    net.learn(task, QUICK)
    assert [net.digest(number) for number in (1, 2, 3)] == expected["digests"]
    net.save(tmp_path / "model.lps")
    with safe_open(tmp_path / "model.lps", framework="pt") as file:
        assert json.loads(file.metadata()["manifest"])["version"] == max(2, version)
    twin = load(tmp_path / "model.lps")
    assert twin.learnt == net.learnt
    assert torch.equal(twin(inputs_of(task), task=4), net.eval()(inputs_of(task), task=4))


def test_what_version_3_says_is_frozen_is_not_learnt() -> None:
    net = load(kept(3)[0])
    assert net.frozen == {"1.weight", "4.bias"}
    before = [net.backbone.get_parameter(name).clone() for name in sorted(net.frozen)]
    METHODS["finetune"](net, QUICK).learn(toy_task(7))
    assert all(
        torch.equal(net.backbone.get_parameter(name), old) for name, old in zip(sorted(net.frozen), before, strict=True)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flipped_bit_is_noticed(version: int, tmp_path: Path) -> None:
    content, path = kept(version)[0].read_bytes(), tmp_path / "model.lps"
    draw = random.Random(0)
    for _ in range(300):
        damaged, position = bytearray(content), draw.randrange(8 * len(content))
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        refusal(path)


Edit = Callable[[dict[str, Any], dict[str, Tensor]], object]

FAULTS: list[tuple[Edit, str]] = [
    (lambda m, _: m.update(surplus=1), "manifest: object contains unknown field surplus"),
    (lambda m, _: m.pop("layers"), "manifest: object missing required field layers"),
    (lambda m, _: m.update(layers=[]), "expected no tensor "),
    (lambda m, _: m.update(tasks=[]), "expected tensor owner/1.weight to be uint8 [0, 15], got uint8 [2, 15]"),
    (lambda m, _: m["metadata"].update(accuracy=[2]), "metadata: accuracy[0]: expected float <= 1.0"),
    (lambda m, _: m["layers"][0].update(dtype="float64"), "expected tensor values/1.weight to be float64 [72], got "),
    (lambda _, t: t.pop("owner/1.weight"), "expected tensor owner/1.weight to be uint8 [2, 15], got none"),
    (lambda _, t: t.pop("values/1.weight"), "expected tensor values/1.weight to be float32 [72], got none"),
    (lambda _, t: t.pop("mask/2/1.weight"), "expected tensor net/2/mask/1.weight to be uint8 [3], got none"),
    (lambda _, t: t.update({"values/9": torch.zeros(1)}), "expected no tensor values/9, got float32 [1]"),
    (lambda _, t: t.update({"mask/1/1.weight": torch.zeros(1)}), "expected no tensor net/1/mask/1.weight, got float32"),
    (lambda _, t: t["head/2/bias"].add_(1), "task 2 (clouds-1) does not have the digest"),
]


@pytest.mark.parametrize(("edit", "message"), FAULTS, ids=[message[:50] for _, message in FAULTS])
def test_faulty_writers_of_version_1(edit: Edit, message: str, tmp_path: Path) -> None:
    whole, path = kept(1)[0], tmp_path / "model.lps"
    with safe_open(whole, framework="pt") as file:
        manifest = json.loads(file.metadata()["manifest"])
    tensors = load_file(whole)
    del tensors[CHECKSUM]
    edit(manifest, tensors)
    text = json.dumps(manifest)
    tensors[CHECKSUM] = torch.frombuffer(bytearray(checksum(text, tensors)), dtype=torch.uint8)
    save_file(tensors, path, metadata={"manifest": text})
    assert refusal(path).startswith(message)
