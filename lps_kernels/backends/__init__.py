"""Which backends serve the operators, and why others do not. Chosen once, when the package is imported.

``LPS_BACKEND=reference`` leaves every operator to its reference. ``LPS_REQUIRE=native`` turns a missing native
library into an error instead of a warning.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from lps_kernels.backends import native


@dataclass(frozen=True)
class Backend:
    """One way to run the operators. ``reason`` says where it comes from, or why it is not active."""

    name: str
    active: bool
    reason: str


def backends() -> list[Backend]:
    """Every backend of this process, the fastest first."""
    return list(_BACKENDS)


def _choice(variable: str, choices: tuple[str, ...]) -> str | None:
    value = os.environ.get(variable)
    if value and value not in choices:
        raise ImportError(f"lps_kernels: {variable}: expected one of {', '.join(choices)}, got {value}")
    return value or None


def _select() -> list[Backend]:
    wanted = _choice("LPS_BACKEND", ("native", "reference"))
    required = _choice("LPS_REQUIRE", ("native",))
    if wanted == "reference":
        active, reason = False, "switched off by LPS_BACKEND=reference"
    else:
        active, reason = native.load()
    if not active and "native" in (required, wanted):
        raise ImportError(f"lps_kernels: the native backend is required but not active: {reason}")
    if not active and wanted is None:
        warnings.warn(f"lps_kernels runs on its slow references: {reason}", RuntimeWarning, stacklevel=3)
    return [
        Backend("native", active, reason),
        Backend("reference", True, "readable torch functions, used where nothing faster is registered"),
    ]


_BACKENDS = _select()
