"""The server of the live page: six files, a stream and a snapshot, nothing else.

The stream is made of server-sent events: one with everything when a page connects, then one for each change
on the disk. A browser that lost the connection reconnects and gets everything again, so it misses nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dapfl.dashboard.follower import FollowedRun, Follower
from dapfl.errors import RunDirectoryError
from dapfl.runs.monitoring.status import metrics_of
from dapfl.runs.results import read_run

# Only this server's own files may run or be fetched. Plotly sets style attributes, hence 'unsafe-inline'
# for styles; no script is inline.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
# path → package, file in it, type: the whole of what is served besides the stream
_FILES = {
    "/": ("dapfl.dashboard", "static/watch.html", "text/html"),
    "/watch.css": ("dapfl.dashboard", "static/watch.css", "text/css"),
    "/watch.js": ("dapfl.dashboard", "static/watch.js", "text/javascript"),
    "/theme.css": ("dapfl.reporting", "assets/theme.css", "text/css"),
    "/charts.js": ("dapfl.reporting", "assets/charts.js", "text/javascript"),
    "/plotly.js": ("plotly", "package_data/plotly.min.js", "text/javascript"),
}


class _Guard:
    """Refuses requests for hosts that are not ours, and adds the security headers to every response.

    Checking the host keeps other web sites from reaching a loopback server through a name of their own.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._hosts is None or _host_of(scope) in self._hosts:
            await self._app(scope, receive, guarded)
        else:
            await PlainTextResponse("This server does not go by that name.", 400)(scope, receive, guarded)


def _host_of(scope: Scope) -> str | None:
    """The host that a request names, without its port or an IPv6 address's brackets."""
    try:
        return urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname
    except ValueError:
        return None


class Hub:
    """Looks at the run directory a few times a second and wakes the streams when something has changed."""

    def __init__(self, directory: Path, interval: float) -> None:
        self.follower = Follower(directory)
        self._interval = interval
        self._news = asyncio.Condition()
        self._closing = False

    async def run(self) -> None:
        """Keeps looking until it is cancelled."""
        while True:
            before = self.follower.run
            # In a thread: the first look at a long run takes a moment, and the page should load meanwhile.
            await asyncio.to_thread(self.follower.refresh)
            if self.follower.run is not before:
                await self._wake()
            await asyncio.sleep(self._interval)

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def close(self) -> None:
        """Ends all streams, so that the server can stop."""
        self._closing = True
        await self._wake()

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events for one page: everything at first, then each change."""
        told: FollowedRun | None = None
        yield b"retry: 1000\n\n"  # how soon a page whose connection broke tries again
        while not self._closing:
            run = self.follower.run
            if run is told:
                yield b": still here\n\n"  # a page that went away is noticed by writing to it
            else:
                known = len(told.rounds) if told and told.generation == run.generation else 0
                told = run
                yield b"data: " + run.update(after=known).to_json() + b"\n\n"
            async with self._news:
                if self.follower.run is told and not self._closing:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), timeout=10)


def _file_route(route: str, package: str, name: str, kind: str) -> Route:
    async def serve(request: Request) -> Response:
        with as_file(files(package) / name) as path:
            return FileResponse(path, media_type=kind, headers={"cache-control": "no-cache"})

    return Route(route, serve, methods=["GET"])


def build_app(
    directory: Path, hosts: frozenset[str] | None, interval: float = 0.25, *, metrics: bool = False
) -> Starlette:
    """The live page of the run in `directory`, for requests that name one of `hosts` (None: any host).

    With `metrics`, also its figures for Prometheus, at /metrics.
    """
    hub = Hub(directory, interval)

    async def stream(request: Request) -> Response:
        headers = {"cache-control": "no-store"}
        return StreamingResponse(hub.stream(), media_type="text/event-stream", headers=headers)

    async def snapshot(request: Request) -> Response:
        # For browsers and proxies that hold streams back: the page asks for this every second instead.
        content = hub.follower.run.update().to_json()
        return Response(content, media_type="application/json", headers={"cache-control": "no-store"})

    async def prometheus(request: Request) -> Response:
        try:
            content = metrics_of(await asyncio.to_thread(read_run, directory))
        except RunDirectoryError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return Response(content, media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run())
        yield
        task.cancel()

    routes = [Route("/stream", stream, methods=["GET"]), Route("/snapshot", snapshot, methods=["GET"])]
    if metrics:
        routes.append(Route("/metrics", prometheus, methods=["GET"]))
    routes += [_file_route(path, *place) for path, place in _FILES.items()]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, hosts=hosts)],
        lifespan=lifespan,
    )
    app.state.hub = hub
    return app
