"""``python -m tests.fuzz READER --seconds N``: coverage-guided fuzzing of one reader, or of ``all``, with atheris.

Starts from the files in ``tests/fuzz/corpus/READER``; with ``--corpus DIR``, inputs that reach new code are kept in
DIR/READER, where the next run goes on. Exits with 0 if nothing was found; else the input is written to ``crash-...`` in
the current directory (``timeout-...`` if reading takes more than 30 seconds) and can be read again with ``--input``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import atheris

# Whose Python code is watched; decoders in C are not.
WATCHED = ["lps", "gzip", "zipfile", "PIL"]
MOST_SECONDS = 30  # for one input; watched code is slow, and the machine may be busy
MOST_BYTES = 20_000  # of one input; none of the corpus is larger


def main() -> int:
    """Run the command; returns its exit code."""
    with atheris.instrument_imports(include=WATCHED):
        readers = importlib.import_module("tests.fuzz.readers")
        importlib.import_module("PIL.Image").init()  # imports the decoders
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="Fuzz readers.")
    parser.add_argument("reader", choices=[*readers.READERS, "all"])
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="where inputs that reach new code are kept")
    parser.add_argument("--input", type=Path, help="read this file and do nothing else")
    options = parser.parse_args()
    if options.input is not None:
        readers.check(readers.READERS[options.reader], options.input.read_bytes())
        return 0
    chosen = list(readers.READERS) if options.reader == "all" else [options.reader]
    return max(_in_a_process(readers, name, options) for name in chosen)


def _in_a_process(readers: Any, name: str, options: argparse.Namespace) -> int:
    """Fuzz a reader in a process of its own, which libFuzzer ends; returns its exit code."""
    process = os.fork()
    if process == 0:
        _fuzz(readers, name, options)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print(f"{name}: {'nothing found' if code == 0 else f'exit code {code}'}", flush=True)
    return abs(code)


def _fuzz(readers: Any, name: str, options: argparse.Namespace) -> None:
    reader = readers.READERS[name]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        other: bytes = reader.mutate(data, Random(seed), lambda part: atheris.Mutate(part, len(part) + 64))
        return other[:most]

    found = (options.corpus or readers.FOLDER / "corpus") / name
    found.mkdir(parents=True, exist_ok=True)
    flags = {
        "max_total_time": options.seconds,
        "seed": options.seed,
        "timeout": MOST_SECONDS,
        "max_len": MOST_BYTES,
        "rss_limit_mb": 0,  # the property measures memory itself, input by input
        "print_final_stats": 1,
    }
    # libFuzzer writes into the first folder.
    arguments = [*(f"-{flag}={value}" for flag, value in flags.items()), str(found), str(readers.CORPUS / name)]
    atheris.Setup([sys.argv[0], *arguments], lambda data: readers.check(reader, data), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
