"""The web application and its server."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from mqstore.console.guard import Guard
from mqstore.console.page import Console, PageRequest, endpoint
from mqstore.console.pages import ROUTES
from mqstore.console.settings import Settings

STATIC = Path(__file__).parent / "static"


def create_app(settings: Settings) -> Starlette:
    """Return the console as an ASGI application; its `state.console` is the `Console`."""
    console = Console(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        console.close()

    async def not_found(http: Request, error: Exception) -> Response:
        request = PageRequest(console, http, http.scope.get("session"), {})
        return request.show("error.html", status=404, sentence="there is no such page; the start page lists the stores", status_code=404)

    routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC))]
    routes += [
        Route(rule.path, endpoint(console, rule.page, csrf=rule.csrf), methods=["POST"] if rule.posts else ["GET"]) for rule in ROUTES
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, settings, console.sessions)],
        exception_handlers={404: not_found},
        lifespan=lifespan,
    )
    app.state.console = console
    return app


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(18)


def create_server(settings: Settings, ready: Callable[[str, int], None]) -> uvicorn.Server:
    """Return a server of the console. Its `run` returns when it is interrupted or `should_exit` is set. ready: called with (host, port)."""

    class Server(uvicorn.Server):
        """Calls `ready` when it listens."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                host, port = self.servers[0].sockets[0].getsockname()[:2]
                ready(host, port)

    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        limit_concurrency=200,
        h11_max_incomplete_event_size=128 << 10,
        http="h11",
        ws="none",
        loop="asyncio",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=settings.tls_client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    return Server(config)
