"""The HTTP listener for Prometheus: the WSGI application of `prometheus_client`, in separate threads.

    GET, HEAD  /metrics, /    the metrics, in the format that the Accept header asks for (text 0.0.4 by default)
    else                      404, 405; 503 from the 17th concurrent request on

A connection carries one request. The event loop of the broker takes no part in HTTP.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from mqstore.broker.runtime.logs import log

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.registry import Collector

MAX_CONCURRENT = 16  # requests
IO_TIMEOUT = 5.0  # seconds that one read or write may wait for the client
POLL_INTERVAL = 0.1  # seconds; how long `stop` waits at most
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Handler(WSGIRequestHandler):
    """Handles one request; logs nothing on its own."""

    timeout = IO_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no access lines: standard error carries events only."""


class MetricsListener(ThreadingMixIn, WSGIServer):
    """Serves the metrics of one collector on a bound socket, one thread per request."""

    daemon_threads = True
    request_queue_size = MAX_CONCURRENT

    def __init__(self, listening: socket.socket, collector: Collector) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.socket.setblocking(True)
        self.server_name, self.server_port = listening.getsockname()[:2]  # `server_bind` would look the name up in the DNS
        self.setup_environ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self.set_app(_limit_paths(make_wsgi_app(registry)))
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT)

    def start(self) -> None:
        """Accept requests, in a thread."""
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(POLL_INTERVAL,), name="mqstore-metrics", daemon=True).start()

    def stop(self) -> None:
        """Stop accepting requests and close the socket."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            request.sendall(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log("metrics-request-failed", logging.DEBUG, why=repr(sys.exception()), peer=str(client_address))


def _limit_paths(serve_metrics: WSGIApplication) -> WSGIApplication:
    """Wrap the library's application, which answers every path: GET and HEAD of two paths only; failures are logged."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] not in ("/metrics", "/"):
            return _plain(start_response, "404 Not Found", "the metrics are at /metrics\n")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _plain(start_response, "405 Method Not Allowed", "only GET and HEAD are supported\n", ("Allow", "GET, HEAD"))
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
            started.append((status, headers))
            return lambda _: None

        try:
            body = b"".join(serve_metrics({**environ, "REQUEST_METHOD": "GET"}, start))
        except Exception as error:
            log("metrics-failed", logging.ERROR, error=error, why=str(error))
            return _plain(start_response, "503 Service Unavailable", "the metrics cannot be read now; try again later\n")
        status, headers = started[0]
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return application


def _plain(start_response: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [text.encode()]
