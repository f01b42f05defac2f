"""Where the weights of every task are, and what later tasks reuse of them: from a network."""

from __future__ import annotations

import zlib
from base64 import b64encode
from struct import pack

import torch
from torch import Tensor

from lps.lifelong import Lifelong
from lps.pages.charts import NOTHING, heat_map, stacked, task_colour
from lps.pages.svg import Figure
from lps.partition import Partition
from lps.runs.metrics import capacity_per_layer
from lps_kernels import unpack_bits
from lps_kernels.owner import TASK_BITS

PICTURES = 6  # of the largest layers
ROWS, COLUMNS = 64, 128  # of such a picture, at most


def is_divided(net: Lifelong) -> bool:
    """Whether several tasks own weights; otherwise there is nothing to show."""
    owners = {task for shares in capacity_per_layer(net).values() for task, share in enumerate(shares) if share > 0}
    return len(owners) > 1


def owner_map(name: str, row: str, net: Lifelong) -> Figure:
    """A bar per layer, and a picture of the largest ones."""
    partitions = [partition for partition, _ in net.prunable()]
    largest = sorted(partitions, key=lambda partition: -partition.owner.numel())[:PICTURES]
    pictures = {
        partition.name: _picture(partition, len(net.learnt)) for partition in partitions if partition in largest
    }
    text = (
        "Each bar is a layer, divided among the tasks that own its weights. The pictures are weight matrices of the "
        f"largest layers: at most {ROWS} of their rows and {COLUMNS} of their columns, at even distances."
    )
    return stacked(name, f"{row}: who owns which weights", text, capacity_per_layer(net), pictures)


def reuse_map(name: str, row: str, net: Lifelong) -> Figure:
    """Of what each task owns, the share that each later one reuses."""
    text = "A row per task: the share of the weights of each earlier task that it reuses, over all layers."
    return heat_map(name, f"{row}: what later tasks reuse", text, reuse(net), "task", "reuses of task", (0.0, 1.0))


def reuse(net: Lifelong) -> list[list[float | None]]:
    """Row t: of what tasks 1, 2, ... own, the share that task t reuses; None for itself and for later ones."""
    count = len(net.learnt)
    used, owned = torch.zeros(count, count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    for partition, _ in net.prunable():
        owner = (partition.owner & TASK_BITS).flatten().cpu()
        owned += torch.bincount(owner, minlength=count + 1)[1 : count + 1]
        for task in range(1, count + 1):
            mask = unpack_bits(partition.mask(task), partition.shape).flatten().cpu()
            used[task - 1] += torch.bincount(owner[mask], minlength=count + 1)[1 : count + 1]
    return [
        [
            int(used[task, other]) / int(owned[other]) if other < task and int(owned[other]) else None
            for other in range(count)
        ]
        for task in range(count)
    ]


def _picture(partition: Partition, tasks: int) -> str:
    owner = partition.owner.flatten(1) & TASK_BITS
    rows, columns = (
        torch.linspace(0, size - 1, min(size, most)).round().long()
        for size, most in zip(owner.shape, (ROWS, COLUMNS), strict=True)
    )
    return png_address(owner[rows][:, columns].cpu(), [NOTHING, *(task_colour(task) for task in range(1, tasks + 1))])


def png_address(pixels: Tensor, palette: list[str]) -> str:
    """A PNG as a ``data:`` address, of bytes [rows, columns] that are places in a palette of ``#rrggbb``."""
    height, width = pixels.shape
    lines = b"".join(b"\0" + bytes(row) for row in pixels.to(torch.uint8).tolist())

    def chunk(kind: bytes, content: bytes) -> bytes:
        return pack(">I", len(content)) + kind + content + pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    colours = chunk(b"PLTE", b"".join(bytes.fromhex(colour[1:]) for colour in palette))
    image = b"\x89PNG\r\n\x1a\n" + header + colours + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(image).decode()}"
