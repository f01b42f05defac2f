"""Streams of tasks: their sizes, their randomness, and the inputs that the network gets."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lps import models
from lps.data import BENCHMARKS, cifar, digits, mnist, stream
from lps.data.augment import crop_and_flip
from lps.data.base import Examples, Stream, hold_out, of_classes, random
from lps.data.mixed import AsColour
from lps.data.permuted import Permute, permutation
from lps.errors import ConfigError, DataError
from lps.sources import Arrays
from lps.task import Task, TaskData
from torch import Tensor, nn

from tests.data.making import write_mnist
from tests.data.test_files import write_tar


def arrays(dataset: TaskData | None) -> Arrays:
    assert isinstance(dataset, Arrays)
    return dataset


def sizes(task: Task) -> tuple[int, int, int]:
    return len(arrays(task.train)), len(arrays(task.validation)), len(arrays(task.test))


def first(task: Task, count: int = 8) -> Tensor:
    inputs: Tensor = arrays(task.train).batch(torch.arange(count))[0]
    return inputs


def check_labels(task: Task) -> None:
    for part in (task.train, task.validation, task.test):
        assert sorted(set(arrays(part).labels.tolist())) == list(range(task.classes)) == list(range(10))


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("mnist", {}, "expected one of permuted-digits, permuted-mnist, split-cifar, split-rf, synthetic-rf, mixed"),
        ("permuted-digits", {"tasks": 0}, "tasks: expected 1 to 127, got 0"),
        ("permuted-digits", {"tasks": 128}, "expected 1 to 127, got 128"),
        ("split-cifar", {"tasks": 7}, "expected 1 to 6, got 7"),
        ("mixed", {"tasks": 6}, "expected 1 to 5, got 6"),
        ("permuted-digits", {"seed": -1}, "seed"),
        (
            "permuted-digits",
            {"options": {"window": 32}},
            "permuted-digits: window: is no option of this benchmark (it is an option of split-rf, synthetic-rf)",
        ),
        ("synthetic-rf", {"options": {"size": 32}}, "size: is no option of this benchmark (known are window)"),
        (
            "synthetic-rf",
            {"options": {"window": 0}},
            "synthetic-rf: window: expected 1 to 2147483647 samples, got 0",
        ),
        ("permuted-digits", {"augment": True}, "permuted-digits: augment: only colour images"),
        ("permuted-mnist", {"augment": True}, "permuted-mnist: augment: only colour images"),
        ("split-rf", {"augment": True}, "split-rf: augment: only colour images"),
    ],
)
def test_settings_that_cannot_be_used(name: str, options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stream(name, **options)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("permuted-mnist", "train-images-idx3-ubyte.gz"),
        ("split-cifar", "cifar-10-binary.tar.gz"),
        ("split-rf", "train.npz"),
        ("mixed", "train-images-idx3-ubyte.gz"),
    ],
)
def test_missing_files_are_named(name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError) as caught:
            stream(name, data_dir=folder)
        message = str(caught.value)
        assert file in message
        assert str(folder) in message
        assert "--data-dir" in message
        assert ("--download" in message) == (name != "split-rf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path / "learn-prune-share")):
        stream(name)


def test_tasks_are_built_once_and_when_asked_for() -> None:
    built: list[int] = []

    def build(number: int) -> Task:
        built.append(number)
        return Task(str(number), 10, Arrays(torch.ones(1), torch.ones(1)), Arrays(torch.ones(1), torch.ones(1)))

    tasks = Stream("name", ("mlp", {}), 4, build)
    assert len(tasks) == 4
    assert built == []
    assert tasks[2].name == tasks[-2].name == "2"
    assert [task.name for task in tasks[1:3]] == ["1", "2"]
    assert [task.name for task in tasks] == ["0", "1", "2", "3"]
    assert built == [2, 1, 0, 3]
    with pytest.raises(IndexError):
        tasks[4]


def test_the_default_networks_fit_the_inputs() -> None:
    for benchmark, shape in (("permuted-digits", (2, 64)), ("synthetic-rf", (2, 2, 64))):
        tasks = stream(benchmark, options={"window": 64} if benchmark == "synthetic-rf" else {})
        assert len(tasks) == BENCHMARKS[benchmark].tasks
        assert tasks.name == benchmark
        inputs = first(tasks[0], 2)
        assert inputs.shape == shape
        name, arguments = tasks.architecture
        network: nn.Module = models.create(name, **arguments)
        assert len(network.eval()(inputs)) == 2


def test_digits_are_the_embedded_ones() -> None:
    train, test = digits.load()
    assert train.inputs.shape == (1437, 64)
    assert test.inputs.shape == (360, 64)
    assert int(train.inputs.max()) == 16
    assert test.labels.bincount().tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    tasks = stream("permuted-digits")
    assert sizes(tasks[0]) == sizes(tasks[4]) == (1294, 143, 360)
    check_labels(tasks[3])
    assert tasks[3].class_names == tuple("0123456789")
    inputs = first(tasks[1], 500)
    assert inputs.dtype == torch.float32
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)


def test_more_tasks_leave_the_first_ones_as_they_are_and_another_seed_does_not() -> None:
    few, many, other = (stream("permuted-digits", tasks=n, seed=seed) for n, seed in ((2, 3), (127, 3), (2, 4)))
    for number in range(2):
        assert torch.equal(first(few[number]), first(many[number]))
    assert not torch.equal(first(few[1]), first(other[1]))
    assert not torch.equal(first(many[125]), first(many[126]))
    assert torch.equal(arrays(few[1].test).inputs, arrays(other[1].test).inputs)  # the test set has no seed


def test_a_permutation_is_one_for_all_images_and_task_1_has_none() -> None:
    tasks = stream("permuted-digits", seed=1)
    order = permutation(1, 2, 64)
    assert order is not None
    assert order.sort().values.tolist() == list(range(64))
    for part in ("train", "validation", "test"):
        plain, permuted = (arrays(getattr(tasks[i], part)).batch(torch.arange(50))[0] for i in (0, 2))
        assert torch.equal(permuted, plain[:, order])
    raw = arrays(tasks[0].test)
    assert torch.equal(raw.batch(torch.arange(360))[0] * 16, raw.inputs.float())


def test_permutations_share_one_copy_of_the_images() -> None:
    tasks = stream("permuted-digits")
    assert arrays(tasks[0].train).inputs.data_ptr() == arrays(tasks[4].train).inputs.data_ptr()


def test_held_out_examples_are_a_tenth_and_apart() -> None:
    everything = Examples(torch.arange(105), torch.arange(105) % 10)
    kept, held = hold_out(everything, random(0, "validation"))
    assert len(held.inputs) == 10
    assert torch.cat([kept.inputs, held.inputs]).sort().values.tolist() == list(range(105))
    for part in (kept, held):
        assert torch.equal(part.labels, part.inputs % 10)
    again = hold_out(everything, random(0, "validation"))[1]
    other = hold_out(everything, random(1, "validation"))[1]
    assert torch.equal(held.inputs, again.inputs)
    assert not torch.equal(held.inputs, other.inputs)


def test_classes_are_numbered_in_the_order_asked_for() -> None:
    examples = Examples(torch.arange(6), torch.tensor([7, 2, 9, 2, 0, 7], dtype=torch.uint8))
    chosen = of_classes(examples, [7, 2])
    assert chosen.inputs.tolist() == [0, 1, 3, 5]
    assert chosen.labels.tolist() == [0, 1, 1, 0]


def test_permuted_mnist(mnist_dir: Path) -> None:
    tasks = stream("permuted-mnist", data_dir=mnist_dir)
    assert len(tasks) == 10
    assert sizes(tasks[0]) == sizes(tasks[9]) == (54_000, 6_000, 10_000)
    check_labels(tasks[9])
    order = permutation(0, 9, 784)
    assert order is not None
    assert torch.equal(first(tasks[9]), first(tasks[0])[:, order])
    assert torch.equal(first(tasks[0]), arrays(tasks[0].train).inputs[:8].float() / 255)


def test_mnist_files_may_be_unpacked_and_lie_in_the_directory_itself(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert len(mnist.load(tmp_path, download=False)[1].labels) == 10_000
    (tmp_path / packed.stem).unlink()
    with pytest.raises(DataError, match=r"found no t10k-images-idx3-ubyte\.gz or t10k-images-idx3-ubyte in"):
        mnist.load(tmp_path, download=False)


def test_split_cifar(sheets_dir: Path) -> None:
    tasks = stream("split-cifar", data_dir=sheets_dir)
    assert len(tasks) == 6
    assert sizes(tasks[0]) == (45_000, 5_000, 10_000)
    assert [task.name for task in tasks] == ["cifar10", *(f"cifar100-{n}-{n + 9}" for n in range(0, 50, 10))]
    assert tasks[0].class_names[:2] == ("airplane", "automobile")
    assert tasks[5].class_names[:2] == ("lamp", "lawn_mower")  # classes 40 and 41
    for task in tasks[1:]:
        assert sizes(task) == (4_500, 500, 1_000)
        assert task.augment is None
        check_labels(task)
    raw, seen = arrays(tasks[5].test).inputs[:8].double(), arrays(tasks[5].test).batch(torch.arange(8))[0]
    mean, std = (torch.tensor(part, dtype=torch.float64).view(3, 1, 1) for part in (cifar.MEAN, cifar.STD))
    assert seen.dtype == torch.float32
    torch.testing.assert_close(seen.double(), (raw / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_one_task_of_split_cifar_needs_no_cifar_100(sheets_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar10").symlink_to(sheets_dir / "cifar10")
    assert len(stream("split-cifar", data_dir=tmp_path, tasks=1)) == 1
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz"):
        stream("split-cifar", data_dir=tmp_path)


def test_cifar_from_the_official_archive_and_its_folder(tmp_path: Path) -> None:
    """Records of the official sizes; pixel 0 holds the fine label."""
    members: dict[str, bytes | str] = {}
    for part, count in (("train", 50_000), ("test", 10_000)):
        rows = np.zeros((count, 3074), np.uint8)
        rows[:, 1] = rows[:, 2] = np.arange(count) % 100
        rows[:, 0] = rows[:, 1] // 5
        members[f"cifar-100-binary/{part}.bin"] = rows.tobytes()
    write_tar(tmp_path / "cifar-100-binary.tar.gz", members)
    train, test = cifar.load(cifar.CIFAR100, tmp_path, download=False)
    assert torch.equal(train.inputs[:, 0, 0, 0], train.labels)
    task = cifar.part_of_hundred(train, test, first=90, seed=0, augment=True)
    assert sizes(task) == (4_500, 500, 1_000)
    assert torch.equal(arrays(task.test).inputs[:, 0, 0, 0] - 90, arrays(task.test).labels)
    assert (task.class_names[0], task.class_names[9]) == ("train", "worm")
    assert task.augment is crop_and_flip
    (tmp_path / "cifar-100-binary.tar.gz").unlink()
    (tmp_path / "cifar-100-binary").mkdir()
    data = members["cifar-100-binary/test.bin"]
    assert isinstance(data, bytes)
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(data)
    with pytest.raises(DataError, match=r"train\.bin: cannot be read: No such file"):
        cifar.load(cifar.CIFAR100, tmp_path, download=False)
    # The right number of test images, but of the wrong classes.
    with pytest.raises(DataError, match="expected 5000 and 1000, got 5000 and 0"):
        cifar.part_of_hundred(train, Examples(test.inputs, test.labels * 0 + 99), first=0, seed=0, augment=False)


def test_mixed(mnist_dir: Path, sheets_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mnist").symlink_to(mnist_dir / "mnist")
    (tmp_path / "cifar100-first50").symlink_to(sheets_dir / "cifar100-first50")
    tasks = stream("mixed", data_dir=tmp_path, augment=True)
    assert [task.name for task in tasks] == ["mnist-1", "cifar100-0-9", "mnist-2", "cifar100-10-19", "mnist-3"]
    assert [sizes(task)[0] for task in tasks] == [54_000, 4_500, 54_000, 4_500, 54_000]
    for task in tasks:
        assert first(task).shape == (8, 3, 32, 32)
        check_labels(task)
    assert not torch.allclose(first(tasks[0]), first(tasks[2]))
    # Permuted digits have no left and right.
    assert [task.augment for task in tasks] == [None, crop_and_flip, None, crop_and_flip, None]


def test_mixed_digits_are_permuted_then_repeated_then_resized() -> None:
    images = torch.randint(0, 256, (5, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    order = permutation(0, 1, 784)
    repeated = Permute(order, 255)(images).view(5, 1, 28, 28).repeat(1, 3, 1, 1)
    resized = nn.functional.interpolate(repeated, (32, 32), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (cifar.MEAN, cifar.STD))
    torch.testing.assert_close(AsColour(order)(images), (resized - mean) / std, rtol=1e-4, atol=1e-5)
