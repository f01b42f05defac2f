"""notMNIST, letters A to J in many fonts: the official ``notMNIST_small.tar.gz``, 28x28, 18,724 images.

Y. Bulatov, "notMNIST dataset", 2011. The archive has no test part: a tenth is held out by the seed of the stream.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lps.data.base import Examples, hold_out, random
from lps.data.download import check_recorded, fetch
from lps.data.files import MOST_PACKED, PASS_OR_DOWNLOAD, missing, tar_members, unlike
from lps.data.images import decode
from lps.options import shown

ARCHIVE = "notMNIST_small.tar.gz"
LETTERS = tuple("ABCDEFGHIJ")
COUNT = 18_724
MOST_BYTES = 2**14  # of one image

# Two members that are empty in the official archive.
EMPTY = (
    "notMNIST_small/A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "notMNIST_small/F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
)


def read(path: Path, count: int = COUNT) -> Examples:
    """Read ``count`` images as flat rows, in the order of their letters and names."""
    found: list[tuple[str, bytes]] = []
    for member in tar_members(path, MOST_PACKED):
        # Members are told by their folder: a long name is cut in their header, and loses its ending.
        folder, _, name = member.name.rpartition("/")
        if not member.plain or folder not in _FOLDERS or name.startswith(".") or member.name in EMPTY:
            continue
        if len(found) == count:
            raise unlike(path, "images", f"{count:,}", "more")
        if member.size > MOST_BYTES:
            where = f"length of member {shown(member.name)} in bytes"
            raise unlike(path, where, f"at most {MOST_BYTES:,}", f"{member.size:,}")
        pixels = decode(member.read(), path, f"member {shown(member.name)}", "PNG", (28, 28), "L")
        found.append((member.name, pixels.tobytes()))
    if len(found) != count:
        raise unlike(path, "images", f"{count:,}", f"{len(found):,}")
    found.sort()
    labels = torch.tensor([_FOLDERS[name.rpartition("/")[0]] for name, _ in found], dtype=torch.uint8)
    letters = {*labels.tolist()}
    if len(letters) != len(LETTERS):
        raise unlike(path, "letters", "A to J", f"{len(letters)} of them")
    pixels = np.frombuffer(b"".join(pixels for _, pixels in found), np.uint8).reshape(count, 784)
    return Examples(torch.from_numpy(pixels.copy()), labels)


_FOLDERS = {f"notMNIST_small/{letter}": label for label, letter in enumerate(LETTERS)}


def load(data_dir: Path, download: bool, seed: int) -> tuple[Examples, Examples]:
    """Read the images and hold out a tenth of them for the test; ``download`` fetches them."""
    path = data_dir / ARCHIVE
    if download and not path.exists():
        fetch("notmnist", data_dir)
    if not path.exists():
        raise missing("notMNIST", (ARCHIVE,), (data_dir,), PASS_OR_DOWNLOAD)
    check_recorded(path)
    return hold_out(read(path), random(seed, "test-notmnist"))
