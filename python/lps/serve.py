"""``python -m lps.serve FILE...``: every task of one or several files behind one port.

Requests follow the Open Inference Protocol (version 2), which KServe, Triton and their clients speak; a task is a
model, its digest its version. A file that is replaced is served anew. Needs the extra ``serve``.
"""

from __future__ import annotations

from lps.environment import share_cores

share_cores()  # before anything loads torch

import sys
from argparse import ArgumentTypeError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lps.cli import COMMANDS, Parser, between, guarded, use_device
from lps.errors import ConfigError
from lps.file_options import add_backbone
from lps.options import shown
from lps.runs.settings import MOST_THREADS

PROG = "lps.serve"
NEEDS = ("starlette", "uvicorn", "httptools")  # the extra serve; uvloop only makes it faster
MOST_TOKEN = 4096
MOST_BYTES = 2**62


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return guarded(PROG, lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    options = _parse(arguments)
    if any(find_spec(name) is None for name in NEEDS):
        raise ConfigError("the packages of the server are missing: pip install 'learn-prune-share[serve]'")
    token = None if options.token_file is None else _read_token(options.token_file)
    device = use_device(options.device, options.threads)
    from lps.backbones import find, use_working_directory
    from lps.deploy.server.catalog import Source
    from lps.deploy.server.run import Settings, serve

    if options.backbone is not None or options.heads is not None:
        use_working_directory()
    heads = None if options.heads is None else find(options.heads)
    source = Source(options.backbone, heads, options.input_shape, device)
    settings = Settings(
        host=options.host,
        port=options.port,
        max_batch=options.max_batch,
        max_wait=options.max_wait / 1000,
        max_queue=options.max_queue,
        max_body=options.max_body,
        max_connections=options.max_connections,
        seconds=float(options.timeout),
        memory_budget=options.memory_budget,
        token=token,
        log_requests=options.log_requests,
    )
    return serve([Path(file) for file in options.file], source, settings)


def _parse(arguments: list[str]) -> Any:
    parser = Parser(PROG, f"{COMMANDS['serve'].capitalize()}.")
    parser.add_argument("file", type=str, nargs="+", metavar="FILE", help="a model.lps")
    where = parser.add_argument_group("where")
    where.add_argument("--host", type=str, default="127.0.0.1", metavar="ADDRESS", help="address to listen on")
    where.add_argument("--port", type=between(0, 65535), default=8000, metavar="N", help="its port; 0 takes a free one")
    where.add_argument(
        "--token-file", type=str, metavar="PATH", help="file with the token that requests must bring; by default none"
    )
    where.add_argument("--log-requests", action="store_true", help="log a line for every request too")
    batches = parser.add_argument_group("batches")
    batches.add_argument(
        "--max-batch", type=between(1, 2**16), default=64, metavar="N", help="examples in a batch, of any tasks"
    )
    batches.add_argument(
        "--max-wait", type=_milliseconds, default=2.0, metavar="MS", help="milliseconds that a request waits for others"
    )
    batches.add_argument(
        "--memory-budget",
        type=between(0, MOST_BYTES),
        metavar="BYTES",
        help="memory for cut-out tasks; by default as much as one dense network takes, 0 for none",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=between(1, 2**20), default=1024, metavar="N", help="requests that wait")
    limits.add_argument(
        "--max-body", type=between(1, 2**32), default=2**24, metavar="BYTES", help="of the body of a request"
    )
    limits.add_argument("--max-connections", type=between(1, 2**20), default=1000, metavar="N", help="at once")
    limits.add_argument(
        "--timeout",
        type=between(1, 3600),
        default=30,
        metavar="SECONDS",
        help="for a body to come, and for an answer",
    )
    machine = parser.add_argument_group("network and machine")
    machine.add_argument("--input-shape", type=str, metavar="N,N,...", help="of one example, if FILE does not tell it")
    machine.add_argument("--device", type=str, default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N")
    machine.add_argument(
        "--threads", type=between(1, MOST_THREADS), metavar="N", help="threads of torch; by default torch's choice"
    )
    add_backbone(parser)
    return parser.parse_args(arguments)


def _milliseconds(text: str) -> float:
    """The type of the flag ``--max-wait``."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10_000:
        raise ArgumentTypeError(f"expected 0 to 10000 milliseconds, got {shown(text)}")
    return value


def _read_token(path: str) -> bytes:
    from lps.reading import read_bytes

    try:
        token = read_bytes(path, MOST_TOKEN).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise ConfigError(f"--token-file: {shown(path)}: {reason}; check the path") from None
    if not token or not token.isascii() or b" " in token or len(token.split()) != 1:
        raise ConfigError(f"--token-file: {shown(path)}: expected one word of ASCII letters, got something else")
    return token


if __name__ == "__main__":
    sys.exit(main())
