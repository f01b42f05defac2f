"""Anybody's own images: a folder per task, a folder per class; what cannot be used is refused with its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import eval as evaluate
from lps import infer, load, train
from lps.data import folder, stream
from lps.data.augment import crop_and_flip
from lps.errors import ConfigError, DataError
from lps.metadata import Source
from lps.models import create
from lps.runs.settings import settings_from
from PIL import Image

from tests.command import run
from tests.data.making import picture
from tests.data.test_streams import arrays, first, sizes

ENDINGS = {"PNG": ".png", "JPEG": ".JPG", "WEBP": ".webp", "BMP": ".bmp"}


def add(place: Path, count: int, shade: int) -> None:
    """Images of one shade and of various kinds and sizes."""
    place.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        kind, ending = list(ENDINGS.items())[number % len(ENDINGS)]
        side = 20 + 7 * number % 30
        Image.new("RGB", (side, side + number % 3), (shade,) * 3).save(place / f"{number:03}{ending}", kind)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A task that is divided, and one that is not."""
    root = tmp_path / "images"
    for part, count in (("train", 12), ("test", 3)):
        for shade, name in ((40, "stork"), (200, "heron")):
            add(root / "birds" / part / name, count, shade)
    for shade, name in ((10, "pike"), (90, "carp"), (240, "ide")):
        add(root / "fish" / name, 10, shade)
    (root / "README").write_text("no task")
    (root / ".hidden").mkdir()
    (root / "fish" / "pike" / "notes.txt").write_text("no image")
    (root / "fish" / "pike" / ".thumb.png").write_bytes(b"no image")
    return root


def test_tasks_and_classes_come_from_folders(images: Path) -> None:
    tasks = stream("folder", data_dir=images, augment=True)
    assert [task.name for task in tasks] == ["birds", "fish"]
    assert tasks[0].class_names == ("heron", "stork")
    assert tasks[1].class_names == ("carp", "ide", "pike")
    assert sizes(tasks[0]) == (22, 2, 6)
    assert sizes(tasks[1]) == (22, 2, 6)
    assert tasks[0].augment is crop_and_flip
    shades = torch.tensor([90, 240, 10])
    for part in (tasks[1].train, tasks[1].validation, tasks[1].test):
        assert ((arrays(part).inputs[:, 0, 16, 16] - shades[arrays(part).labels]).abs() < 3).all()
    assert arrays(tasks[1].test).labels.bincount().tolist() == [2, 2, 2]
    assert first(tasks[1]).shape == (8, 3, 32, 32)
    larger = stream("folder", data_dir=images, tasks=1, options={"image_size": 50})
    assert first(larger[0]).shape == (8, 3, 50, 50)
    name, arguments = larger.architecture
    assert create(name, **arguments)(first(larger[0])).shape == (8, 512)


def test_the_seed_chooses_the_test_part_where_there_is_none(images: Path) -> None:
    for number in range(10):
        path = images / "fish" / "carp" / f"{number:03}.png"
        for other in path.parent.glob(f"{number:03}.*"):
            other.unlink()
        path.write_bytes(picture("PNG", 32, 20 * number, "RGB"))
    seen: Any = [stream("folder", data_dir=images, seed=seed)[1] for seed in range(4)]
    chosen = {tuple(arrays(task.test).inputs[:2, 0, 0, 0].tolist()) for task in seen}
    assert len(chosen) > 1
    for task in seen:
        parts = [arrays(part) for part in (task.train, task.validation, task.test)]
        shades = torch.cat([part.inputs[part.labels == 0, 0, 0, 0] for part in parts])
        assert shades.sort().values.tolist() == [20 * number for number in range(10)]
    again = stream("folder", data_dir=images, seed=3, tasks=2)[1]
    assert torch.equal(arrays(again.test).inputs, arrays(seen[3].test).inputs)


def test_a_validation_folder_is_used(images: Path) -> None:
    for shade, name in ((40, "stork"), (200, "heron")):
        add(images / "birds" / "validation" / name, 4, shade)
    assert sizes(stream("folder", data_dir=images)[0]) == (24, 8, 6)


def test_few_images_leave_no_validation_part(tmp_path: Path) -> None:
    for name in "ab":
        add(tmp_path / "task" / name, 5, 40)
    task = stream("folder", data_dir=tmp_path)[0]
    assert (len(arrays(task.train)), task.validation, len(arrays(task.test))) == (8, None, 2)


def test_train_and_test_are_classes_if_there_are_others(images: Path) -> None:
    (images / "birds" / "more").mkdir()
    with pytest.raises(DataError, match=r"birds/test/heron: kind: expected an image, got a folder"):
        stream("folder", data_dir=images)


def test_settings_count_the_folders(images: Path) -> None:
    settings = settings_from({"benchmark": "folder", "data_dir": str(images), "image_size": 48})
    assert (settings.tasks, settings.lps.alpha) == (2, 0.5)
    assert settings.source() == Source("folder", 0, 2, {"image_size": 48})
    assert settings_from({"benchmark": "folder", "data_dir": str(images), "tasks": 1}).lps.alpha == 0.5
    # A run that is resumed has both, and its settings can be read where the data are not.
    settings_from({"benchmark": "folder", "data_dir": "none", "tasks": 2, "alpha": 0.5})
    with pytest.raises(DataError, match=r"none: cannot be read: No such file or directory; check the path"):
        settings_from({"benchmark": "folder", "data_dir": "none"})
    for size in (15, 513, "large"):
        with pytest.raises(ConfigError, match=rf"folder: image_size: expected 16 to 512 pixels, got {size}"):
            settings_from({"benchmark": "folder", "data_dir": str(images), "image_size": size})
    with pytest.raises(ConfigError, match="folder: tasks: expected 1 to 2, got 3"):
        stream("folder", data_dir=images, tasks=3)
    with pytest.raises(ConfigError, match="folder: data_dir: expected a folder with a folder per task, got none"):
        stream("folder")


def refused(images: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        list(stream("folder", data_dir=images))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_what_cannot_be_used_is_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty: folders of tasks: expected 1 to 127", "got 0; pass another folder")
    refused(images / "README", "README: cannot be read: Not a directory")
    refused(tmp_path / "x\0y", "cannot be read: embedded null byte")
    refused(images / "fish", "carp: folders of classes: expected at least 2, got 0; put a folder per class there")

    broken = images / "fish" / "carp" / "000.png"
    whole = broken.read_bytes()
    for content, words in (
        (b"no image", "kind of file: expected an image (PNG, JPEG, WEBP, GIF, BMP, TIFF, PPM), got something else"),
        (whole[:-30], "cannot be read"),
        (b"", "kind of file: expected an image"),
    ):
        broken.write_bytes(content)
        refused(images, str(broken), words)
    broken.unlink()
    os.mkfifo(broken)
    refused(images, f"{broken}: kind: expected an image, got a pipe, a socket or a device; remove it")
    broken.unlink()
    broken.symlink_to(images / "README")
    refused(images, f"{broken}: kind: expected a file or a folder, got a link; put what it leads to in its place")
    broken.unlink()
    (images / "loop").symlink_to(images)
    refused(images, "loop: kind: expected a file or a folder, got a link")
    (images / "loop").unlink()
    os.mkdir(os.fsencode(images) + b"/\xff")  # noqa: PTH102
    refused(images, "name: expected text in UTF-8, got other bytes")
    os.rmdir(os.fsencode(images) + b"/\xff")  # noqa: PTH106

    monkeypatch.setattr(folder, "MOST_MEMORY", 50 * 3 * 32 * 32)
    refused(images, "images: expected at most 50 of 32x32, which take 153,600 bytes of memory, got 59", "--image-size")
    monkeypatch.undo()

    for path in (images / "birds" / "test" / "stork").iterdir():
        path.unlink()
    refused(images, "birds/test/stork: images: expected at least 1, got 0; add some or leave the class out")
    (images / "birds" / "test" / "stork").rename(images / "birds" / "test" / "crane")
    refused(images, "birds/test: folders of classes: expected those of train, got crane in one of both alone")
    for number in range(4):
        add(tmp_path / "few" / "task" / "ab"[number % 2], 4, 1)
    refused(tmp_path / "few", "task/a: images: expected at least 5, got 4; add some or leave the class out")


def test_a_run_from_images_to_classes(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--epochs", "0,2,0", "--threads", "1", "--image-size", "16", "--batch-size", "8"]
    done = run(tmp_path, "lps.train", "--benchmark", "folder", "--data-dir", images, "--output", "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "task 2/2 fish" in done.stdout
    model = tmp_path / "run" / "model.lps"
    net = load(model)
    assert net.metadata.stream == Source("folder", 0, 2, {"image_size": 16})
    assert [task.class_names for task in net.learnt] == [("heron", "stork"), ("carp", "ide", "pike")]
    assert evaluate.main([str(model), "--data-dir", str(images), "--threads", "1"]) == 0
    assert capsys.readouterr().out.count("ok") == 2
    assert infer.main([str(model), "--task", "2", str(images / "fish" / "ide"), "--threads", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
    assert train.main(["--output", str(tmp_path / "run"), "--resume", "--threads", "1"]) == 0


def test_a_run_of_split_mnist(mnist_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks, on images that are the same for each digit."""
    arguments = ["--tasks", "2", "--epochs", "0,1,0", "--batch-size", "1000", "--output", "run"]
    done = run(
        tmp_path, "lps.train", "--benchmark", "split-mnist", "--data-dir", mnist_dir, "--threads", "1", *arguments
    )
    assert done.returncode == 0, done.stderr
    assert "task 2/2 mnist-2-3" in done.stdout
    model = tmp_path / "run" / "model.lps"
    assert evaluate.main([str(model), "--data-dir", str(mnist_dir), "--threads", "1"]) == 0
    assert capsys.readouterr().out.count("ok") == 2
    np.save(tmp_path / "digits.npy", np.zeros((3, 28, 28), np.uint8))
    assert infer.main([str(model), "--task", "2", str(tmp_path / "digits.npy"), "--threads", "1"]) == 0
    assert {line.split(",")[2] for line in capsys.readouterr().out.splitlines()[1:]} <= {"0", "1"}
