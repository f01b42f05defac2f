"""The server's routes: the Open Inference Protocol, two shorter forms, health, metrics and a page for people."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lps.deploy.server import messages
from lps.deploy.server.catalog import Catalog, Model, identity_of
from lps.deploy.server.engine import Answer, Engine, Job
from lps.deploy.server.errors import BusyError, RefusedError
from lps.deploy.server.metrics import CONTENT_TYPE, Metrics
from lps.deploy.server.openapi import document
from lps.errors import LPSError, in_a_sentence
from lps.options import shown
from lps_kernels import __version__
from lps_kernels.calls import Inputs

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

LOOK = 1.0  # seconds between two looks at the files; one is loaded when two looks found it alike
LARGE = 1 << 16  # bytes of a request that is read in another thread, so that the event loop goes on
ASKS = ("infer", "classify", "infer_rows")  # routes whose answers are timed
HELD = 16  # times the largest body: what all requests together may hold
# The page loads nothing from elsewhere and asks this server alone.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Limits:
    """Bounds on requests."""

    body: int
    seconds: float


class Service:
    """What the routes have in common: the files, the queue, the limits and the token."""

    def __init__(
        self,
        catalog: Catalog,
        engine: Engine,
        metrics: Metrics,
        limits: Limits,
        log: Callable[..., None],
        *,
        token: bytes | None = None,
        log_requests: bool = False,
    ) -> None:
        self.catalog, self.engine, self.metrics, self.limits, self.log = catalog, engine, metrics, limits, log
        self._token, self._log_requests = token, log_requests
        self._held = 0  # bytes of bodies
        self._readers = ThreadPoolExecutor(1, "lps-reader")  # images and large bodies
        self._page = files("lps.deploy.server").joinpath("page.html").read_bytes()
        metrics.gauge("lps_queue_length", "Requests that wait.", (), lambda: {(): engine.waiting})
        metrics.gauge("lps_cutout_bytes", "Bytes of cut-out tasks.", ("task",), engine.cutouts.held)
        metrics.gauge("lps_cutout_budget_bytes", "Bytes that they may take.", (), lambda: {(): engine.cutouts.budget})
        metrics.gauge(
            "lps_task_info",
            "The tasks that are served.",
            ("task", "version"),
            lambda: {(model.name, model.version): 1 for model in catalog.models()},
        )

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self._route("POST", "/v2/models/{task:path}/versions/{version}/infer", self._infer),
            self._route("POST", "/v2/models/{task:path}/infer", self._infer),
            self._route("POST", "/classify/{task:path}", self._classify),
            self._route("POST", "/infer", self._infer_rows),
            self._route("GET", "/v2/health/live", self._live, open_to_all=True),
            self._route("GET", "/v2/health/ready", self._live, open_to_all=True),
            self._route("GET", "/v2", self._server),
            self._route("GET", "/v2/models", self._models),
            self._route("GET", "/v2/models/{task:path}/versions/{version}/ready", self._model_ready),
            self._route("GET", "/v2/models/{task:path}/versions/{version}", self._model),
            self._route("GET", "/v2/models/{task:path}/ready", self._model_ready),
            self._route("GET", "/v2/models/{task:path}", self._model),
            self._route("GET", "/metrics", self._show_metrics),
            self._route("GET", "/openapi.json", self._openapi, open_to_all=True),
            self._route("GET", "/", self._show_page, open_to_all=True),
        ]
        app = Starlette(routes=routes, lifespan=self._life, exception_handlers={HTTPException: _unrouted})
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def deliver(action: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(action)

        self.engine.deliver = deliver
        self.engine.start()
        watching = asyncio.create_task(self._watch())
        yield
        # Here no connection is open any more: every request that was taken has its answer.
        watching.cancel()
        await loop.run_in_executor(None, self.engine.stop)
        self._readers.shutdown()

    async def _watch(self) -> None:
        """Put files that were replaced in service, once nobody writes them any more."""
        loop, before = asyncio.get_running_loop(), dict[Path, Any]()
        while True:
            await asyncio.sleep(LOOK)
            for path in list(self.catalog.changed()):
                now = identity_of(path)
                if before.get(path) == now:
                    await loop.run_in_executor(None, self._reload, path)
                before[path] = now

    def _reload(self, path: Path) -> None:
        try:
            old, new = self.catalog.reload(path)
        except Exception as error:  # of the user's network too; the old file stays in service
            self.metrics.reloads.add(path.name, "refused")
            self.log("refused", file=str(path), reason=in_a_sentence(error))
            if not isinstance(error, LPSError):
                raise
            return
        self.engine.cutouts.drop(old)
        self.metrics.reloads.add(path.name, "served")
        self.log("reloaded", file=str(path), tasks={model.name: model.version for model in new.models})

    # What every request goes through

    def _route(self, method: str, path: str, handler: Handler, *, open_to_all: bool = False) -> Route:
        name = handler.__name__.strip("_")

        async def run(request: Request) -> Response:
            start = monotonic()
            try:
                if not open_to_all:
                    self._check_token(request)
                response = await handler(request)
            except (RefusedError, BusyError) as error:
                response = _error(error.status, str(error))
                if isinstance(error, BusyError):
                    response.headers["retry-after"] = str(error.seconds)
                if error.status == 401:
                    response.headers["www-authenticate"] = "Bearer"
            except ClientDisconnect:
                response = _error(400, "the request ended before its body did")
            except Exception as error:  # an error of ours
                self.log("failed", route=name, error=f"{type(error).__name__}: {in_a_sentence(error)}")
                response = _error(500, "the server failed to answer; its log says why")
            self._count(request, name, response.status_code, monotonic() - start)
            return response

        return Route(path, run, methods=[method], name=f"{name} {path}")

    def _count(self, request: Request, route: str, status: int, seconds: float) -> None:
        task = request.scope.get("lps.task", "")
        self.metrics.requests.add(task, route, str(status))
        if route in ASKS and status == HTTPStatus.OK:
            self.metrics.seconds.observe(seconds, task)
        if self._log_requests:
            self.log("request", task=task, route=route, status=status, seconds=round(seconds, 6))

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time; the given one is never shown.
        if not (hmac.compare_digest(given.strip().encode(), self._token) and kind.lower() == "bearer"):
            raise RefusedError("expected the header Authorization: Bearer with the server's token", 401)

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Within it, more and more bytes may be held, up to what all requests together may hold."""
        own = 0

        def take(size: int) -> None:
            nonlocal own
            if self._held + size > HELD * self.limits.body:
                raise BusyError(f"requests of {self._held:,} bytes are held already; ask again")
            self._held += size
            own += size

        try:
            yield take
        finally:
            self._held -= own

    async def _body(self, request: Request, take: Callable[[int], None]) -> bytes:
        if (coding := request.headers.get("content-encoding", "identity")) != "identity":
            raise RefusedError(f"Content-Encoding: expected none, got {shown(coding)}", 415)
        most, chunks, size = self.limits.body, list[bytes](), 0
        declared = request.headers.get("content-length", "0")
        if int(declared) > most:  # the parser has checked that it is a number
            raise RefusedError(f"the body: expected at most {most:,} bytes, got {shown(declared)}", 413)
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise RefusedError(f"the body: expected at most {most:,} bytes, got more", 413)
                    take(len(chunk))
                    chunks.append(chunk)
        except TimeoutError:
            raise RefusedError(f"the body took longer than {self.limits.seconds:g} s", 408) from None
        return b"".join(chunks)

    async def _read(self, body: bytes, read: Callable[[], T], *, slow: bool = False) -> T:
        if slow or len(body) > LARGE:
            return await asyncio.get_running_loop().run_in_executor(self._readers, read)
        return read()

    def _find(self, request: Request) -> Model:
        model = self.catalog.find(request.path_params["task"], request.path_params.get("version"))
        request.scope["lps.task"] = model.name
        return model

    async def _ask(self, parts: list[tuple[Model, Inputs]]) -> list[Answer]:
        loop, until = asyncio.get_running_loop(), monotonic() + self.limits.seconds
        jobs = [Job(model, inputs, loop.create_future(), until) for model, inputs in parts]
        self.engine.submit(jobs)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return [await job.future for job in jobs]  # type: ignore[misc]
        except TimeoutError:
            raise BusyError(f"the answer took longer than {self.limits.seconds:g} s; ask again") from None
        finally:
            for job in jobs:
                job.future.cancel()  # type: ignore[attr-defined]

    # Routes

    async def _infer(self, request: Request) -> Response:
        """The protocol's inference."""
        model = self._find(request)
        with self._holding() as take:
            body = await self._body(request, take)
            length = request.headers.get(messages.HEADER_LENGTH)
            question = await self._read(body, lambda: messages.read_question(model, body, length))
            (answer,) = await self._ask([(model, question.inputs)])
        content, headers = messages.write_answer(model, question, answer)
        return Response(content, headers=headers)

    async def _classify(self, request: Request) -> Response:
        """Classes of an image or of lists."""
        model = self._find(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_image = kind.startswith("image/")
        if not is_image and kind != messages.JSON:
            raise RefusedError(f"Content-Type: expected image/... or {messages.JSON}, got {shown(kind)}", 415)
        top = messages.read_top(request.query_params.get("top"))
        read = messages.read_image if is_image else messages.read_list
        with self._holding() as take:
            body = await self._body(request, take)
            inputs = await self._read(body, lambda: read(model, body), slow=is_image)
            (answer,) = await self._ask([(model, inputs)])
        return _json(messages.write_classes(model, answer, top))

    async def _infer_rows(self, request: Request) -> Response:
        """A batch with a task per row."""
        with self._holding() as take:
            body = await self._body(request, take)
            rows = await self._read(body, lambda: messages.read_rows(self.catalog.find, body))
            answers = await self._ask([(model, inputs) for model, _, inputs in rows.parts])
        return _json(messages.write_rows(rows, answers))

    async def _live(self, _request: Request) -> Response:
        return Response(status_code=200)

    async def _server(self, _request: Request) -> Response:
        return _json({"name": "learn-prune-share", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _models(self, _request: Request) -> Response:
        return _json({"models": [messages.metadata_of(model) for model in self.catalog.models()]})

    async def _model(self, request: Request) -> Response:
        return _json(messages.metadata_of(self._find(request)))

    async def _model_ready(self, request: Request) -> Response:
        model = self._find(request)
        return _json({"name": model.name, "ready": True})

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _openapi(self, _request: Request) -> Response:
        return _json(document(__version__))

    async def _show_page(self, _request: Request) -> Response:
        headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
        return Response(self._page, media_type="text/html; charset=utf-8", headers=headers)


def _json(value: object) -> Response:
    return Response(messages.encode(value), media_type=messages.JSON)


def _error(status: int, sentence: str) -> Response:
    return Response(messages.encode({"error": sentence}), status, media_type=messages.JSON)


async def _unrouted(request: Request, error: Exception) -> Response:
    """The answer to a path or method that there is not."""
    assert isinstance(error, HTTPException)
    method, path = shown(request.method), shown(request.url.path)
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        response = _error(405, f"{path}: expected the method {allowed}, got {method}")
        response.headers["allow"] = allowed
        return response
    return _error(error.status_code, f"there is nothing at {path}; /openapi.json lists what there is")
