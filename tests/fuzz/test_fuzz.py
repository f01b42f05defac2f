"""The fuzzers' corpus through every reader, and a short run of every fuzzer."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from random import Random

import lps
import pytest
from lps.runs import checkpoint

from tests.command import ENVIRONMENT, command
from tests.fuzz import mutators
from tests.fuzz.readers import CORPUS, READERS, check

FILES = sorted(CORPUS.glob("*/*"))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_corpus(path: Path) -> None:
    check(READERS[path.parent.name], path.read_bytes())


def test_every_reader_has_a_small_corpus() -> None:
    assert {path.parent.name for path in FILES} == set(READERS)
    assert sum(path.stat().st_size for path in FILES) < 200_000


@pytest.mark.parametrize("name", list(READERS))
def test_mutated_corpus(name: str) -> None:
    """As a fuzzer does, without its guidance: 40 mutations, each of the one before."""
    random = Random(name)

    def plain(data: bytes) -> bytes:
        place = random.randrange(len(data) + 1)
        return data[:place] + random.randbytes(random.choice((0, 1, 4))) + data[place + random.choice((0, 1, 4)) :]

    for path in FILES:
        data = path.read_bytes()
        for _ in range(40 if path.parent.name == name else 0):
            data = READERS[name].mutate(data, random, plain)
            check(READERS[name], data)


def test_mutators_mend_the_sums(tmp_path: Path) -> None:
    """Else a fuzzer would try nothing but wrong checksums."""
    for path in CORPUS.glob("model/*"):
        header, body = mutators.taken_apart(path.read_bytes())
        (tmp_path / "model").write_bytes(mutators.sealed_model(header, body))
        assert len(lps.load(tmp_path / "model").learnt) == 2
    header, body = mutators.taken_apart((CORPUS / "state" / "small").read_bytes())
    assert checkpoint.decode(mutators.sealed_state(header, body))["step"] == 3


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris, which the extra test brings")
def test_every_fuzzer_for_some_seconds(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT}"}
    arguments = command("tests.fuzz", "all", "--seconds", "2", "--seed", "1")
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("nothing found") == len(READERS)
