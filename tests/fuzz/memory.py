"""The memory that a call takes beyond what was resident before it; Linux only, like the kernel files it reads."""

from __future__ import annotations

from pathlib import Path

ALLOWED = 100_000_000  # bytes, beside twice the file's size and the arrays that were asked for


def _resident(key: str) -> int:
    """Bytes of memory that are resident now (VmRSS) or were at most since :func:`forget` (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def resident() -> int:
    """The bytes that are resident."""
    return _resident("VmRSS")


def forget() -> None:
    """Forget the peak so far. Takes milliseconds: the kernel visits every page."""
    Path("/proc/self/clear_refs").write_text("5")


def grown(before: int) -> int:
    """How far the peak, of all time or since :func:`forget`, is above so many bytes."""
    return _resident("VmHWM") - before
