"""What all commands share, and the console command ``lps``: ``lps train ...`` is ``python -m lps.train ...``."""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import argparse
import importlib
import io
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import Field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from lps.data.options import IN_PRESETS
from lps.errors import ConfigError, LPSError, WriteError, complain, escaped
from lps.options import is_unicode, shown

if TYPE_CHECKING:
    import torch

COMMANDS = {
    "train": "learn a benchmark's tasks one after another into one file",
    "compare": "learn a benchmark by several methods with several seeds and compare them in a table",
    "sweep": "learn a benchmark with several values of some settings and compare them in a table",
    "report": "show runs and sets of runs as one page with tables and figures, which loads nothing",
    "eval": "check a file's digests and every task's accuracy",
    "export": "cut one task out of a file, for torch, for ONNX or as a file of its own",
    "info": "list a file's tasks with their classes, shares, accuracies and digests",
    "diff": "compare two files: which tasks answer alike, and which are in only one of them",
    "edit": "rename tasks of a file or remove its last one",
    "infer": "classify arrays or images with one task of a file",
    "serve": "answer requests for every task of one or several files, behind one port",
}

MOST_LETTERS = 600  # of a refusal; argparse repeats arguments of any length

FAILED, REFUSED, INTERRUPTED = 1, 2, 130


class _WithDefaults(argparse.HelpFormatter):
    """Adds what holds if a flag is not given, where its help does not say so itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if text is None or not _is_worth_saying(action.default) or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """Answers bad input with one sentence, without the usage."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_WithDefaults)

    def add_options(
        self,
        title: str,
        options: Iterable[Field[Any]],
        prefix: str = "",
        listed: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Add a flag per field of a settings dataclass (:func:`lps.options.option`), with a prefix of its name; flags
        that are not given stay out of the result. The help lists those whose names are ``listed``.
        """
        group = self.add_argument_group(title)
        for option in options:
            flag = f"--{prefix}{option.name.replace('_', '-')}"
            text = _with_default(option) if listed(f"{prefix}{option.name}") else argparse.SUPPRESS
            place: dict[str, Any] = {"dest": f"{prefix}{option.name}", "default": argparse.SUPPRESS}
            if isinstance(option.default, bool):
                group.add_argument(flag, action="store_true", help=text, **place)
            else:
                read, metavar = _flag_type(option.metadata["read"]), option.metadata["metavar"]
                group.add_argument(flag, type=read, metavar=metavar, help=text, **place)

    def error(self, message: str) -> NoReturn:
        """Print the message on one line, in our words, and exit with 2."""
        sentence = " ".join(message.split()).removeprefix("argument ")
        choice = re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", sentence)
        if choice:
            flag, got, known = choice.groups()
            sentence = f"{flag}: expected one of {known.replace(chr(39), '')}, got {got}"
        if len(sentence) > MOST_LETTERS:
            sentence = f"{sentence[:MOST_LETTERS]}..."
        self.exit(REFUSED, f"{self.prog}: {escaped(sentence)}\n")


def _is_worth_saying(default: object) -> bool:
    return not (default is None or default is False or default in ([], argparse.SUPPRESS))


def _with_default(option: Field[Any]) -> str:
    """A setting's help with its default as its flag takes it."""
    text: str = option.metadata["help"]
    if not _is_worth_saying(option.default) or "default" in text:
        return text
    default = ",".join(map(str, option.default)) if isinstance(option.default, tuple) else option.default
    return f"{text} (default: {'that of the preset, or ' if option.name in IN_PRESETS else ''}{default})"


def whole(text: str) -> int:
    """The type of a flag that takes a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {shown(text)}") from None


def between(low: int, high: int) -> Callable[[str], int]:
    """The type of a flag that takes a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        number = whole(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"expected {low} to {high}, got {shown(text)}")
        return number

    return read


def _flag_type(read: Callable[[str], object]) -> Callable[[str], object]:
    """The reader as argparse needs it: refusals are ArgumentTypeError."""

    def read_flag(text: str) -> object:
        if not is_unicode(text):
            raise argparse.ArgumentTypeError(f"expected text in UTF-8, got {shown(text)}")
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_flag


def guarded(prog: str, command: Callable[[], int]) -> int:
    """Run a command; what the user can put right becomes one sentence instead of a traceback."""
    _fill_streams()
    output = Output(sys.stdout)
    try:
        with redirect_stdout(cast("TextIO", output)):
            code = command()
            output.flush()
        return code
    except LPSError as error:
        sentence, code = str(error), error.exit_code
    except OSError as error:
        sentence, code = f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED
    except KeyboardInterrupt as error:
        sentence, code = str(error) or "interrupted", INTERRUPTED
    complain(prog, sentence)
    return code


class Output(io.TextIOBase):
    """Standard output. If it fails, nothing more is written to it; if it is ``needed``, that is an error, otherwise
    ``problem`` tells of it.
    """

    def __init__(self, stream: TextIO, *, needed: bool = True) -> None:
        self.stream, self.needed = stream, needed
        self.problem: str | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream."""
        return self.stream.encoding

    def fileno(self) -> int:
        """Of the stream."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.stream.isatty()

    def write(self, text: str) -> int:
        """Write the text, with escapes for what the stream cannot encode, unless that has failed before."""
        encoding = self.stream.encoding or "utf-8"
        known = text.encode(encoding, "backslashreplace").decode(encoding)
        self._attempt(lambda: self.stream.write(known))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless that has failed before."""
        self._attempt(self.stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self.problem is not None:
            return
        try:
            action()
        except WriteError as error:  # of an Output around this stream
            self.problem = str(error)
        except OSError as error:
            self.problem = f"standard output: could not be written: {error.strerror}"
            # Nowhere is where it leads from now on: Python would try again, and complain, when it ends.
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(descriptor, self.stream.fileno())
            os.close(descriptor)
        if self.needed and self.problem is not None:
            raise WriteError(self.problem)


def _fill_streams() -> None:
    """Let standard streams that are closed (``>&-``) lead nowhere; the next files would get their numbers, and with
    them what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def check_output(output: str, sources: Iterable[str | Path]) -> Path:
    """Where to write; refuses a file that the command reads, and what is no file, as a device: it would be replaced."""
    if not output:
        raise ConfigError("--output: expected a path, got an empty text")
    path = Path(output)
    if "\0" in output or (path.exists() and not (path.is_file() or path.is_dir())):
        raise ConfigError(f"--output: expected the path of a file, got {shown(output)}; choose another path")
    for source in map(Path, sources):
        if path.exists() and source.exists() and path.samefile(source):
            raise ConfigError(f"--output: {path} is a file to read from; choose another path")
    return path


def use_device(name: str, threads: int | None) -> torch.device:
    """The device of this name, or a refusal; sets torch's threads, and TF32 where that is asked for."""
    import torch

    from lps_kernels.tf32 import apply_to_torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: expected cpu, cuda or cuda:N, got {name}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: got {name}, but torch finds {torch.cuda.device_count()} CUDA devices; use cpu")
    apply_to_torch()
    if threads is not None:
        torch.set_num_threads(threads)
    return device


def _version() -> str:
    """That of the code, without importing lps_kernels, which loads torch."""
    found = find_spec("lps_kernels")
    assert found is not None
    assert found.origin is not None
    return str(runpy.run_path(str(Path(found.origin).with_name("_version.py")))["__version__"])


def main() -> int:
    """The console command."""
    parser = Parser("lps", "One network, many tasks, nothing forgotten. lps COMMAND --help lists a command's flags.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    names = "{" + ",".join(COMMANDS) + "}"
    commands = parser.add_subparsers(dest="command", required=True, metavar=names, parser_class=argparse.ArgumentParser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    command = parser.parse_args(sys.argv[1:2]).command
    code: int = importlib.import_module(f"lps.{command}").main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
