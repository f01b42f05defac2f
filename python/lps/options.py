"""Settings that explain themselves: a field's metadata holds the help of its flag and the words of its refusal.

Values come as text from flags and as plain values from YAML; :func:`convert` checks and converts them once, by msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from reprlib import Repr
from textwrap import shorten
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from lps.errors import ConfigError

Kind = TypeVar("Kind")

Text = Annotated[str, Meta(pattern=r"^[^\0]+\Z")]  # a path or a name
TEXT = "text that is neither empty nor holds NUL"
MOST_BRACKETS = 50  # one in another; settings need three
NO_UNICODE = "text that is not UTF-8"

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: TEXT}
_SHORT = Repr()
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 60


def option(
    default: object,
    metavar: str,
    text: str,
    *,
    expected: str | None = None,
    choices: tuple[str, ...] = (),
    read: Callable[[str], object] = str,
) -> Any:
    """A field of a settings dataclass.

    ``text`` is the help of its flag, ``expected`` what a refusal says (by default words for the default's type),
    ``choices`` are the only values, if they are given, and ``read`` turns the flag's text into a plain value.
    """
    metadata = {
        "metavar": metavar or "{" + ",".join(choices) + "}",
        "help": text,
        "expected": f"one of {', '.join(choices)}" if choices else expected or _WORDS[type(default)],
        "choices": choices,
        "read": read,
    }
    return field(default=default, metadata=metadata)


def convert(values: Mapping[str, object], kind: type[Kind]) -> Kind:
    """The values as a dataclass of this kind; the first wrong one gives a :class:`ConfigError`."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):  # of a __post_init__
            raise error.__cause__ from None
        place = str(error).rpartition("`$")[2]  # "... - at `$.lps.epochs[0]`"
        raise ConfigError(_refusal(re.findall(r"\.(\w+)", place), values, kind)) from None


def _refusal(path: list[str], values: Any, kind: type) -> str:
    """Say what was expected of the field at the end of the path through nested dataclasses."""
    name, *rest = path
    value, hint = values[name], get_type_hints(kind)[name]
    if rest and isinstance(hint, type) and is_dataclass(hint):
        return _refusal(rest, value, hint)
    option = next(option for option in fields(kind) if option.name == name)
    return f"{name}: expected {option.metadata['expected']}, got {shown(value)}"


def shown(value: object) -> str:
    """A value for a sentence: on one line, and short even if the value is huge."""
    try:
        text = value if isinstance(value, str) and len(value) <= 60 else _SHORT.repr(value)
    except ValueError:  # Python refuses to print whole numbers of more than 4,300 digits
        text = "a huge number"
    return one_line(text)


def one_line(text: str) -> str:
    """The text, with escapes for what would break a line or cannot be printed."""
    return text if text.isprintable() else ascii(text)


def is_unicode(text: str) -> bool:
    """Whether the text can be stored; surrogates, which stand for bytes that are not UTF-8, cannot."""
    return not re.search("[\ud800-\udfff]", text)


def listed(text: str) -> object:
    """The plain value of a flag that may hold a list (``1,3,1``), lists (``4,12,4;10,30,10``) or a YAML mapping."""
    if text.startswith(("{", "[")):
        return read_yaml(text)
    if ";" in text:
        return [part.split(",") for part in text.split(";")]
    return text.split(",") if "," in text else text


def read_yaml(text: str) -> object:
    """The plain value of a YAML text; a ConfigError says where it is wrong."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigError(f"expected YAML, got a problem{place}: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError("expected YAML, got too many nested brackets") from None
    # What PyYAML lets through: tagged scalars that are not what their tag says, impossible dates, endless numbers.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"expected YAML, got a problem: {shorten(str(error), 100)}") from None


class _Loader(yaml.SafeLoader):
    """Plain values only. Aliases are refused: with them a few lines can stand for gigabytes."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        if self.flow_level == MOST_BRACKETS:  # of 100,000 the scanner would take 10 s to say no
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not is_unicode(node.value):
            raise yaml.MarkedYAMLError(problem=NO_UNICODE, problem_mark=node.start_mark)
        return node
