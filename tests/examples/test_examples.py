"""Every example runs as its first lines say, and shows what it claims."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import lps
import pytest
from torch import nn

from tests.command import ENVIRONMENT

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(name: str, folder: Path) -> str:
    """What an example prints; it writes into this folder."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(folder)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", text)]


def test_every_example_is_listed_and_tested() -> None:
    page = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == set(re.findall(r"\]\((\w+\.py)\)", page))
    assert names == set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))


def test_a_server_is_asked_for_two_tasks(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    text = run("serving.py", tmp_path)
    assert percentages(text)[-1] >= 80


def test_a_resnet_on_images_in_folders(tmp_path: Path) -> None:
    text = run("resnet_folders.py", tmp_path / "new")
    when_learnt, after = text.split("after all three tasks:")
    assert percentages(when_learnt) == percentages(after)
    assert min(percentages(text)) > 80, text
    assert len(lps.load(tmp_path / "new" / "model.lps", backbone_of("resnet_folders", "resnet")).learnt) == 3


def test_a_text_transformer(tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -c constraints.txt -e '.[examples]'")
    text = run("text_transformer.py", tmp_path / "new")
    assert min(percentages(text)) > 90, text
    assert text.endswith("the small blue owl loves a and: blue, owl, loves\n")


def test_a_pretrained_backbone_gains_tasks(tmp_path: Path) -> None:
    text = run("pretrained.py", tmp_path / "new")
    pretrained, at_random = percentages(text)[:3], percentages(text)[3:]
    assert sum(pretrained) > sum(at_random) + 3, text
    assert "the file answers with the same bits: True" in text


def test_the_tour(tmp_path: Path) -> None:
    text = run("tour.py", tmp_path / "new")
    pictures = [Path(path) for path in re.findall(r"^picture: (.*)$", text, re.MULTILINE)]
    assert {"tasks.png", "owners.png"} < {picture.name for picture in pictures}
    assert len(pictures) > 4
    assert all(picture.stat().st_size > 500 for picture in pictures)
    assert percentages(text)[-1] > 90, text


def backbone_of(module: str, function: str) -> nn.Module:
    """A network as an example makes it."""
    network = runpy.run_path(str(EXAMPLES / f"{module}.py"))[function]()
    assert isinstance(network, nn.Module)
    return network
