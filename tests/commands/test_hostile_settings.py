"""Settings that are meant to do harm: over a hundred kinds, in files, flags and the config.yaml of a run.

Each is refused with one sentence or taken for what it says; nothing is imported, and nothing hangs or crashes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from lps import train
from lps.data.options import RadioOptions
from lps.methods.lps.config import LPSConfig
from lps.runs.settings import Settings

from tests.command import ENVIRONMENT, command

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_hang")]

OWN = [option.name for option in fields(Settings) if option.metadata]
NAMES = [*OWN, *(option.name for option in fields(LPSConfig)), *(option.name for option in fields(RadioOptions))]

HOSTILE = {
    "above fp64": "1e999",
    "a whole number above fp64": f"1{'0' * 400}",
    "one below": f"-1{'0' * 400}",
    "one that Python does not print": f"0x{'f' * 5000}",
    "2^63": f"{2**63}",
    "10^20": f"1{'0' * 20}",
    "nan": ".nan",
    "infinity": "-.inf",
    "a tiny number": "1.0e-300",
    "a class": "{class_path: evilmod.X}",
    "a class with arguments": "{class_path: evilmod.X, init_args: {a: 1}}",
    "a class as text": "evilmod.X",
    "a Python object": "!!python/object/apply:evilmod.X []",
    "a Python name": "!!python/name:evilmod.X",
    "a Python module": "!!python/module:evilmod",
    "a tag": "!evilmod.X {a: 1}",
    "bytes": "!!binary aGVsbG8=",
    "a set": "!!set {a, b}",
    "a time": "2001-12-14t21:59:43.10-05:00",
    "a number to the base of 60": "1:1:1:1",
    "NUL": '"a\\0b"',
    "a lone surrogate": '"\\ud800"',
    "two lines": '"a\\nb"',
    "a control sequence": '"\\e[31mred"',
    "a long text": "x" * 5000,
    "a long list": f"[{', '.join(['0'] * 100)}]",
    "nested lists": f"{'[' * 40}{']' * 40}",
    "a list of lists of nothing": "[[], []]",
    "a mapping with a number": "{1: 0.1}",
    "a mapping with nothing": "{null: null}",
    "a mapping to nan": "{'*': .nan}",
    "a mapping to lists": "{'*': [1e999]}",
    "a triple with 10^20": f"[1, 1, 1{'0' * 20}]",
    "triples with nan": "[[.nan, 1, 1]]",
    "a bound above fp64": "max:1e999",
    "a bound of nan": "max:nan",
    "a device that is not there": "cuda:99999999999999999999",
}


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the current directory that tells of its import; it would be found like any other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evilmod.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\nclass X:\n"
        "    def __init__(self, *args, **kwargs):\n        pass\n"
    )
    yield tmp_path / "imported"
    assert not (tmp_path / "imported").exists(), "a setting was imported"
    assert "evilmod" not in sys.modules


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and message: one sentence on one line if it is refused, none if not."""
    try:
        code: object = train.main(list(arguments))
    except SystemExit as stopped:
        code = stopped.code
    message = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert message.count("\n") == (code != 0), message
    assert message.rstrip("\n").isprintable(), message
    assert len(message) < 1000, message
    return code, message


def test_the_module_would_be_found(marker: Path) -> None:
    """Or the tests below would prove nothing."""
    subprocess.run([sys.executable, "-c", "import evilmod"], cwd=marker.parent, check=True)
    assert marker.exists()
    marker.unlink()


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_in_every_setting(capsys: pytest.CaptureFixture[str], value: str) -> None:
    """Over a thousand pairs of a value and a setting, in a file and as a flag."""
    for name in NAMES:
        Path("mine.yaml").write_text(f"{name}: {value}\n" if name in OWN else f"lps: {{{name}: {value}}}\n")
        answer(capsys, "--config", "mine.yaml", "--print-config")
        answer(capsys, f"--{name.replace('_', '-')}={value}", "--print-config")


@pytest.mark.parametrize("name", ["alpha", "dropout", "output", "benchmark", "lps", "options", "device"])
def test_a_class_in_the_settings_of_a_run_that_is_resumed(capsys: pytest.CaptureFixture[str], name: str) -> None:
    small = ("--tasks", "1", "--epochs", "0,1,0", "--threads", "1")
    assert answer(capsys, *small, "--output", "run")[0] == 0
    config = Path("run/config.yaml")
    before, model = config.read_text(), Path("run/model.lps").read_bytes()
    for value in ("{class_path: evilmod.X}", "!!python/object/apply:evilmod.X []", "!!python/name:evilmod.X"):
        lines = [line for line in before.splitlines() if not line.strip().startswith(f"{name}:")]
        config.write_text("\n".join([f"{name}: {value}", *lines]) + "\n")
        code, message = answer(capsys, "--resume", "--output", "run")
        assert code != 0
        assert message
        assert Path("run/model.lps").read_bytes() == model


DEEP = {
    "brackets": "[" * 90_000,
    "braces": "{a: " * 24_000,
    "closed brackets": "[" * 45_000 + "]" * 45_000,
    "block lists": "- " * 45_000,
    "block keys": "? " * 45_000,
    "block mappings": "".join(f"{' ' * depth}a:\n" for depth in range(400)),
    "tags": "!a " * 30_000,
    "anchors": "&a " * 30_000,
    "a bomb of aliases": "a: &a [1, 1]\nb: &b [*a, *a]\nc: &c [*b, *b]\nalpha: [*c, *c]\n",
    "a bomb of merges": "a: &a {x: 1}\nb:\n  <<: [*a, *a, *a]\n",
    "digits to the base of 60": f"seed: {'1:' * 20_000}1",
    "quotes": "'" * 90_000,
    "commas": "[," * 40_000,
    "documents": "---\n" * 20_000,
    "directives": "%YAML 1.1\n" * 8_000,
    "null bytes": "\0" * 1000,
    "a byte order mark": "\ufeffseed: 1",
    "a name a thousand times": "a: 1\n" * 1_000,
    "a long list": f"[{'0,' * 2_000}0]",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_and_long_files_and_flags(capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("mine.yaml").write_text(text)
    code, _ = answer(capsys, "--config", "mine.yaml", "--print-config")
    assert code == 2 or text.startswith("\ufeff")
    for flag in ("--alpha", "--beta", "--dropout", "--epochs"):
        answer(capsys, f"{flag}={text}", "--print-config")


def special(kind: str) -> str:
    """The path of something that is no ordinary file."""
    path = Path("special")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "nowhere":
        path.symlink_to("nothing")
    elif kind == "below a file":
        path.write_text("")
        path /= "below"
    elif kind == "a link to zeros":
        path.symlink_to("/dev/zero")
    elif kind == "a long name":
        path = Path("x" * 300)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # takes no space
    else:
        path = Path(kind)
    return str(path)


KINDS = ["pipe", "folder", "loop", "nowhere", "below a file", "a link to zeros", "a long name", "huge"]
DEVICES = ["/dev/zero", "/dev/full", "/dev/random", "/dev/tty", "/proc/self/mem", "a\0b", "\udcff", "a\nb", ""]


@pytest.mark.parametrize("kind", [*KINDS, *DEVICES], ids=ascii)
def test_what_is_no_file(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """As the settings, as the run to go on with and as the output; as the folder of data too."""
    path = special(kind)
    assert answer(capsys, "--config", path, "--print-config")[0] == 2
    assert answer(capsys, "--resume", "--output", path)[0] != 0
    assert answer(capsys, "--resume", "--config", path)[0] != 0
    assert answer(capsys, "--benchmark", "permuted-mnist", "--data-dir", path, "--output", "new")[0] != 0
    if kind not in ("folder", "a\nb"):  # in these a run can be written
        assert answer(capsys, "--output", path, "--tasks", "1", "--epochs", "0,1,0")[0] != 0
    assert not Path("new").exists()


LARGEST = {
    "epochs": "2147483647,0,0",
    "batch_size": str(2**31 - 1),
    "seed": str(2**63 - 1),
    "stream_seed": str(2**63 - 1),
    "save_every": "1e-300",
    "rho": "1e6",
    "lr": "1e-320",
}


@pytest.mark.parametrize(("name", "value"), LARGEST.items(), ids=LARGEST)
def test_the_largest_values_that_are_taken_can_be_used(
    capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    """No number that passes the checks overflows later."""
    small = {"epochs": "0,1,0", "tasks": "1", "threads": "1", "output": "run", name: value}
    arguments = [part for flag, text in small.items() for part in (f"--{flag.replace('_', '-')}", text)]
    if name == "epochs":  # it would take years; a signal stops it
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.alarm(3)
        assert train.main(arguments) == 128 + signal.SIGTERM
        assert "1 of 1 tasks" not in capsys.readouterr().err
    else:
        assert answer(capsys, *arguments)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--config", "pipe"),
        ("--alpha", "[" * 100_000),
        ("--config", "deep.yaml"),
        ("--config", "evil.yaml"),
        ("--resume", "--output", "run"),
    ],
    ids=["pipe", "brackets", "deep file", "class", "class in a run"],
)
def test_in_a_process_of_its_own(arguments: tuple[str, ...]) -> None:
    """As a shell runs it, with the stack that a process has."""
    os.mkfifo("pipe")
    Path("deep.yaml").write_text("- " * 49_000)
    Path("evil.yaml").write_text("alpha: {class_path: evilmod.X}\n")
    Path("run").mkdir()
    Path("run/config.yaml").write_text("alpha: {class_path: evilmod.X}\n")
    done = subprocess.run(
        command("lps.train", *arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode in (1, 2), done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("lps.train: ")
    assert done.stderr.count("\n") == 1
