"""``python -m lps.train``: learn a benchmark's tasks one after another, into one file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lps.cli import COMMANDS, Parser, guarded, use_device
from lps.errors import ConfigError
from lps.runs.directory import CONFIG
from lps.runs.progress import summary
from lps.runs.run import train
from lps.runs.settings import Settings, preset, settings_from

PROG = "lps.train"


@dataclass(frozen=True)
class _Command:
    """What the command line asks for."""

    settings: Settings
    output: Path | None
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
    before = None
    if output is not None and command.resume:
        _check_is_run(output)
        before = _parse(["--config", str(output / CONFIG)]).settings
    device = use_device(settings.device, settings.threads)
    results, path = train(settings, output, before, device)
    print(summary(results, str(path)))
    return 0


def _parser() -> Parser:
    text = "Settings come from the benchmark's preset, then from --config, then from flags; the later ones count."
    parser = Parser(PROG, f"{COMMANDS['train'].capitalize()}. {text}")
    parser.add_argument(
        "--config", action="config", metavar="FILE", help="YAML file of settings, as in a run directory"
    )
    for option in fields(Settings):
        flag, text = f"--{option.name.replace('_', '-')}", option.metadata["help"]
        if isinstance(option.default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        else:
            kind = str if option.metadata["text"] else Any  # Any reads YAML; settings_from checks what it finds
            parser.add_argument(flag, type=kind, default=option.default, metavar=option.metadata["metavar"], help=text)
    parser.add_argument("--resume", action="store_true", help="go on with the run in --output, or beside --config")
    parser.add_argument("--print-config", action="store_true", help="print the settings as YAML and exit")
    return parser


def _parse(arguments: list[str]) -> _Command:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.resume and not options.config:
        if options.output is None:
            parser.error("--resume: say which run to go on with: --output DIRECTORY or --config FILE")
        _check_is_run(Path(options.output))
        arguments = ["--config", str(Path(options.output) / CONFIG), *arguments]
        options = parser.parse_args(arguments)
    try:
        # The benchmark and the preset are known now; what they say lies below the file and the flags.
        parser.set_defaults(preset(options.benchmark, options.preset))
        options = parser.parse_args(arguments)
        settings = settings_from(options.as_dict())
    except ConfigError as error:
        parser.error(str(error))
    output = None if settings.output is None else Path(settings.output)
    if options.resume and output is None:
        output = Path(str(options.config[-1])).parent
    return _Command(settings, output, options.resume, options.print_config)


def _check_is_run(path: Path) -> None:
    if not (path / CONFIG).is_file():
        raise ConfigError(f"output: {path} holds no run to go on with: it has no {CONFIG}")


if __name__ == "__main__":
    sys.exit(main())
