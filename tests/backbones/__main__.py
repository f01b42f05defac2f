"""``python -m tests.backbones [NAME ...] [--write]``: try every cell of the table and show what fails; ``--write`` puts
the table into ``docs/backbones.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.backbones.cases import COLUMNS, ROWS, WHY, Case
from tests.backbones.page import write


def main(arguments: list[str]) -> int:
    """Run the cells; the exit code is 1 if a cell is not as the table says."""
    if "--write" in arguments:
        write()
    wrong = 0
    for name in [argument for argument in arguments if argument != "--write"] or ROWS:
        begin = perf_counter()
        with TemporaryDirectory() as folder:
            case = Case(name, Path(folder))
            accuracy = ", ".join(f"{share:.2f}" for share in case.accuracy)
            print(f"{name}: learnt in {perf_counter() - begin:.1f} s, {accuracy}", flush=True)
            for column, check in COLUMNS.items():
                begin = perf_counter()
                try:
                    check(case)
                    said = "ok"
                except Exception as error:  # of any kind: it is what the cell shows
                    said = f"{type(error).__name__}: {str(error).strip()[:300]}"
                expected = (name, column) not in WHY
                wrong += (said == "ok") != expected
                print(f"  {column}: {said} ({perf_counter() - begin:.1f} s)", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
