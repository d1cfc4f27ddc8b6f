"""Checks of every request before it reaches a page, sessions of visitors, and headers of every response.

    Host       on loopback, only names of this machine (against DNS rebinding)
    Origin     forms from other sites are rejected, as are forms without the session's token
    token      if set: the cookie of a signed-in session, or `Authorization: Bearer`
    responses  no content of other sites, no scripts of messages: Content-Security-Policy, nosniff, no framing, no caching

Sessions are created only for visitors who may read, so that others cannot evict them. A session's form token is a keyed digest of its
id: a form without it was not made by this console. The checks are plain ASGI, so that downloads stream through them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from mqstore.console.basket import Basket
from mqstore.console.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN_PATHS = ("/static/", "/enter")
KEPT = 200


# sessions


@dataclass(slots=True, eq=False)
class Session:
    """A visitor's session. id: the cookie's value; csrf: the token in every form; zone: of the times that pages show."""

    id: str
    csrf: str
    basket: Basket = field(default_factory=Basket)
    zone: str = "UTC"
    new: bool = True


class Sessions:
    """The sessions of a console. If there are too many, the least recently used is dropped, those with an empty basket first."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def may_enter(self, token: str) -> bool:
        """Return whether a token is the console's, compared in constant time."""
        return self._token is None or hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def find(self, session_id: str | None) -> Session | None:
        """Return the session of a cookie, or None."""
        with self._lock:
            session = self._sessions.get(session_id or "")
            if session is not None:
                self._sessions.move_to_end(session.id)
                session.new = False
            return session

    def make(self) -> Session:
        """Create a session for a visitor who may read."""
        session_id = secrets.token_urlsafe(24)
        session = Session(session_id, hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest())
        with self._lock:
            self._sessions[session_id] = session
            if len(self._sessions) > KEPT:
                # a visitor without cookies creates one with each request; such sessions hold nothing
                idle = next((each for each in self._sessions.values() if not len(each.basket)), None)
                del self._sessions[idle.id if idle is not None and idle is not session else next(iter(self._sessions))]
        return session

    @property
    def open(self) -> bool:
        """Whether no token is required."""
        return self._token is None


# requests


def cookie_name(scope: Scope) -> str:
    """Return the cookie's name. Cookies are shared by all ports of a host, so the port is part of it."""
    server = scope.get("server")
    return f"mqstore_console_{server[1] if server else 0}"


class Guard:
    """ASGI middleware. Puts the session of a request into its scope as `session`."""

    def __init__(self, app: App, settings: Settings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        session: Session | None = None

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                message["headers"] += self._headers_of(scope, session)
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is None:
            session = self._sessions.find(_cookie(headers, cookie_name(scope)))
            if session is None and (self._sessions.open or self._has_bearer(headers)):
                session = self._sessions.make()
            scope["session"] = session
            if session is not None or scope["path"].startswith(OPEN_PATHS):
                await self._app(scope, receive, sending)
                return
            if scope["method"] in ("GET", "HEAD"):
                await _respond(sending, 303, "Sign in with the token first.", {"Location": "/enter"})
                return
            refusal = (401, "This console requires a token: open /enter.")
        await _respond(sending, refusal[0], refusal[1])

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "Only GET, HEAD and POST are supported."
        host = headers.get("host", "")
        if self._settings.is_loopback and not _is_this_machine(host, self._settings.host):
            return 421, "This console accepts names of this machine only, such as 127.0.0.1."
        if scope["method"] == "POST":
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "The form was sent by another site."
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != host:
                return 403, "The form was sent by another site."
        return None

    def _has_bearer(self, headers: dict[str, str]) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._sessions.may_enter(token.strip())

    def _headers_of(self, scope: Scope, session: Session | None) -> list[tuple[bytes, bytes]]:
        headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        if not scope["path"].startswith("/static/"):
            headers.append((b"cache-control", b"no-store"))
        made = scope.get("session") or session
        if made is not None and made.new:
            text = (
                f"{cookie_name(scope)}={made.id}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if scope.get('scheme') == 'https' else ''}"
            )
            headers.append((b"set-cookie", text.encode()))
        return headers


def _is_this_machine(host: str, bound: str) -> bool:
    name = urlsplit(f"//{host}").hostname if host else None
    if name is None:
        return False
    if name in ("localhost", bound):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _cookie(headers: dict[str, str], name: str) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if cookie is None else cookie.value


async def _respond(send: Send, status: int, sentence: str, extra: dict[str, str] | None = None) -> None:
    body = f"{sentence}\n".encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **(extra or {})}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
