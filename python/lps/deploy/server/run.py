"""From the settings of the command to a server that runs until it is told to stop."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Any

import uvicorn

from lps.deploy.server.app import Limits, Service
from lps.deploy.server.catalog import Catalog, Source
from lps.deploy.server.connections import bounded
from lps.deploy.server.cutouts import Cutouts
from lps.deploy.server.engine import Engine
from lps.deploy.server.metrics import Metrics
from lps.errors import ConfigError, LPSError

BACKLOG = 2048  # connections that wait to be taken; the system may allow fewer
GRACE = 5.0  # seconds beyond those of a request, in which requests under way are answered at the end


@dataclass(frozen=True)
class Settings:
    """Where and within which bounds files are served."""

    host: str
    port: int
    max_batch: int
    max_wait: float
    max_queue: int
    max_body: int
    max_connections: int
    seconds: float
    memory_budget: int | None
    token: bytes | None
    log_requests: bool


def log_line(event: str, **facts: Any) -> None:
    """Write an event as a line of JSON to the standard error, if that is possible."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
    with _WRITING, suppress(OSError, ValueError):
        sys.stderr.write(json.dumps(entry) + "\n")
        sys.stderr.flush()


_WRITING = Lock()


class _Lines(logging.Handler):
    """What libraries log, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            facts["trace"] = "".join(traceback.format_exception(*record.exc_info))
        log_line("log", **facts)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address, or a refusal."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # from now on connections wait until they are taken
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--host, --port: cannot listen on {host}:{port}: {reason}; choose others") from None
    return found


def serve(paths: list[Path], source: Source, settings: Settings) -> int:
    """Serve the files until a signal; returns the exit code."""
    metrics = Metrics()
    catalog = Catalog(paths, source)
    own = sum(file.bytes for file in catalog.files)
    budget = own if settings.memory_budget is None else settings.memory_budget
    tasks = sum(1 for _ in catalog.models())
    # Cut-outs are made for the batches that a task gets if all are asked alike.
    cutouts = Cutouts(budget, max(1, settings.max_batch // tasks), metrics, log_line)
    engine = Engine(
        cutouts,
        metrics,
        max_batch=settings.max_batch,
        max_wait=settings.max_wait,
        max_queue=settings.max_queue,
    )
    limits = Limits(settings.max_body, settings.seconds)
    service = Service(
        catalog, engine, metrics, limits, log_line, token=settings.token, log_requests=settings.log_requests
    )
    return _run(service, settings, budget)


def _run(service: Service, settings: Settings, budget: int) -> int:
    with listen(settings.host, settings.port) as at:
        config = uvicorn.Config(
            service.app(),
            http=bounded(settings.max_connections),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.seconds + GRACE),
        )
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(_Lines(logging.ERROR))
            logging.getLogger(name).setLevel(logging.ERROR)
        # uvicorn raises a signal that ended it again; that the server was told to stop is no failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _ignore)
        host, port = at.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        tasks = {model.name: model.version for model in service.catalog.models()}
        if settings.token is None and not ip_address(host).is_loopback:
            service.log("warning", message=f"whoever reaches {address} may ask; --token-file asks for a token")
        service.log("serving", address=address, tasks=tasks, memory_budget=budget)
        server = uvicorn.Server(config)
        server.run(sockets=[at])
        if not server.started:
            raise LPSError("the server could not start; its log says why")
    service.log("stopped")
    return 0


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing."""
