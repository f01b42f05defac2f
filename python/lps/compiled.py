"""What a compiled network does outside of its graphs: a graph can neither hold locks nor look heads up by number.

:mod:`lps.lifelong` imports this file when it is compiled: torch loads its compiler, which takes as long as torch
itself, to mark a function.
"""

from __future__ import annotations

import torch

from lps.lifelong import Lifelong

activate = torch.compiler.disable(Lifelong.activate)  # type: ignore[no-untyped-call]
classify = torch.compiler.disable(Lifelong._classify)  # type: ignore[no-untyped-call]
