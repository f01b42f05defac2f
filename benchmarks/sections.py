"""Parts of a document that commands write: what stands between two markers."""

from __future__ import annotations

from pathlib import Path


def has(path: Path, section: str) -> bool:
    """Whether the document has either marker of the section."""
    text = _read(path)
    return any(marker in text for marker in _markers(section))


def split(path: Path, section: str) -> tuple[str, str]:
    """What stands before and behind the content of a section, its markers included."""
    begin, end = _markers(section)
    text = _read(path)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{path} does not have the lines {begin} and {end}, once each and in this order")
    before, rest = text.split(begin)
    return before + begin, end + rest.split(end)[1]


def write(path: Path, section: str, content: str) -> None:
    """Put the content between the markers of a section."""
    before, behind = split(path, section)
    path.write_text(f"{before}\n{content}\n{behind}")


def _markers(section: str) -> tuple[str, str]:
    return f"<!-- {section} -->", f"<!-- /{section} -->"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
