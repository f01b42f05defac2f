"""Commits one fault on purpose, to show that the sanitizers report it.

python -m tests.native.seeded_fault BRIDGE.so short        an output that lacks its last element
python -m tests.native.seeded_fault BRIDGE.so misaligned   an output that begins between two elements
python -m tests.native.seeded_fault BRIDGE.so shared       two layers, each of a thread, with one output
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.native.build import load

FAULTS = {"short": (32 * 4, 0), "misaligned": (33 * 4, 1)}  # size and offset of room for 33 fp32 weights


def main() -> None:
    bridge = load(Path(sys.argv[1]))
    if sys.argv[2] == "shared":
        runner = bridge.Runner("scalar", bridge.Partition(threads=2, grain=1, reversed=False))
        grad, v, owner = (bridge.Buffer(size=33 * 4, offset=0) for _ in range(3))
        layer = grad.address, v.address, v.address, owner.address, 33
        bridge.proximal_grad(runner, bridge.DType.float32, bridge.Moves.all, 0.5, 0.5, [layer] * 2)
        return
    runner = bridge.Runner("scalar", bridge.Partition(threads=1, grain=1, reversed=False))
    w, mask, w_bar = (bridge.Buffer(size=33 * 4, offset=0) for _ in range(3))
    out = bridge.Buffer(*FAULTS[sys.argv[2]])
    arrays = w.address, mask.address, w_bar.address, out.address
    bridge.compose(runner, bridge.DType.float32, bridge.MaskKind.values, *arrays, 33)


if __name__ == "__main__":
    main()
