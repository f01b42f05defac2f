"""Flags of commands that read a ``model.lps``: which task is meant, and where the code of the user's network is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lps.cli import Parser
    from lps.lifelong import Lifelong


def add_task(parser: Parser, *, required: bool = True) -> None:
    """Add the flag of a task."""
    text = "number of the task, counted from 1, or its name" + ("" if required else "; by default all")
    parser.add_argument("--task", type=str, required=required, metavar="T", help=text)


def add_backbone(parser: Parser) -> None:
    """Add the flags of code that the user names; nothing else makes a command import anything of the user's."""
    parser.add_argument(
        "--backbone",
        type=str,
        metavar="M:F",
        help="package.module:function that makes the network, if it is your own, or the name under which an installed "
        "package declares it",
    )
    parser.add_argument(
        "--heads", type=str, metavar="M:F", help="package.module:function(features, classes) that makes your own heads"
    )


def load_for(options: Any, *, salvage: bool = False) -> Lifelong:
    """The network of the file that the options name."""
    from lps.artifact.read import load
    from lps.backbones import find, use_working_directory

    if options.backbone is not None or options.heads is not None:
        use_working_directory()
    heads = None if options.heads is None else find(options.heads)
    return load(options.file, options.backbone, heads, salvage=salvage)
