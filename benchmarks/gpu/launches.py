"""The dynamic shared memory of every CUDA kernel's launch, which no cubin knows.

The expressions are those that the launchers in ``csrc/cuda`` pass. They are compiled together with the kernels, as the
lengths of arrays, and read back from the cubin: the sizes follow the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

STATE = ("float", "double")
FLOATS = ("float", "double", "__half", "__nv_bfloat16")
MATRIX = ("float", "double", "f16", "bf16")

NOTHING = ("0", ("",))
_PRODUCT = {
    "matrix_product": ("2 * kPlanes<T> * kPlane<T> * sizeof(Word<T>)", MATRIX),
    "add_parts": NOTHING,
    "finish_absent": NOTHING,
}
# By file and kernel: bytes, for each element type T that the kernel is made for.
SHARED: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "bits": {"pack_bits_kernel": NOTHING, "unpack_bits_kernel": NOTHING},
    "compose": {"compose_kernel": NOTHING, "compose_owned_kernel": NOTHING},
    "convolution": _PRODUCT,
    "linear": _PRODUCT,
    "project": {
        "project_kernel": ("sizeof(WriteShared<KeyOf<T>>)", FLOATS),
        "admm_update_kernel": ("sizeof(WriteShared<KeyOf<T>>)", STATE),
    },
    "scores": {
        "score_parts_kernel": ("sizeof(ScoreJob)", ("",)),
        "score_fold_kernel": ("sizeof(ScoreJob)", ("",)),
        "single_scores_kernel": ("sizeof(SingleRow)", ("",)),
    },
    "select": {
        "sample_kernel": ("sizeof(SampleShared<KeyOf<T>>)", FLOATS),
        "collect_kernel": ("sizeof(CollectShared<KeyOf<T>>)", FLOATS),
        "resolve_kernel": ("sizeof(RankShared)", ("",)),
    },
    "sparse": {
        "sparse_many": ("sizeof(SparseTile<T, kManyPositions<T>>)", MATRIX),
        "sparse_few": ("sizeof(SparseTile<T, kFewPositions<T>>)", MATRIX),
        "add_parts": NOTHING,
    },
    "step": {
        "proximal_adam_kernel": ("sizeof(AdamShared<T>)", STATE),
        "proximal_grad_kernel": ("sizeof(GradRow)", ("",)),
    },
    "upload": {"upload_kernel": NOTHING},
}

Sizes = dict[tuple[str, str], int]


def _asked(source: Path) -> Iterator[tuple[str, str, str]]:
    """Kernel, element and expression of everything in a file that takes shared memory."""
    for family, (expression, elements) in SHARED.get(source.stem, {}).items():
        for element in elements:
            yield family, element, re.sub(r"\bT\b", element, expression)


def with_sizes(source: Path) -> str:
    """A source that includes this one and has an array as long as the shared memory of each of its launches, plus 1."""
    arrays = [
        f"__device__ char shared_of_launch_{i}[{expression} + 1];"
        for i, (_, _, expression) in enumerate(_asked(source))
    ]
    return "\n".join([f'#include "{source}"', 'namespace lps { extern "C" {', *arrays, "} }", ""])


def read_sizes(source: Path, elf: str) -> Sizes:
    """From the cubin's symbol table, the sizes by kernel and element; no element where it makes no difference."""
    symbols = re.findall(r"^\s*\w+\s+\w+\s+(\w+)\s.*?\bshared_of_launch_(\d+)\s*$", elf, re.MULTILINE)
    by_index = {int(index): int(length, 16) - 1 for length, index in symbols}
    return {(family, element): by_index[i] for i, (family, element, _) in enumerate(_asked(source))}
