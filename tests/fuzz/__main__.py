"""``python -m tests.fuzz READER --seconds N``: coverage-guided fuzzing of one reader, with atheris.

Starts from the files in ``tests/fuzz/corpus/READER``; with ``--corpus DIR``, files that reach new code are kept in DIR,
where the next run goes on. Exits with 0 if nothing was found; else the input is written to ``crash-...`` in the current
directory (``timeout-...`` if a reader takes more than 10 seconds) and can be tried again with ``--input FILE``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from random import Random

import atheris

# What is watched: the package and the Python parts of what its readers use.
WATCHED = ["lps", "zipfile", "gzip", "PIL", "yaml"]
MOST_SECONDS = 10  # for one input
MOST_BYTES = 20_000  # of one input; none of the corpus is larger


def main() -> None:
    """Run the command; libFuzzer ends the process."""
    with atheris.instrument_imports(include=WATCHED):
        readers = importlib.import_module("tests.fuzz.readers")
        importlib.import_module("PIL.Image").init()  # imports the decoders
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="Fuzz one reader.")
    parser.add_argument("reader", choices=list(readers.READERS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="where inputs that reach new code are kept")
    parser.add_argument("--input", type=Path, help="read this file and do nothing else")
    options = parser.parse_args()
    reader = readers.READERS[options.reader]
    if options.input is not None:
        readers.check(reader, options.input.read_bytes())
        return

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        other: bytes = reader.mutate(data, Random(seed), lambda part: atheris.Mutate(part, len(part) + 64))
        return other[:most]

    folders = [readers.CORPUS / options.reader]
    if options.corpus is not None:
        options.corpus.mkdir(parents=True, exist_ok=True)
        folders.insert(0, options.corpus)
    else:  # the first folder is the one that libFuzzer writes to
        folders.insert(0, readers.FOLDER / "found")
        folders[0].mkdir()
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={options.seconds}",
            f"-seed={options.seed}",
            f"-timeout={MOST_SECONDS}",
            f"-max_len={MOST_BYTES}",
            "-rss_limit_mb=0",  # the property measures memory itself, and per input
            "-print_final_stats=1",
            *map(str, folders),
        ],
        lambda data: readers.check(reader, data),
        custom_mutator=mutate,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
