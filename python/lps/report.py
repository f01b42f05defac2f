"""``python -m lps.report``: runs as one page with tables and figures that loads nothing."""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lps.artifact.atomic import write_atomically
from lps.cli import COMMANDS, Parser, check_output, guarded
from lps.errors import ConfigError
from lps.pages import PAGE

if TYPE_CHECKING:
    from lps.pages.svg import Figure

PROG = "lps.report"
FORMATS = ("svg", "png")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    parser = Parser(PROG, f"{COMMANDS['report'].capitalize()}.")
    parser.add_argument("runs", nargs="+", metavar="DIR", help="a run directory, or one of lps.compare or lps.sweep")
    parser.add_argument("-o", "--output", default=PAGE, metavar="FILE", help=f"the page (default: {PAGE})")
    parser.add_argument("--figures", metavar="DIR", help="also write every figure and its numbers (CSV) to this folder")
    parser.add_argument("--format", choices=FORMATS, default="svg", help="of those figures (default: svg)")
    flags = parser.parse_args(arguments)
    from lps.pages.collect import collect
    from lps.pages.page import make_page

    output = check_output(flags.output, ())
    if output.is_dir():
        output = output / PAGE
    rasterise = _rasteriser() if flags.figures and flags.format == "png" else None
    page, figures = make_page(collect([Path(path) for path in flags.runs]))
    write_atomically(output, page.encode())
    if flags.figures:
        _write_figures(Path(flags.figures), figures, rasterise)
    print(f"{output}: {len(figures)} figures, {len(page.encode()) / 1e6:.2f} MB")
    return 0


def _write_figures(folder: Path, figures: Sequence[Figure], rasterise: Callable[[str], bytes] | None) -> None:
    from lps.pages.page import data_of

    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        write_atomically(folder / f"{figure.name}.csv", data_of(figure).encode())
        if rasterise is None:
            write_atomically(folder / f"{figure.name}.svg", figure.file().encode())
        else:
            write_atomically(folder / f"{figure.name}.png", rasterise(figure.file()))


def _rasteriser() -> Callable[[str], bytes]:
    """Makes PNG of SVG."""
    try:
        import resvg_py
    except ImportError:
        raise ConfigError("--format: png needs resvg-py; pip install 'learn-prune-share[report]' brings it") from None
    return lambda svg: bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))


if __name__ == "__main__":
    sys.exit(main())
