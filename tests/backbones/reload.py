"""``python -m tests.backbones.reload NAME FILE ANSWERS``: whether a file gives these answers in a new process."""

from __future__ import annotations

import sys

import lps
import numpy as np
import torch

from tests.backbones.cases import ROWS, examples


def main(name: str, file: str, answers: str) -> int:
    """Compare bit by bit."""
    net = lps.load(file, ROWS[name].make()).eval()
    with np.load(answers) as saved, torch.no_grad():
        for number, expected in enumerate(saved.values(), 1):
            got = net(examples(name, number, seed=1)[0], task=number)
            if not torch.equal(got, torch.from_numpy(expected)):
                print(f"task {number} answers otherwise", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
