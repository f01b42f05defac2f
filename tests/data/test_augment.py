"""Random crops and mirrored images."""

from __future__ import annotations

import torch
from lps.data.augment import PADDING, crop_and_flip
from torch import Tensor
from torch.nn.functional import pad


def variants(image: Tensor) -> dict[bytes, tuple[int, int, bool]]:
    """Every image that augmentation can make of this one, by its bytes."""
    _, height, width = image.shape
    padded = pad(image, (PADDING,) * 4)
    found = {}
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            crop = padded[:, top : top + height, left : left + width]
            for mirrored in (False, True):
                found[(crop.flip(2) if mirrored else crop).contiguous().numpy().tobytes()] = (top, left, mirrored)
    return found


def test_every_crop_and_both_sides_come_up_and_nothing_else() -> None:
    image = torch.randn(3, 10, 7, generator=torch.Generator().manual_seed(0))  # neither square nor of CIFAR's size
    known = variants(image)
    assert len(known) == 162
    torch.manual_seed(0)
    made = crop_and_flip(image.expand(4000, -1, -1, -1))
    assert made.shape == (4000, 3, 10, 7)
    assert made.is_contiguous()
    seen = [known[one.numpy().tobytes()] for one in made]
    assert set(seen) == set(known.values())
    assert 1850 < sum(mirrored for _, _, mirrored in seen) < 2150  # 2000 +- 4.7 standard deviations


def test_every_image_keeps_its_place() -> None:
    images = torch.randn(50, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    before = images.clone()
    for image, made in zip(images, crop_and_flip(images), strict=True):
        assert made.numpy().tobytes() in variants(image)
    assert torch.equal(images, before)


def test_the_global_generator_decides() -> None:
    images = torch.randn(32, 3, 8, 8)
    torch.manual_seed(5)
    first, second = crop_and_flip(images), crop_and_flip(images)
    torch.manual_seed(5)
    assert torch.equal(crop_and_flip(images), first)
    assert not torch.equal(first, second)


def test_channels_last_and_no_images() -> None:
    images = torch.randn(8, 3, 32, 32)
    torch.manual_seed(2)
    expected = crop_and_flip(images)
    torch.manual_seed(2)
    assert torch.equal(crop_and_flip(images.to(memory_format=torch.channels_last)), expected)
    assert crop_and_flip(images[:0]).shape == (0, 3, 32, 32)
