"""A local S3 endpoint that records its requests: moto's server, in a thread of the test process.

`endpoint()` runs one for the process. `uploaded(root)` copies a directory into a new bucket and returns its URL. `Endpoint.asked` lists
the requests, one `Asked` each. `locked()` makes the endpoint check keys and signatures as Amazon's does; `faulty()` makes it refuse,
reset and cut off as many answers as asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import socket
import struct
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mqstore.files.location import Url

SLOW_DOWN = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

KEY, SECRET = "AKIDEXAMPLEOFMQSTORE", "a-secret-nobody-may-see"


class Asked(NamedTuple):
    """One request. length: bytes of its range; None for a request without a range."""

    method: str
    path: str
    length: int | None


class Faults:
    """What an endpoint does wrong. shares: of all requests, by `throttled`, `reset`, `cut`; met: how many requests met each of them.

    A client sends a request four times; one and the same meets two faults at the most, unless all are to fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin({})

    def begin(self, shares: dict[str, float]) -> None:
        with self._lock:
            self.shares = shares
            self.met: dict[str, int] = {}
            self._random = random.Random(1)
            self._failed: Counter[str] = Counter()

    def of_next(self, request: str) -> str:
        """Return what happens to a request: `throttled`, `reset`, `cut`, or empty for an answer."""
        with self._lock:
            if self._failed[request] >= 2 and sum(self.shares.values()) < 1:
                return ""
            drawn = self._random.random()
            for name, share in self.shares.items():
                if drawn < share:
                    self.met[name] = self.met.get(name, 0) + 1
                    self._failed[request] += 1
                    return name
                drawn -= share
        return ""


@dataclass
class Endpoint:
    """A running endpoint. url: `http://127.0.0.1:…`."""

    url: str
    client: Any
    asked: list[Asked] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def options(self, **more: object) -> dict[str, str]:
        """Return the options that reach its buckets."""
        return {"endpoint_url": self.url, "key": KEY, "secret": SECRET, **{name: str(value) for name, value in more.items()}}

    def uploaded(self, root: Path, below: str = "store", **more: object) -> Url:
        """Copy a directory into a new bucket and return its URL."""
        bucket = f"bucket-{next(self._numbers)}"
        self.client.create_bucket(Bucket=bucket)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.client.put_object(Bucket=bucket, Key=f"{below}/{path.relative_to(root).as_posix()}", Body=path.read_bytes())
        return Url(f"s3://{bucket}/{below}", self.options(**more))

    def put(self, url: Url, relative: str, body: bytes) -> None:
        """Replace an object."""
        self.client.put_object(Bucket=_bucket(url), Key=f"store/{relative}", Body=body)

    def delete(self, url: Url, relative: str) -> None:
        self.client.delete_object(Bucket=_bucket(url), Key=f"store/{relative}")

    def fetched(self, url: Url, below: str = "") -> list[Asked]:
        """Return the requests for bytes of objects of a store."""
        prefix = f"/{_bucket(url)}/store/{below}"
        return [asked for asked in self.asked if asked.method == "GET" and asked.path.startswith(prefix)]


def _bucket(url: Url) -> str:
    return url.url.split("/")[2]


def _length(header: str) -> int | None:
    if not header:
        return None
    low, _, high = header.partition("=")[2].partition("-")
    return int(high) - int(low) + 1


@cache
def endpoint() -> Endpoint:
    """Return the endpoint of this process, which ends with it."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    asked: list[Asked] = []
    faults = Faults()

    def counting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        asked.append(Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], _length(environ.get("HTTP_RANGE", ""))))
        fault = faults.of_next(
            f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ['QUERY_STRING']} {environ.get('HTTP_RANGE', '')}"
        )
        if fault == "throttled":
            start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(SLOW_DOWN)))])
            return [SLOW_DOWN]
        if fault == "reset":
            environ["werkzeug.socket"].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RD)  # the server finds no further request, and closes
            raise ConnectionResetError
        answer: Iterable[bytes] = application(environ, start_response)
        return _cut_off(answer) if fault == "cut" else answer

    server = make_server("127.0.0.1", 0, counting, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")
    return Endpoint(url, client, asked, faults)


def _cut_off(answer: Iterable[bytes]) -> Iterator[bytes]:
    """Send half of an answer's body and close the connection."""
    body = b"".join(answer)
    yield body[: len(body) // 2]
    raise ConnectionResetError


@contextlib.contextmanager
def faulty(**shares: float) -> Iterator[dict[str, int]]:
    """Make the endpoint do these things to shares of all requests (`Faults`); yields how many requests met each."""
    faults = endpoint().faults
    faults.begin(shares)
    try:
        yield faults.met
    finally:
        faults.begin({})


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Make the endpoint require a known key and a valid signature, which no client has."""
    _authenticate("0")
    try:
        yield
    finally:
        _authenticate("inf")


def _authenticate(after: str) -> None:
    """Let this many requests pass unchecked, and no more."""
    request = urllib.request.Request(f"{endpoint().url}/moto-api/reset-auth", after.encode(), {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(request, timeout=300).close()
