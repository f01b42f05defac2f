"""``python -m tests.fuzz.seeds``: write the first files of the corpus anew, after a change of a format.

Files that a fuzzer found are added by hand, named for what was wrong.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lps import Lifelong, LPSConfig
from lps.models import create
from lps.runs.checkpoint import encode
from lps.runs.settings import settings_from
from numpy.typing import NDArray
from PIL import Image

from tests.data.making import mat
from tests.fuzz.readers import CORPUS, FOLDER, MEMBERS, RECORDS
from tests.toy import toy_task

RANDOM = np.random.default_rng(0)


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(pack: bool = True, **arrays: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if pack else np.savez)(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def picture(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((24, 20)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def models() -> dict[str, bytes]:
    files = {}
    for norms in ("frozen", "per-task"):
        torch.manual_seed(0)
        net = Lifelong(create("mlp", inputs=6, hidden=[5, 4]), features=4, norms=norms)
        for seed in range(2):
            net.learn(toy_task(seed, (6,)), LPSConfig(alpha=0.3, epochs=(0, 1, 0)))
        net.save(FOLDER / "model")
        files[norms] = (FOLDER / "model").read_bytes()
    return files


def archive() -> bytes:
    """As tar packs CIFAR-10: a folder, another file, the images."""
    return tar_of({"cifar-10-batches-bin/readme.html": b"text", **dict.fromkeys(MEMBERS, bytes(RECORDS))})


def tar_of(members: dict[str, bytes]) -> bytes:
    """A gzipped tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)


def sheets() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 3200), (1, 2, 3)).save(file, "WEBP", lossless=True)
    sheet = np.frombuffer(file.getvalue(), np.uint8)
    return zipped(False, sheets=sheet, offsets=np.array([0, len(sheet)]), labels=np.arange(100, dtype=np.uint8) % 10)


def letters() -> bytes:
    """As notMNIST: one image of each letter."""
    image = io.BytesIO()
    Image.radial_gradient("L").resize((28, 28)).save(image, "PNG")
    return tar_of({f"notMNIST_small/{letter}/a.png": image.getvalue() for letter in "ABCDEFGHIJ"})


def lists() -> bytes:
    """As TinyImageNet with two classes, and a character of Omniglot."""
    file, drawing = io.BytesIO(), io.BytesIO()
    Image.new("1", (105, 105), 1).save(drawing, "PNG")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n1\nn2\n")
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "val_0.JPEG\tn1\t0\t0\t9\t9\n")
        archive.writestr("tiny-imagenet-200/val/images/val_0.JPEG", jpeg(64))
        archive.writestr("file/Greek/character01/0001_01.png", drawing.getvalue())
    return file.getvalue()


def jpeg(side: int) -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").resize((side, side)).convert("RGB").save(file, "JPEG", quality=10)
    return file.getvalue()


def tasks() -> bytes:
    """Two tasks: one that is divided, one that is not."""
    divided = [f"image birds/{part}/{name}/1.png" for part in ("train", "test") for name in ("heron", "stork")]
    whole = [f"image fish/{name}/{number}.png" for name in ("pike", "ide") for number in range(5)]
    return "\n".join([*divided, *whole, "text README", "text fish/pike/notes.txt"]).encode()


def settings() -> dict[str, bytes]:
    chosen = {
        "benchmark": "split-rf",
        "epochs": [[1, 3, 1], [2, 6, 2]],
        "alpha": [0.5, 0.1],
        "beta": "max:0.9",
        "window": 256,
    }
    return {"all": settings_from(chosen).to_yaml().encode(), "few.json": json.dumps(chosen).encode()}


def results() -> bytes:
    task = {"name": "t", "seconds": 1.5, "phase_seconds": {"admm": 1.0}, "digest": "ab", "shares": {"1.weight": 0.5}}
    task |= {f"validation{kind}": None for kind in ("", "_before_projection", "_after_projection")}
    task["residuals"] = [[0.1, 2.5, None]]
    return json.dumps({"accuracy": [[0.9, None], [0.9, 0.8]], "tasks": [task, task], "seed": 0}).encode()


def idx(count: int) -> bytes:
    return bytes([0, 0, 8, 3]) + np.array([count, 28, 28], ">u4").tobytes() + bytes(count * 784)


def seeds() -> dict[str, dict[str, bytes]]:
    """The files of every reader, by name."""
    state = {"step": 3, "rows": (1, 2.5, None), "weights": [torch.zeros(2, 3), torch.ones(2, dtype=torch.uint8)]}
    iq = RANDOM.integers(0, 256, (100, 2, 4), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    return {
        "model": models(),
        "state": {"small": encode(state)},
        "idx": {"plain": idx(3), "packed": gzip.compress(idx(3), mtime=0)},
        "cifar": {"records": bytes(RECORDS), "archive": archive(), "sheets": sheets()},
        "npz": {
            "radio": zipped(iq=iq, labels=np.arange(100, dtype=np.uint8) % 50),
            "captures": zipped(False, iq=np.zeros((2, 5, 2), np.int16), transmitter=np.zeros(2, np.uint8)),
            "named": zipped(ids=np.arange(12).reshape(3, 4), mask=np.ones((3, 4), ">i4")),
        },
        "npy": {
            "floats": saved(np.zeros((3, 12), np.float32)),
            "columns": saved(np.asfortranarray(np.zeros((3, 12), ">f8"))),
            "digits": saved(np.zeros((3, 8, 8), np.uint8)),
            "radio": saved(np.zeros((3, 2, 8), np.uint8)),
            "tokens": saved(np.arange(12, dtype=np.int32).reshape(3, 4)),
        },
        "image": {
            "rgb.png": picture("PNG", exif=exif),
            "palette.png": picture("PNG", "P"),
            "grey.jpeg": picture("JPEG", "L"),
            "turned.jpeg": picture("JPEG", exif=exif, progressive=True),
            "rgba.webp": picture("WEBP", "RGBA", lossless=True),
            "rgb.gif": picture("GIF", "P"),
            "rgb.bmp": picture("BMP", "P"),
            "rgb.tiff": picture("TIFF", compression="tiff_adobe_deflate"),
            "lzw.tiff": picture("TIFF", "L", compression="tiff_lzw"),
            "grey.ppm": picture("PPM", "L"),
        },
        "mat": {
            "packed": mat({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [1]], np.uint8)}),
            "plain": mat({"y": np.array([[10.0], [1.0]]), "X": np.zeros((32, 32, 3, 2), np.uint8)}, packed=False),
        },
        "zip": {"lists": lists()},
        "letters": {"archive": letters()},
        "folder": {"tasks": tasks()},
        "yaml": settings(),
        "json": {"results": results()},
    }


def main() -> None:
    """Write the files."""
    for reader, files in seeds().items():
        for name, content in files.items():
            path = Path(CORPUS / reader / name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    main()
