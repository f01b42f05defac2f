"""``python -m lps.compare``: several methods on one benchmark with several seeds, as one table."""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from argparse import SUPPRESS
from collections.abc import Mapping

from lps.cli import COMMANDS, guarded
from lps.errors import ConfigError
from lps.methods import METHODS
from lps.options import shown
from lps.runs.set_parser import set_parser
from lps.runs.settings import is_read, settings_from

PROG = "lps.compare"
DEFAULT = "lps,packnet,ewc,single,finetune"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    text = "Each run is an independent lps.train; complete ones are left alone, others go on where they stopped."
    parser = set_parser(PROG, f"{COMMANDS['compare'].capitalize()}. {text}", without=("method",))
    parser.add_argument("--methods", default=SUPPRESS, metavar="NAME,...", help=f"by default {DEFAULT}")
    flags = vars(parser.parse_args(arguments))
    from lps.runs.batch import make_run
    from lps.runs.kinds import COMPARE
    from lps.runs.set_command import SetCommand

    try:
        command = SetCommand(PROG, arguments, flags, COMPARE)
        if command.only_show:
            return command.show()
        methods = _methods(str(command.given.pop("methods", DEFAULT)))
        _check_read(command.given, methods)
        command.share_threads(settings_from(_given(methods[0], command.given)).threads)
        return command.run(
            [make_run(method, seed, _given(method, command.given)) for method in methods for seed in command.seeds]
        )
    except ConfigError as error:
        parser.error(str(error))


def _methods(text: str) -> list[str]:
    methods = text.split(",")
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"--methods: expected some of {', '.join(METHODS)}, got {shown(method)}")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"--methods: expected each once, got {shown(text)}")
    return methods


def _given(method: str, given: Mapping[str, object]) -> dict[str, object]:
    """The settings of a method: those that it reads."""
    read = {name: value for name, value in given.items() if is_read(name, method)}
    return {"method": method, **read}


def _check_read(given: Mapping[str, object], methods: list[str]) -> None:
    for name in given:
        if not any(is_read(name, method) for method in methods):
            raise ConfigError(f"{name}: none of {', '.join(methods)} uses it; leave it out")


if __name__ == "__main__":
    sys.exit(main())
