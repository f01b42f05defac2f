"""The compiled library: found, checked and loaded."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import torch

from lps_kernels._version import __version__

LIBRARY = "_C.abi3.so"
MINIMUM_TORCH = (2, 13)
REMEDY = "run `pip install .` in the clone"


def find_library() -> Path | None:
    """Beside the source (editable install), else in the installed distribution.

    Python run from the clone's root imports the source package, while ``pip install .`` puts the library into
    site-packages: the distribution's own file list leads there.
    """
    beside = Path(__file__).resolve().parent.parent / LIBRARY
    if beside.exists():
        return beside
    # All of them: run from the clone, the first is the metadata that a build left there, which lists no library.
    for distribution in metadata.distributions(name="learn-prune-share"):
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file)))
            if file.name == LIBRARY and path.exists():
                return path
    return None


def load() -> tuple[bool, str]:
    """Load the library; returns whether it is active, and from where or why not."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        return False, f"torch {torch.__version__} is older than 2.13, for which the library is built"
    path = find_library()
    if path is None:
        remedy = REMEDY if sys.platform == "linux" else "it is for Linux alone"
        return False, f"no built library ({LIBRARY}) was found; {remedy}"
    built = _version_of(path)
    if built != __version__:
        return False, f"{path} was built for version {built}, but this is {__version__}; {REMEDY}"
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        return False, f"{path} cannot be loaded ({error}); {REMEDY}"
    return True, f"{path}, {torch.ops.lps._cpu_isa()}"


def _version_of(path: Path) -> str:
    """The version stamped into the library, read without loading it."""
    marker = b"lps-kernels-version="
    content = path.read_bytes()
    start = content.find(marker)
    if start < 0:
        return "unknown"
    start += len(marker)
    return content[start : content.index(b"\0", start)].decode()
