"""The adapters against the real libraries, in a virtual environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from lps.adapters.continuum import tasks_of
from lps.adapters.examples import make_task
from lps.errors import DataError
from torch.utils.data import TensorDataset

from tests.command import ENVIRONMENT

# Without what they need for other purposes than streams and strategies; torch is that of this environment.
PACKAGES = {
    "avalanche": (
        ["--no-deps", "torchvision==0.28.0", "avalanche-lib==0.6.0"],
        ["pillow", "torchmetrics", "dill", "gdown", "gputil", "psutil", "qpsolvers", "quadprog", "pytorchcv"],
        ["scikit-learn", "matplotlib", "tensorboard", "wandb"],
    ),
    "continuum": (
        ["--no-deps", "torchvision==0.28.0", "continuum==1.2.7"],
        ["six", "scipy", "h5py", "pandas", "datasets", "scikit-image", "scikit-learn", "imagehash", "matplotlib"],
    ),
}


@pytest.mark.adapters
@pytest.mark.parametrize("library", PACKAGES)
def test_with_the_real_library(library: str, tmp_path: Path) -> None:
    folder = tmp_path / library
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    torch_is_in = Path(torch.__file__).parents[1]
    (site / "beside.pth").write_text(f"{torch_is_in}\n")
    python = folder / "bin" / "python"
    for packages in PACKAGES[library]:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [python, "-m", f"tests.adapters.run_{library}"],
        cwd=root,
        env={**ENVIRONMENT, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("ok\n"), done.stdout + done.stderr


def test_labels_count_from_0_and_a_part_is_held_out() -> None:
    labels = torch.tensor([7, 3] * 10)
    dataset = TensorDataset(torch.arange(20.0)[:, None], labels, torch.zeros(20))
    task = make_task("t", [3, 7], dataset, dataset, validation=0.2)
    assert task.classes == 2
    assert [len(part) for part in (task.train, task.validation, task.test)] == [16, 4, 20]  # type: ignore[arg-type]
    inputs, label = task.test[0]  # type: ignore[index]
    assert (float(inputs), int(label)) == (0.0, 1)
    seen = {float(task.train[i][0]) for i in range(16)} | {float(task.validation[i][0]) for i in range(4)}  # type: ignore[index]
    assert len(seen) == 20


def test_what_does_not_fit_is_refused() -> None:
    dataset = TensorDataset(torch.zeros(4, 1), torch.tensor([0, 1, 2, 1]))
    task = make_task("t", [0, 1], dataset, dataset, validation=0.0)
    assert task.validation is None
    with pytest.raises(DataError, match=r"expected labels \[0, 1\], as the task says, got 2"):
        task.train[2]
    with pytest.raises(DataError, match="validation: expected a share from 0 to below 1, got 1"):
        make_task("t", [0, 1], dataset, dataset, validation=1)
    with pytest.raises(DataError, match="expected as many test tasks as training tasks, got"):
        tasks_of([], [dataset])
    with pytest.raises(DataError, match="expected tensors as inputs, got list"):
        make_task("t", [0], [([1.0], 0)] * 2, [([1.0], 0)], validation=0.0).train[0]


def test_the_package_needs_none_of_them() -> None:
    code = "import sys, lps, lps.adapters.examples; sys.exit(any(m in sys.modules for m in ('avalanche', 'continuum')))"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


# As torchvision's own _meta_registrations.py, whose operators are missing where its compiled part did not load.
OF_ANOTHER_TORCH = 'import torch\n\ntorch.library.register_fake("torchvision::nms")(lambda *_: None)\n'
TWICE = """
import sys
for _ in range(2):
    try:
        import lps.adapters.{name}
    except Exception as error:
        print(type(error).__name__, error)
    sys.modules.pop("lps.adapters", None)
"""


@pytest.mark.parametrize("name", ["avalanche", "continuum"])
def test_a_torchvision_of_another_torch_gets_one_sentence(name: str, tmp_path: Path) -> None:
    """Whichever of the two libraries asks for it, and again when the import is tried again."""
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text(OF_ANOTHER_TORCH)
    info = tmp_path / "torchvision-0.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.9\n")
    (tmp_path / "avalanche.py").write_text("import torchvision\n")
    done = subprocess.run(
        [sys.executable, "-c", TWICE.format(name=name)],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        beside = f"torchvision 0.9 cannot be imported beside torch {torch.__version__} "
        assert line.startswith(f"ConfigError lps.adapters: {beside}")
        assert "operator torchvision::nms does not exist" in line
        assert "install the torchvision that was built for this torch" in line


def test_without_torchvision_the_adapters_are_imported() -> None:
    code = "import sys; sys.modules['torchvision'] = None\nimport lps.adapters.continuum"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
