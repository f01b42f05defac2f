"""Streams of other image sets: their tasks from files of the official layout, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import data
from lps.data import five_datasets, notmnist, omniglot, rotated_mnist, stream, svhn, tinyimagenet
from lps.data.augment import crop_and_flip
from lps.data.base import Stream
from lps.errors import ConfigError, DataError
from lps.models import create
from lps.runs import run
from lps.runs.settings import settings_from
from PIL import Image

from tests.data.making import mat, omniglot_files, picture, tiny_files, write_files, write_mnist
from tests.data.test_files import write_tar
from tests.data.test_streams import arrays, first, sizes

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["split-cifar100", "split-tinyimagenet"])
def test_a_split_decides_tasks_and_shares(name: str) -> None:
    other = {"split-cifar100": 20, "split-tinyimagenet": 40}[name]
    settings = settings_from({"benchmark": name})
    assert (settings.tasks, settings.lps.alpha, settings.source().options) == (10, 0.1, {})
    settings = settings_from({"benchmark": name, "split": other})
    assert (settings.tasks, settings.lps.alpha, settings.source().options) == (other, 1 / other, {"split": other})
    settings = settings_from({"benchmark": name, "split": str(other), "tasks": 3})
    assert (settings.tasks, settings.lps.alpha) == (3, 1 / other)
    settings = settings_from({"benchmark": name, "split": other, "alpha": 0.01})
    assert (settings.tasks, settings.lps.alpha) == (other, 0.01)
    for wrong in (7, 0, 10**30):
        with pytest.raises(ConfigError, match=rf"split: expected 10 or {other}, got "):
            settings_from({"benchmark": name, "split": wrong})
    with pytest.raises(ConfigError, match=rf"{name}: tasks: expected 1 to 10, got 11"):
        stream(name, tasks=11)
    with pytest.raises(ConfigError, match="split: expected a whole number, got many"):
        settings_from({"benchmark": name, "split": "many"})


@pytest.mark.parametrize(
    ("name", "network", "options"),
    [
        ("split-cifar100", data.cifar.NETWORK, {"split": 20}),
        ("split-tinyimagenet", ("cifar-net", {"side": 16}), {"split": 40}),  # a smaller one has less room
        ("omniglot-rotation", omniglot.NETWORK, {}),
    ],
)
def test_the_network_has_room_for_all_tasks(name: str, network: Any, options: dict[str, int]) -> None:
    """Planned, not trained."""
    settings = settings_from({"benchmark": name, **options})
    tasks = Stream(name, network, settings.tasks, lambda _: pytest.fail("no data are needed"))
    run._method(settings, run._new_network(settings, tasks)).check(range(settings.tasks))  # type: ignore[arg-type]


def test_split_mnist(mnist_dir: Path) -> None:
    tasks = stream("split-mnist", data_dir=mnist_dir)
    assert [task.name for task in tasks] == ["mnist-0-1", "mnist-2-3", "mnist-4-5", "mnist-6-7", "mnist-8-9"]
    assert tasks[4].class_names == ("8", "9")
    for task in tasks:
        assert sizes(task) == (10_800, 1_200, 2_000)
        assert arrays(task.test).labels.bincount().tolist() == [1_000, 1_000]
        assert first(task).shape == (8, 784)
    name, arguments = tasks.architecture
    assert create(name, **arguments)(first(tasks[0])).shape == (8, 400)


def test_rotated_mnist(mnist_dir: Path) -> None:
    tasks, more, other = (
        stream("rotated-mnist", data_dir=mnist_dir, seed=seed, tasks=count)
        for count, seed in ((10, 1), (127, 1), (10, 2))
    )
    assert sizes(tasks[9]) == (54_000, 6_000, 10_000)
    assert torch.equal(first(tasks[0]), arrays(tasks[0].train).inputs[:8].float() / 255)
    assert torch.equal(first(tasks[9]), first(more[9]))
    assert not torch.equal(first(tasks[9]), first(other[9]))
    angles = [rotated_mnist.angle(1, number) for number in range(100)]
    assert angles[0] == 0
    assert all(0 < angle < 180 for angle in angles[1:])
    assert max(angles) > 150


def test_a_rotation_is_that_of_pillow() -> None:
    image = RANDOM.integers(0, 256, (28, 28), np.uint8)
    for degrees in (0.0, 17.5, 90.0, 133.0):
        wanted = Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR)
        got = rotated_mnist.Rotate(degrees)(torch.from_numpy(image.reshape(1, 784))).view(28, 28)
        # Pillow rounds to bytes, and leaves pixels at the edge black that are half outside.
        inner = (slice(8, 20), slice(8, 20))
        assert (got[inner] - torch.from_numpy(np.array(wanted) / 255)[inner]).abs().max() < 0.006


@pytest.mark.parametrize(("split", "each"), [(10, 10), (20, 5)])
def test_split_cifar100_learns_as_many_tasks_as_there_are_classes(
    sheets_dir: Path,
    split: int,
    each: int,
) -> None:
    options = {"split": split}
    tasks = stream("split-cifar100", data_dir=sheets_dir, tasks=split // 2, options=options, augment=True)
    assert [task.name for task in tasks] == [f"cifar100-{n}-{n + each - 1}" for n in range(0, 50, each)]
    for task in tasks:
        assert sizes(task) == (450 * each, 50 * each, 100 * each)
        assert task.classes == each
        assert task.augment is crop_and_flip
    with pytest.raises(DataError) as caught:
        stream("split-cifar100", data_dir=sheets_dir, options=options)
    assert f"{split} tasks need the classes 0 to 99, but {sheets_dir} holds 0 to 49 alone" in str(caught.value)
    assert f"pass --tasks {split // 2}, or" in str(caught.value)


# TinyImageNet


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CLASSES", 40), ("TRAIN", 10), ("TEST", 2)):
        monkeypatch.setattr(tinyimagenet, name, value)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("place", ["tiny-imagenet-200.zip", "tiny-imagenet-200"])
def test_split_tinyimagenet(tmp_path: Path, place: str) -> None:
    write_files(tmp_path / place, tiny_files(40, 10, 2))
    tasks = stream("split-tinyimagenet", data_dir=tmp_path)
    assert len(tasks) == 10
    assert tasks[1].name == "tinyimagenet-4-7"
    assert tasks[1].class_names == ("n00000028", "n00000035", "n00000002", "n00000009")  # the order of wnids.txt
    assert sizes(tasks[1]) == (36, 4, 8)
    for part in (tasks[1].train, tasks[1].test):
        examples = arrays(part)
        assert (examples.inputs.float().mean((1, 2, 3)) - examples.labels - 4).abs().max() < 2  # JPEG is not exact
        assert examples.labels.bincount().tolist() == [len(examples) // 4] * 4 or part is tasks[1].train
    assert first(tasks[0]).shape == (8, 3, 64, 64)
    name, arguments = tasks.architecture
    assert create(name, **arguments).eval()(first(tasks[0])).shape == (8, 512)
    assert len(stream("split-tinyimagenet", data_dir=tmp_path, options={"split": 40})) == 40


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("wnids.txt", b"n1\nn2\n", "wnids.txt: expected 40 different names, got 2"),
        ("wnids.txt", b"../../etc\n" * 40, "wnids.txt: expected 40 different names"),
        ("wnids.txt", b"\xff\xfe", "wnids.txt: expected ASCII text"),
        ("wnids.txt", None, "expected tiny-imagenet-200/wnids.txt, got none of this name"),
        (
            "wnids.txt",
            b"n" * 2**22,
            "length of member tiny-imagenet-200/wnids.txt in bytes: expected at most 2,097,152",
        ),
        ("val/val_annotations.txt", b"", "validation images of n00000000: expected 2, got 0"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn9\n", "expected an image and its class, got"),
        ("val/val_annotations.txt", b"../x.JPEG\tn00000000\n", "expected an image and its class"),
        ("val/images/val_0.JPEG", b"no image", "val_0.JPEG: expected a JPEG image, got something else"),
        ("val/images/val_0.JPEG", picture("JPEG", 65, 0, "RGB"), "expected RGB 64x64, got RGB 65x65"),
        ("val/images/val_0.JPEG", picture("PNG", 64, 0, "RGB"), "expected a JPEG image"),
        ("val/images/val_0.JPEG", picture("JPEG", 64, 0, "RGB")[:-200], "cannot be read"),
        ("train/n00000000/images/n00000000_3.JPEG", None, "n00000000_3.JPEG, got none of this name"),
    ],
)
def test_tinyimagenet_refuses(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    files = tiny_files(40, 10, 2)
    key = f"tiny-imagenet-200/{name}"
    if content is None:
        del files[key]
    else:
        files[key] = content
    path = tmp_path / "tiny-imagenet-200.zip"
    write_files(path, files)
    with pytest.raises(DataError) as caught:
        list(stream("split-tinyimagenet", data_dir=tmp_path, tasks=1))
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert "\n" not in message


# Omniglot


@pytest.fixture
def omniglot_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(omniglot, "ARCHIVES", {"images_background.zip": 20, "images_evaluation.zip": 10})
    write_files(tmp_path / "images_background.zip", omniglot_files("images_background", [11, 9], 0))
    write_files(tmp_path / "images_evaluation", omniglot_files("images_evaluation", [10], 20))
    return tmp_path


def test_omniglot_rotation(omniglot_dir: Path) -> None:
    tasks, other = (stream("omniglot-rotation", data_dir=omniglot_dir, tasks=2, seed=seed) for seed in (0, 1))
    assert [task.classes for task in tasks] == [12, 12]
    assert tasks[0].class_names[0] == "Alphabet_0/character01"
    assert tasks[0].class_names[11] == "Alphabet_1/character01"
    assert tasks[1].class_names[11] == "Alphabet_0/character04"  # of the second archive
    assert sizes(tasks[1]) == (12 * 52, 12 * 8, 12 * 20)
    inputs = first(tasks[1])
    assert inputs.shape == (8, 1, 32, 32)
    assert (float(inputs.min()), float(inputs.max())) == (0, 1)
    assert float(inputs.mean()) < 0.25  # of ink
    # How much ink a drawing has tells its drawer: none of them is in two parts, and each has four rotations.
    seen = []
    for part in (tasks[0].train, tasks[0].validation, tasks[0].test):
        examples = arrays(part)
        ink = (255 - examples.inputs[examples.labels == 3].float()).sum((1, 2, 3)).round().int().tolist()
        assert all(ink.count(amount) == 4 for amount in ink)
        seen.append({*ink})
    assert [len(part) for part in seen] == [13, 2, 5]
    assert len(seen[0] | seen[1] | seen[2]) == 20
    quarters = arrays(tasks[0].test).inputs[:4, 0]
    for quarter in range(4):
        assert torch.equal(quarters[quarter], quarters[0].rot90(quarter))
    assert not torch.equal(arrays(tasks[0].test).inputs, arrays(other[0].test).inputs)
    name, arguments = tasks.architecture
    assert create(name, **arguments)(inputs).shape == (8, 512)


def test_omniglot_refuses(omniglot_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = omniglot_dir / "images_evaluation" / "Alphabet_0" / "character01" / "0021_05.png"
    whole = drawing.read_bytes()
    for content, words in (
        (picture("PNG", 104, 0), "0021_05.png: expected L 105x105, got L 104x104"),
        (whole[:60], "cannot be read"),
        (b"", "expected a PNG image"),
        (bytes(2**15), "0021_05.png: cannot be read: expected at most 16,384 bytes, got 32,768"),
    ):
        drawing.write_bytes(content)
        with pytest.raises(DataError, match=words):
            list(stream("omniglot-rotation", data_dir=omniglot_dir, tasks=2))
    drawing.unlink()
    with pytest.raises(DataError, match=r"drawings of images_evaluation/Alphabet_0/character01: expected 20, got 19"):
        stream("omniglot-rotation", data_dir=omniglot_dir)
    monkeypatch.setitem(omniglot.ARCHIVES, "images_background.zip", 21)
    with pytest.raises(DataError, match=r"images_background.zip: characters: expected 21, got 20"):
        stream("omniglot-rotation", data_dir=omniglot_dir)
    (omniglot_dir / "images_background.zip").unlink()
    with pytest.raises(DataError, match=r"found no images_background.zip or images_background/ in .*--download"):
        stream("omniglot-rotation", data_dir=omniglot_dir)


# Five data sets


def letters(count: int) -> dict[str, bytes | str]:
    """As notMNIST: images in shades that tell their letter, two that are empty, one with a long name."""
    names = [f"notMNIST_small/{'ABCDEFGHIJ'[i % 10]}/{'x' * (100 * (i == 3))}{i}.png" for i in range(count)]
    members: dict[str, bytes | str] = dict.fromkeys(notmnist.EMPTY, b"")
    members |= {name: picture("PNG", 28, 20 * (i % 10)) for i, name in enumerate(names)}
    return members | {"notMNIST_small/A/link.png": "/etc/passwd", "../evil.png": b"x"}


@pytest.fixture
def five_dir(sheets_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(svhn, "PARTS", {"train_32x32.mat": 50, "test_32x32.mat": 20})
    monkeypatch.setattr(notmnist.read, "__defaults__", (100,))
    (tmp_path / "cifar10").symlink_to(sheets_dir / "cifar10")
    write_mnist(tmp_path)
    write_mnist(tmp_path / "fashion-mnist")
    (tmp_path / "svhn").mkdir()
    for name, count in svhn.PARTS.items():
        values = np.zeros((32, 32, 3, count), np.uint8)
        values[5, 7] = np.arange(count)  # row 5, column 7
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        (tmp_path / "svhn" / name).write_bytes(mat({"X": values, "y": labels}))
    write_tar(tmp_path / notmnist.ARCHIVE, letters(100))
    return tmp_path


def test_five_datasets(five_dir: Path) -> None:
    tasks = stream("five-datasets", data_dir=five_dir)
    assert [task.name for task in tasks] == ["cifar10", "mnist", "svhn", "fashion-mnist", "notmnist"]
    assert [sizes(task) for task in tasks] == [
        (45_000, 5_000, 10_000),
        (54_000, 6_000, 10_000),
        (45, 5, 20),
        (54_000, 6_000, 10_000),
        (81, 9, 10),
    ]
    assert tasks[3].class_names[0] == "T-shirt"
    assert tasks[4].class_names == tuple("ABCDEFGHIJ")
    for number, task in enumerate(tasks):
        raw = data.raw("five-datasets", number + 1)
        assert first(task).shape == (8, 3, 32, 32)
        assert torch.equal(raw.transform(arrays(task.test).inputs[:4]), arrays(task.test).batch(torch.arange(4))[0])
    house = arrays(tasks[2].test)
    assert house.labels.tolist() == [*range(1, 10), 0] * 2
    assert house.inputs[:, 1, 5, 7].tolist() == list(range(20))
    assert int(house.inputs.sum()) == 3 * sum(range(20))
    letter = arrays(tasks[4].train)
    assert torch.equal(letter.inputs[:, 0].long(), 20 * letter.labels)
    padded = five_datasets.PaddedColour()(torch.full((1, 784), 255, dtype=torch.uint8))
    assert padded[0, 0, 1, 1] == padded[0, 0, 0, 0] < padded[0, 0, 2, 2] == padded[0, 0, 29, 29]
    held = [arrays(stream("five-datasets", data_dir=five_dir, seed=seed)[4].test).inputs for seed in (0, 1)]
    assert not torch.equal(*held)


def test_svhn_refuses(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    for wrong in (0, 11):
        path.write_bytes(mat({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [wrong]], np.uint8)}))
        with pytest.raises(DataError, match=rf"labels: expected 1 to 10, got {wrong} for example 1"):
            svhn.read(path, 2)
    with pytest.raises(DataError, match=r"found no train_32x32.mat and test_32x32.mat in .* or .*svhn"):
        svhn.load(tmp_path / "none", download=False)


def test_notmnist_refuses(tmp_path: Path) -> None:
    path = tmp_path / notmnist.ARCHIVE
    for change, words in (
        ({"notMNIST_small/A/new.png": b""}, "member notMNIST_small/A/new.png: expected a PNG image"),
        ({"notMNIST_small/A/new.png": picture("PNG", 27, 0)}, "expected L 28x28, got L 27x27"),
        ({"notMNIST_small/A/new.png": bytes(2**15)}, "in bytes: expected at most 16,384, got 32,768"),
        ({"notMNIST_small/A/new.png": picture("PNG", 28, 0)}, "images: expected 20, got more"),
    ):
        write_tar(path, {**change, **letters(20)})
        with pytest.raises(DataError, match=words):
            notmnist.read(path, 20)
    write_tar(path, letters(20))
    with pytest.raises(DataError, match="images: expected 21, got 20"):
        notmnist.read(path, 21)
    write_tar(path, letters(5))
    with pytest.raises(DataError, match="letters: expected A to J, got 5 of them"):
        notmnist.read(path, 5)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("notMNIST_small/A/a.png")
        archive.addfile(member)
    path.write_bytes(file.getvalue()[:-20])
    with pytest.raises(DataError, match=r"notMNIST_small\.tar\.gz"):
        notmnist.read(path, 20)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("split-mnist", (784,), {}),
        ("rotated-mnist", (784,), {}),
        ("split-cifar100", (3, 32, 32), {"split": 20}),
        ("split-tinyimagenet", (3, 64, 64), {}),
        ("omniglot-rotation", (1, 32, 32), {}),
        ("folder", (3, 48, 48), {"image_size": 48}),
    ],
)
def test_what_a_task_reads_is_known_without_data(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    raw = data.raw(name, 2, seed=3, options=options)
    assert raw.shape == shape
    assert raw.transform(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, *shape)
    assert raw.image is not None
