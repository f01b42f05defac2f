"""``python -m lps.train``: learn a benchmark's tasks one after another, into one file."""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TextIO, cast

from lps.cli import COMMANDS, Output, Parser, guarded, use_device
from lps.data.options import OPTIONS
from lps.errors import ConfigError, complain
from lps.methods import METHODS
from lps.methods.lps.config import LPSConfig
from lps.methods.options import READS
from lps.runs.loggers import check_installed
from lps.runs.settings import CONFIG, Settings, is_read, read_settings, settings_from

PROG = "lps.train"


@dataclass(frozen=True)
class _Command:
    """What the command line asks for."""

    settings: Settings
    output: Path | None
    first_task: Path | None
    resume: bool
    print_config: bool


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    command = _parse(arguments)
    settings, output = command.settings, command.output
    if command.print_config:
        print(settings.to_yaml(), end="")
        return 0
    from lps.pages.page import report_on
    from lps.runs.first_task import begin_with_first_task
    from lps.runs.progress import summary
    from lps.runs.run import train

    before = None
    if output is not None and command.resume:
        _check_is_run(output)
        before = settings_from(read_settings(output / CONFIG))
    device = use_device(settings.device, settings.threads)
    screen = Output(sys.stdout, needed=False)
    with redirect_stdout(cast("TextIO", screen)):  # a closed pipe or a full disk must not end training
        if output is not None and command.first_task is not None and before is None:
            begin_with_first_task(settings, output, command.first_task, device)
            before = settings
        results, path = train(settings, output, before, device)
        print(summary(results, str(path), report_on(PROG, path)), flush=True)
    if screen.problem is not None:
        complain(PROG, f"{screen.problem}; the run in {path} is complete")
    return 0


def _parser(method: str | None) -> Parser:
    """A parser whose help lists the settings that this method reads, or those of all methods."""
    text = (
        "Settings come from the benchmark's preset, then from --config, then from flags; the later ones count. "
        "--print-config shows what holds in all."
    )
    more = "--method NAME --help lists what a method reads." if method is None else f"Listed is what {method} reads."
    parser = Parser(PROG, f"{COMMANDS['train'].capitalize()}. {text} {more}")
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML file of settings")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --output, or beside --config")
    parser.add_argument(
        "--resume-if-begun", action="store_true", help="the same if --output holds a run; otherwise begin one"
    )
    parser.add_argument(
        "--first-task",
        metavar="DIR",
        help="begin with a copy of task 1 from this run directory, where it is learnt first if it is not yet",
    )
    parser.add_argument("--print-config", action="store_true", help="print the settings as YAML and exit")
    add_settings(parser, listed=lambda name: method is None or is_read(name, method))
    return parser


def _method_in(arguments: Sequence[str]) -> str | None:
    """The method that the command line names, before it is parsed: parsing ends at --help."""
    name = ""
    for argument, following in pairwise([*arguments, ""]):
        if argument == "--method":
            name = following
        elif argument.startswith("--method="):
            name = argument.removeprefix("--method=")
    return name if name in METHODS else None


def add_settings(
    parser: Parser, without: Collection[str] = (), listed: Callable[[str], bool] = lambda name: True
) -> None:
    """Add a flag for every setting of a run but those named; the help shows those that are ``listed``."""
    own = [option for option in fields(Settings) if option.metadata]
    parser.add_options("the run", (option for option in own if option.name not in without), listed=listed)
    training = [option for option in fields(LPSConfig) if option.name not in without]
    parser.add_options("how a task is learnt", training, listed=listed)
    for name, reads in READS.items():
        if fields(reads.options):
            parser.add_options(f"only for --method {name}", fields(reads.options), f"{name}.", listed)
    owners: dict[type, list[str]] = {}  # benchmarks by the class of their options
    for name, kind in OPTIONS.items():
        owners.setdefault(kind, []).append(name)
    for kind, names in owners.items():
        parser.add_options(f"only for {', '.join(names)}", fields(kind))


def _parse(arguments: list[str]) -> _Command:
    parser = _parser(_method_in(arguments))
    flags = vars(parser.parse_args(arguments))
    files, resume, if_begun, first_task, print_config = (
        flags.pop(name) for name in ("config", "resume", "resume_if_begun", "first_task", "print_config")
    )
    for flag, value in (("--resume-if-begun", if_begun), ("--first-task", first_task)):
        if value and "output" not in flags:
            parser.error(f"{flag}: say which run to begin or to go on with: --output DIRECTORY")
    resume = resume or (if_begun and (Path(flags["output"]) / CONFIG).is_file())
    if resume and not files:
        if "output" not in flags:
            parser.error("--resume: say which run to go on with: --output DIRECTORY or --config FILE")
        _check_is_run(Path(flags["output"]))
        files = [str(Path(flags["output"]) / CONFIG)]
    given: dict[str, object] = {}
    try:
        for file in files:
            given |= read_settings(Path(file))
        check_used(flags, flags.get("method", given.get("method", Settings.method)))
        if "method" in flags:  # a file may hold options of the method that the flag replaces
            own = f"{flags['method']}."
            given = {name: value for name, value in given.items() if "." not in name or name.startswith(own)}
        settings = settings_from(given | flags)
        if not print_config:
            check_installed(settings.loggers)
    except ConfigError as error:
        parser.error(str(error))
    output = None if settings.output is None else Path(settings.output)
    if resume and output is None:
        output = Path(files[-1]).parent
    return _Command(settings, output, None if first_task is None else Path(first_task), resume, print_config)


def check_used(flags: Mapping[str, object], method: object) -> None:
    """Refuse a setting of training that the method does not read; a wrong name of a method is refused elsewhere."""
    for name in flags:
        if isinstance(method, str) and method in METHODS and not is_read(name, method) and "." not in name:
            readers = [other for other in METHODS if is_read(name, other)]
            do = "does" if len(readers) == 1 else "do"
            raise ConfigError(f"{name}: {method} does not use it ({', '.join(readers)} {do}); leave it out")


def _check_is_run(path: Path) -> None:
    if not (path / CONFIG).is_file():
        raise ConfigError(
            f"output: {path} holds no run to go on with: it has no {CONFIG}; without --resume a new one begins"
        )


if __name__ == "__main__":
    sys.exit(main())
